# SPDX-License-Identifier: Apache-2.0
"""The way to a cluster: ZooKeeper session, broker connections, directory of leaders."""
