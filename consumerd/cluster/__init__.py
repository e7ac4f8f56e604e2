# SPDX-License-Identifier: Apache-2.0
"""Brokers, topics and leaders of a cluster, read from ZooKeeper and from the brokers."""
