# SPDX-License-Identifier: Apache-2.0
"""Membership in a consumer group that ZooKeeper coordinates, as Java's high-level consumer has it.

All members register in ZooKeeper, compute the same assignment, and claim their partitions there. The subpackage
``classic`` has the membership that a broker coordinates.

``machine``      state machine of a member, with ``partitions``, ``inspections``, ``events``, ``transitions``; pure.
``plan``         assignments, with ``identity``, ``subscription``, ``java_regex``, ``assignors``, ``explain``; pure.
``registry``     reads and writes registrations in ZooKeeper; ``owners`` the owners of partitions.
``rebalancer``   connects all of them, and reports to a :class:`~consumerd.group.listener.PartitionListener`.
"""
