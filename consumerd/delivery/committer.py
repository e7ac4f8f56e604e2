# SPDX-License-Identifier: Apache-2.0
"""Commits acknowledged positions: the newest of each partition, together, once per interval.

A failed commit is not repeated as it was: the next pass sends the positions acknowledged by then. Passes never overlap,
so each starts from the node versions that the previous one has settled. A committed position is noted in the tracker
that it was taken from; if the partition has started again with another tracker meanwhile, that one is not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

import structlog

from consumerd.errors import CoordinationError
from consumerd.model import Claim, TopicPartition
from consumerd.offsets.store import Commit, CommitOutcome, OffsetRequest, OffsetStore
from consumerd.offsets.tracker import OffsetTracker
from consumerd.telemetry.hooks import Hooks

_log = structlog.get_logger(__name__)

_UNEXPLAINED: Final = "the offset store has not taken it; the log has the error (offsets_commit_failed)"


class Committable(Protocol):
    """One partition under one claim, whose positions are committed."""

    @property
    def claim(self) -> Claim:
        """The claim, whose session sends the commit."""

    @property
    def tracker(self) -> OffsetTracker | None:
        """The positions, or None while nothing may be committed."""

    @property
    def fulfils(self) -> OffsetRequest | None:
        """The operator's request that the next commit carries out, if any."""

    def note_commit(self, failure: str | None) -> None:
        """Note why the position could not be written, or with None that it was."""


P = TypeVar("P", bound=Committable)


class Committer:
    """Commits for the partitions added to it.

    Args:
        not_owner: Called at once for each claim that turns out to be lost.
    """

    def __init__(
        self, store: OffsetStore, *, interval_s: float, hooks: Hooks, not_owner: Callable[[Claim], None]
    ) -> None:
        self._store = store
        self._interval_s = interval_s
        self._hooks = hooks
        self._not_owner = not_owner
        self._parts: dict[Committable, None] = {}
        self._urgent: dict[Committable, None] = {}
        self._turn = asyncio.Lock()
        self._failing = False

    def add(self, part: Committable) -> None:
        """Include this partition from the next pass on."""
        self._parts[part] = None

    def remove(self, part: Committable) -> None:
        """Exclude this partition from now on."""
        self._parts.pop(part, None)

    async def run(self) -> None:
        """Commit every interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.commit(list(self._parts))

    async def commit(self, parts: Iterable[Committable]) -> None:
        """Commit the pending positions of these partitions.

        Bounded by the store's own deadlines; safe to cancel.
        """
        async with self._turn:
            await self._pass(parts)

    async def commit_at_once(self, part: Committable) -> bool:
        """Commit one partition now; return True if the store holds its position.

        Concurrent callers, also those that call during a pass, share the next one.
        """
        self._urgent[part] = None
        try:
            async with self._turn:
                await asyncio.sleep(0)  # let callers that became ready in the same loop iteration join
                if part in self._urgent:
                    together = list(self._urgent)
                    self._urgent.clear()
                    await self._pass(together)
        finally:
            self._urgent.pop(part, None)
        return part.tracker is not None and part.tracker.pending is None

    def explain_refusal(self, partition: TopicPartition) -> str | None:
        """Return why the store refuses this partition's commits, if it lacks a permission."""
        return self._store.explain_refusal(partition)

    async def _pass(self, parts: Iterable[Committable]) -> None:
        sent: list[tuple[Committable, Commit, OffsetTracker]] = []
        for part in parts:
            tracker = part.tracker
            if tracker is not None and (position := tracker.pending) is not None:
                sent.append((part, Commit(part.claim, position, part.fulfils), tracker))
        if not sent:
            return
        unsent: str | None = None
        try:
            outcomes = await self._store.commit([commit for _, commit, _ in sent])
        except CoordinationError as error:
            self._note_failure(error)
            outcomes, unsent = {}, str(error)
        else:
            self._note_success()
        for part, commit, tracker in sent:
            outcome = outcomes.get(commit.claim.partition, CommitOutcome.FAILED)
            self._settle(commit, tracker, outcome)
            if outcome is not CommitOutcome.FAILED:
                part.note_commit(None)
            else:
                part.note_commit(unsent or self.explain_refusal(commit.claim.partition) or _UNEXPLAINED)

    def _settle(self, commit: Commit, tracker: OffsetTracker, outcome: CommitOutcome) -> None:
        partition = commit.claim.partition
        if outcome in (CommitOutcome.FAILED, CommitOutcome.REQUEST_CHANGED):
            self._hooks.commit_failed(partition, outcome.value)
            return
        if outcome is CommitOutcome.NOT_OWNER:
            self._hooks.commit_failed(partition, "not owner")
            self._not_owner(commit.claim)
            return
        if outcome is CommitOutcome.FOREIGN_OVERWRITTEN:
            self._hooks.foreign_commit(partition, commit.position)
        tracker.commit(commit.position)
        self._hooks.offset_committed(partition, commit.position)

    def _note_failure(self, error: CoordinationError) -> None:
        if not self._failing:
            self._failing = True
            _log.warning("commit_failed", error=str(error))

    def _note_success(self) -> None:
        if self._failing:
            self._failing = False
            _log.info("commit_recovered")
