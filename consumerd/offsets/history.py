# SPDX-License-Identifier: Apache-2.0
"""Order in which a partition and the group's first commit for its topic were made.

A partition that is younger than the group's folder for its topic was added while the group already consumed the topic.
ZooKeeper's transaction numbers tell the order. Without ZooKeeper, a member knows only what it has seen itself.
"""

from __future__ import annotations

from collections.abc import Callable

from consumerd.aio.sharing import SharedReads
from consumerd.model import TopicPartition
from consumerd.zk.layout import offsets_path
from consumerd.zk.port import Stat, ZkClient
from consumerd.zk.registry_layout import RegistryLayout


class ZooKeeperPartitionHistory:
    """Compares the age of a partition with that of the group's positions for its topic.

    The ZooKeeper transactions that created ``/brokers/topics/T/partitions/P`` and ``/consumers/G/offsets/T`` are
    compared.
    """

    def __init__(self, zk: ZkClient, group: str, layout: RegistryLayout) -> None:
        self._zk = zk
        self._layout = layout
        self._find_folder = SharedReads[str, Stat | None](lambda topic: zk.exists(offsets_path(group, topic)))

    async def made_after_group(self, partition: TopicPartition) -> bool:
        """Return True if the partition was created after the group's first commit for its topic.

        False if the group has no commit for the topic, or the age of the partition is unknown. Raises
        CoordinationError.
        """
        began = await self._find_folder(partition.topic)
        if began is None:
            return False
        path = self._layout.birth_path(partition)
        made = None if path is None else await self._zk.exists(path)
        return made is not None and made.czxid > began.czxid


class SeenPartitionHistory:
    """Tells new partitions from those seen before by this process, without ZooKeeper.

    Brokers do not tell when a partition was created. So a partition is new if it, or its topic, was created while this
    process was a member. One that was created while no member ran is not: ``offsets.on_missing`` decides there.

    Args:
        is_new: Returns True for a partition that was created since the process began.
    """

    def __init__(self, is_new: Callable[[TopicPartition], bool]) -> None:
        self._is_new = is_new

    async def made_after_group(self, partition: TopicPartition) -> bool:
        """Return True if the partition was created while this process was a member."""
        return self._is_new(partition)
