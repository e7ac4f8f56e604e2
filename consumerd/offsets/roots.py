# SPDX-License-Identifier: Apache-2.0
"""What a group remembers of its file sinks' paths, in ZooKeeper: their roots, and how far each partition was landed.

``/consumers/G/consumerd/roots/<sink>`` holds the random id that stands in ``_consumerd.json`` at the sink's path; where
each replica has a path of its own, ``.../<sink>/<consumer id>`` does. ``/consumers/G/consumerd/quarantine_root`` holds the quarantine's. Nodes are persistent and written once. Whoever gives a
sink a new volume for good deletes its node; nothing else ever changes one.

``/consumers/G/consumerd/landed/<root>/<topic>/<partition>`` says where the newest chain ends at least::

    {"format": 2, "incarnation": "7", "truncation": 0, "chain": 2, "origin": 0, "next_offset": 1000}

It is written after a file has its name and before that is acknowledged, so that no position is committed which it does not
bear out. It needs no fence: a member that stalls in between and writes late notes an end that was true, and lower than
the one that is; what is lost is evidence, never a file. It is read where a committed position lies above the chain's end,
to tell a file that was removed from what another member has consumed.
"""

from __future__ import annotations

from typing import Final

from consumerd.errors import CoordinationError
from consumerd.model import TopicPartition
from consumerd.zk.layout import landed_path, quarantine_root_path, root_path
from consumerd.zk.port import BadVersion, NodeExists, NoNode, OutcomeUnknown, ZkClient

_ATTEMPTS: Final = 8


class ZooKeeperRootRegistry:
    """The roots of one group's sinks."""

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._group = group

    async def find(self, sink: str, *, consumer_id: str | None) -> str | None:
        """Return the recorded root, or None. Raises CoordinationError."""
        found = await self._zk.find(self.describe(sink, consumer_id=consumer_id))
        return None if found is None else _read_root(found[0])

    async def record(self, sink: str, root: str, *, consumer_id: str | None) -> str:
        """Record a root unless one is recorded already, and return the one that is. Raises CoordinationError."""
        path = self.describe(sink, consumer_id=consumer_id)
        for _ in range(_ATTEMPTS):
            try:
                await self._zk.ensure_path(path, root.encode())
                found = await self._zk.find(path)
                recorded = None if found is None else _read_root(found[0])
                if recorded is not None:
                    return recorded
                if found is not None:
                    # an empty node: the parent of the replicas' own roots, from before they began to share one path
                    await self._zk.set(path, root.encode(), version=found[1].version)
            except (NodeExists, BadVersion, NoNode, OutcomeUnknown):
                continue  # another member, or we ourselves without hearing of it: read what is there now
        raise CoordinationError(f"{path}: others keep changing it")

    def describe(self, sink: str, *, consumer_id: str | None) -> str:
        """Return the path of the node."""
        return root_path(self._group, sink, consumer_id)

    async def find_landed_end(self, root: str, partition: TopicPartition) -> bytes | None:
        """Return what was noted last. Raises CoordinationError."""
        found = await self._zk.find(landed_path(self._group, root, partition))
        return None if found is None else found[0]

    async def note_landed_end(self, root: str, partition: TopicPartition, noted: bytes) -> None:
        """Note a durable end. Raises CoordinationError."""
        path = landed_path(self._group, root, partition)
        try:
            await self._zk.set(path, noted)
        except NoNode:
            await self._zk.ensure_path(path, noted)


class ZooKeeperQuarantineRoot(ZooKeeperRootRegistry):
    """The root of one group's quarantine, which all replicas share."""

    def describe(self, sink: str, *, consumer_id: str | None) -> str:  # noqa: ARG002 - there is only one
        """Return the path of the node."""
        return quarantine_root_path(self._group)


def _read_root(data: bytes) -> str | None:
    return data.decode(errors="replace") or None
