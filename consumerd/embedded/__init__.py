# SPDX-License-Identifier: Apache-2.0
"""An embedded broker and ZooKeeper server, for the demo, tests and development."""
