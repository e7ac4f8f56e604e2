# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper: sessions over aiozk, watches that last, paths and contents of znodes."""
