# SPDX-License-Identifier: Apache-2.0
"""Which came first, a partition or the group's interest in its topic, by the transactions that made their nodes."""

from __future__ import annotations

from consumerd.aio.sharing import SharedReads
from consumerd.model import TopicPartition
from consumerd.zk.layout import offsets_path
from consumerd.zk.layout_modern import partition_path
from consumerd.zk.port import Stat, ZkClient


class ZooKeeperPartitionHistory:
    """Compares ``/brokers/topics/T/partitions/P`` with the group's ``offsets/T``."""

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._find_folder = SharedReads[str, Stat | None](lambda topic: zk.exists(offsets_path(group, topic)))

    async def made_after_group(self, partition: TopicPartition) -> bool:
        """Tell whether the partition was made after the group had first committed for its topic.

        Raises CoordinationError.
        """
        began = await self._find_folder(partition.topic)
        if began is None:
            return False
        made = await self._zk.exists(partition_path(partition))
        return made is not None and made.czxid > began.czxid
