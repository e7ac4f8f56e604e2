"""Which came first, a partition or the group's interest in its topic, by the transactions that made their nodes."""

from __future__ import annotations

from consumerd.aio.parallel import map_bounded
from consumerd.model import TopicPartition
from consumerd.zk.layout import offsets_path
from consumerd.zk.layout_modern import partition_path
from consumerd.zk.port import ZkClient


class ZooKeeperPartitionHistory:
    """Compares ``/brokers/topics/T/partitions/P`` with the group's ``offsets/T``."""

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._group = group

    async def made_after_group(self, partition: TopicPartition) -> bool:
        """Tell whether the partition was made after the group had first committed for its topic.

        Raises CoordinationError.
        """
        group, cluster = offsets_path(self._group, partition.topic), partition_path(partition)
        stats = await map_bounded((group, cluster), self._zk.exists)
        began, made = stats[group], stats[cluster]
        return began is not None and made is not None and made.czxid > began.czxid
