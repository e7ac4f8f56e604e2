# SPDX-License-Identifier: Apache-2.0
"""Whole groups on virtual time, by seed: real members over a ZooKeeper, brokers and a disk in memory, and a judge."""
