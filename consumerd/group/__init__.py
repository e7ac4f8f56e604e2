# SPDX-License-Identifier: Apache-2.0
"""Membership: agrees through ZooKeeper with all members on the partitions of this process.

Pure modules plan (``identity``, ``java_regex``, ``subscription``, ``assignors``, ``plan``, ``explain``) and decide
(``machine``); ``registry`` and ``owners`` read and write ZooKeeper; ``rebalancer`` connects them, and reports to a
:class:`~consumerd.group.listener.PartitionListener`.
"""
