# SPDX-License-Identifier: Apache-2.0
"""Where 0.8 and later keep topics, partitions and the controller in ZooKeeper; what both generations share is in layout.

Pure; without the chroot. Source: Kafka's ``ZkUtils.scala`` (0.8 to 1.0) and ``ZkData.scala`` (1.1 on), and registries
recorded from real clusters.
"""

from __future__ import annotations

from typing import Final

from consumerd.model import TopicPartition
from consumerd.zk.layout import topic_path

CONTROLLER: Final = "/controller"
"""Ephemeral; names the broker that is the controller."""


def partitions_path(topic: str) -> str:
    """Parent of a topic's partition nodes."""
    return f"{topic_path(topic)}/partitions"


def partition_path(partition: TopicPartition) -> str:
    """A partition's node; its ``czxid`` tells when the partition was made."""
    return f"{partitions_path(partition.topic)}/{partition.partition}"


def partition_state_path(partition: TopicPartition) -> str:
    """A partition's leader, epochs and in-sync replicas."""
    return f"{partition_path(partition)}/state"
