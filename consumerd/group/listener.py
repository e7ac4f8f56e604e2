# SPDX-License-Identifier: Apache-2.0
"""What membership tells whoever delivers: what is ours, what is to go, what is lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from consumerd.model import Claim, TopicPartition


class PartitionListener(Protocol):
    """Told of every change of ownership; implemented by ``delivery``.

    For one partition, calls come in order: ``claimed``, then at most one ``drain``, and none begins before the one
    before has returned; with one exception: ``lost`` may come while ``drain`` is under way, since a lost claim is of no
    use any more. Calls for different partitions may overlap. After ``drain`` or ``lost`` has returned, the same
    partition may be given again, with a new claim.
    """

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """Begin to deliver these partitions. Returns at once: work that waits is the listener's own task.

        A claim may be unusable for a while, or lost, at any time from now on: ask it.
        """

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Stop, flush, commit, within ``deadline_s``; whatever is not done by then is abandoned.

        When it returns, nothing more is published or committed for these partitions. A call that overruns is cancelled
        once the claims are useless, and followed by ``lost``.
        """

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions at once: no flush, no commit. Their claims are useless already.

        Returns when nothing runs for them any more.
        """
