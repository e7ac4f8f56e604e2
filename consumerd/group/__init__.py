# SPDX-License-Identifier: Apache-2.0
"""Membership: which partitions this process consumes, agreed upon through ZooKeeper with every other member.

Pure modules plan (``identity``, ``java_regex``, ``subscription``, ``assignors``, ``plan``, ``explain``) and decide
(``machine``); ``registry`` and ``owners`` read and write ZooKeeper; ``rebalancer`` joins them and tells a
:class:`~consumerd.group.listener.PartitionListener` what it has.
"""
