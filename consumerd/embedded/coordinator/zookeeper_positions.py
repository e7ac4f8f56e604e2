# SPDX-License-Identifier: Apache-2.0
"""Committed positions of groups in ZooKeeper, for OffsetCommit and OffsetFetch of version 0.

Java's high-level consumers keep theirs in the same nodes: ``/consumers/G/offsets/T/P``, one persistent node each, with
the next offset in decimal. A client's metadata are not stored. Source: ``handleOffsetCommitRequest`` and
``handleOffsetFetchRequest`` in Kafka's ``KafkaApis.scala``.
"""

from __future__ import annotations

from consumerd.errors import CoordinationError
from consumerd.model import TopicPartition
from consumerd.zk.layout import offset_path, offsets_path
from consumerd.zk.port import NodeExists, NoNode, ZkClient
from consumerd.zk.znodes import encode_offset, parse_offset


class IllegalGroupId(CoordinationError):
    """A group id that is not a single element of a ZooKeeper path.

    ``lake/ids/evil`` would create a registration in the group ``lake`` that no session ends. Kafka accepts it.
    """


class ZooKeeperPositions:
    """Reads and writes committed positions of groups in ZooKeeper.

    A call fails if ZooKeeper does not respond within the session's deadline.
    """

    def __init__(self, zk: ZkClient) -> None:
        self._zk = zk

    async def commit(self, group_id: str, partition: TopicPartition, offset: int) -> None:
        """Write a group's position of one partition. Raises CoordinationError, including IllegalGroupId."""
        _check_group_id(group_id)
        path, data = offset_path(group_id, partition), encode_offset(offset)
        try:
            await self._zk.set(path, data)
        except NoNode:
            await self._zk.ensure_path(offsets_path(group_id, partition.topic))
            try:
                await self._zk.create(path, data)
            except NodeExists:  # another commit was first; ours is the later one, and counts
                await self._zk.set(path, data)

    async def find(self, group_id: str, partition: TopicPartition) -> int | None:
        """Return a group's position of one partition, or None if there is none.

        Raises CoordinationError, including IllegalGroupId and MalformedZnode.
        """
        _check_group_id(group_id)
        node = await self._zk.find(offset_path(group_id, partition))
        return None if node is None else parse_offset(node[0])


def _check_group_id(group_id: str) -> None:
    if "/" in group_id or group_id in {"", ".", ".."}:
        raise IllegalGroupId(f"group id: {group_id[:100]!r} is not one element of a path")
