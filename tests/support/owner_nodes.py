# SPDX-License-Identifier: Apache-2.0
"""The owner nodes of a topic, each read from ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping

from consumerd.group.plan import Holder
from consumerd.model import PartitionKey, TopicPartition
from consumerd.zk.layout import owners_path
from consumerd.zk.port import ZkClient, list_names


async def read_owners(zk: ZkClient, group: str, topic: str) -> Mapping[TopicPartition, Holder]:
    """Return who holds each partition that has an owner node."""
    folder = owners_path(group, topic)
    found = {}
    for name in await list_names(zk, folder):
        node = await zk.find(f"{folder}/{name}")
        if node is not None:
            data, stat = node
            found[TopicPartition(topic, PartitionKey.parse(name))] = Holder(data.decode(), stat.ephemeral_owner)
    return found
