# SPDX-License-Identifier: Apache-2.0
"""Roots of a group's file sinks, and the ends of their chains, recorded in ZooKeeper.

A root is the random id of a sink's path, which tells one volume from another; ``_consumerd.json`` at the path has it,
too. A chain is a run of landed files of one partition, without overlap.

Roots
    ``/consumers/G/consumerd/roots/<sink>`` holds the root of a sink. If each replica has a path of its own,
    ``.../<sink>/<consumer id>`` holds it. ``/consumers/G/consumerd/quarantine_root`` holds that of the quarantine. The
    nodes are persistent and written once. To give a sink a new volume for good, an operator deletes its node; nothing
    else ever changes one.

Ends
    ``/consumers/G/consumerd/landed/<root>/<topic>/<partition>`` holds a lower bound for the end of the newest chain::

        {"format": 2, "incarnation": "7", "truncation": 0, "chain": 2, "origin": 0, "next_offset": 1000}

    The partition's second chain begins at offset 0 and has landed offsets up to 999. ``incarnation`` is the transaction
    that created the topic; ``truncation`` counts the unclean leader elections that have cut the log since.

    A writer records the end after it has published a file, and before it acknowledges the file's records. So every
    committed position is covered by a recorded end. The write is unconditional: a member that stalls may replace the
    end by an older, lower one. Then a removed file may go unnoticed; landed files are not affected.

    The record is read if a committed position lies above the chain's end. If the recorded end lies above it, too, files
    were removed. Otherwise another member has consumed the offsets in between.
"""

from __future__ import annotations

from typing import Final

from consumerd.errors import CoordinationError
from consumerd.model import TopicPartition
from consumerd.zk.layout import landed_path, quarantine_root_path, root_path
from consumerd.zk.port import BadVersion, NodeExists, NoNode, OutcomeUnknown, ZkClient

_ATTEMPTS: Final = 8


class ZooKeeperRootRegistry:
    """Records in ZooKeeper of the volumes of one group's file sinks, and their landed offsets.

    A root is the random id of a sink's path. It tells a volume from another one that is mounted at the same path.
    """

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._group = group

    async def find(self, sink: str, *, consumer_id: str | None) -> str | None:
        """Return the random id of the volume recorded for a sink; None without a record.

        Raises CoordinationError.

        Args:
            sink: Name of the sink.
            consumer_id: Id of this replica if each replica has a path of its own; None if all replicas share the path.
        """
        found = await self._zk.find(self.describe(sink, consumer_id=consumer_id))
        return None if found is None else _read_root(found[0])

    async def record(self, sink: str, root: str, *, consumer_id: str | None) -> str:
        """Record the random id of a sink's volume, unless an id is recorded already.

        Returns the id that is recorded afterwards: ``root``, or the earlier one. Raises CoordinationError.

        Args:
            sink: Name of the sink.
            consumer_id: Id of this replica if each replica has a path of its own; None if all replicas share the path.
        """
        path = self.describe(sink, consumer_id=consumer_id)
        for _ in range(_ATTEMPTS):
            try:
                await self._zk.ensure_path(path, root.encode())
                found = await self._zk.find(path)
                recorded = None if found is None else _read_root(found[0])
                if recorded is not None:
                    return recorded
                if found is not None:
                    # an empty node was the parent of the replicas' own roots, before they began to share one path
                    await self._zk.set(path, root.encode(), version=found[1].version)
            except (NodeExists, BadVersion, NoNode, OutcomeUnknown):
                continue  # another member, or we ourselves without hearing of it: read what is there now
        raise CoordinationError(f"{path}: others keep changing it")

    def describe(self, sink: str, *, consumer_id: str | None) -> str:
        """Return the path of the ZooKeeper node that records a sink's volume."""
        return root_path(self._group, sink, consumer_id)

    async def find_landed_end(self, root: str, partition: TopicPartition) -> bytes | None:
        """Return the recorded end of a partition's landed offsets: a JSON object as bytes.

        None if no end is recorded. ``root`` is the random id of the sink's volume. Raises CoordinationError.
        """
        found = await self._zk.find(landed_path(self._group, root, partition))
        return None if found is None else found[0]

    async def note_landed_end(self, root: str, partition: TopicPartition, noted: bytes) -> None:
        """Record the offset up to which a partition has durably landed.

        ``root`` is the id of the sink's volume, ``noted`` the record as JSON. Raises CoordinationError.
        """
        path = landed_path(self._group, root, partition)
        try:
            await self._zk.set(path, noted)
        except NoNode:
            await self._zk.ensure_path(path, noted)


class ZooKeeperQuarantineRoot(ZooKeeperRootRegistry):
    """Record in ZooKeeper of the volume of a group's quarantine, which all replicas share."""

    def describe(self, sink: str, *, consumer_id: str | None) -> str:  # noqa: ARG002 - there is only one
        """Return the path of the ZooKeeper node that records the quarantine's volume."""
        return quarantine_root_path(self._group)


def _read_root(data: bytes) -> str | None:
    return data.decode(errors="replace") or None
