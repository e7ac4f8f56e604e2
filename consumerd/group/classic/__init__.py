# SPDX-License-Identifier: Apache-2.0
"""Membership that a broker coordinates: Kafka's classic group protocol, of 0.9 to 4.x.

The coordinator decides which members belong to the group, and calls all of them to join again at each change. One
member, the leader, computes the assignment. The package ``consumerd.group`` has the membership in ZooKeeper.
"""
