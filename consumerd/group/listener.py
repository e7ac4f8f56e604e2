# SPDX-License-Identifier: Apache-2.0
"""Interface by which membership tells delivery which partitions are claimed, drained or lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from consumerd.model import Claim, TopicPartition


class PartitionListener(Protocol):
    """Receives every change of ownership; implemented by ``consumerd.delivery``.

    For one partition, calls come in order: ``claimed``, then at most one ``drain``. Each begins after the previous one
    has returned, with one exception: ``lost`` may come during ``drain``, because a lost claim cannot be drained. Calls
    for different partitions may overlap. After ``drain`` or ``lost`` has returned, the same partition may be claimed
    again, with a new claim.
    """

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """Begin to deliver the claims' partitions, and return at once.

        Work that waits belongs to the listener's own tasks. A claim may be suspended or lost at any time from now on,
        so it has to be checked before each use.
        """

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Stop, flush and commit these partitions, within ``deadline_s`` seconds.

        Records that are not flushed by then are discarded. When this returns, nothing more is published or committed
        for these partitions. If it takes too long, it is cancelled once the claims are revoked, and followed by
        :meth:`lost`.
        """

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions at once, without flush or commit: their claims are revoked.

        Returns when nothing runs for them any more.
        """
