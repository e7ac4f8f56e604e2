# SPDX-License-Identifier: Apache-2.0
"""Operators' requests without ZooKeeper: positions that were set while the group had no members.

``consumerd offsets set`` commits the position itself there, with the word ``set`` in its text
(:mod:`consumerd.offsets.commit_metadata`). The next owner takes that for a request: a sink with files begins a new
chain below the end of what it has landed, or records a gap above it. Its first commit there has no such word any more.

Example: files end at 100, and an operator sets 40. The owner seals the chain at 100 and begins another one at 40.
Without the word it would go on at 100, as after a commit that was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from consumerd.model import TopicPartition
from consumerd.offsets.commit_metadata import parse_metadata
from consumerd.offsets.positions import KafkaOffsetToken
from consumerd.offsets.store import OffsetRequest, RequestSubscription, StoredOffset

Load = Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, StoredOffset | None]]]


class KafkaOffsetRequests:
    """Positions that operators have set.

    Args:
        load: Reads stored positions. Raises CoordinationError.
    """

    def __init__(self, load: Load) -> None:
        self._load = load

    @property
    def waiting(self) -> Sequence[OffsetRequest]:
        """None: a position is set while the group has no members."""
        return ()

    async def find(self, partition: TopicPartition) -> OffsetRequest | None:
        """Return the request for a partition, or None. Raises CoordinationError."""
        stored = (await self._load([partition]))[partition]
        if stored is None or not isinstance(stored.token, KafkaOffsetToken):
            return None
        text = parse_metadata(stored.token.metadata)
        if text is None or not text.request_id:
            return None
        return OffsetRequest(
            id=text.request_id,
            partition=partition,
            position=stored.position,
            new_chain=False,
            author="an operator",
            created_ms=0,
            version=0,
            topic=text.incarnation,
        )

    def watch(self, topic: str, changed: Callable[[TopicPartition], None]) -> RequestSubscription:  # noqa: ARG002
        """Return a subscription that never calls: no position is set while there are members."""
        return _NoSubscription()

    async def remove(self, request: OffsetRequest) -> None:
        """Do nothing: the commit that carries a request out has replaced it."""

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()


class _NoSubscription:
    """A subscription to nothing."""

    def close(self) -> None:
        """Do nothing."""
