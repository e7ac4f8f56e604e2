# SPDX-License-Identifier: Apache-2.0
"""Commits acknowledged positions: the newest of each partition, together, once per interval.

Kafka forgets positions after some time. There each owner of a partition commits its position at least once, and repeats
that of an idle partition from time to time.

A failed commit is not repeated as it was: the next pass over all partitions sends the positions acknowledged by then.
Passes never overlap, so each knows the versions of the offset znodes that the previous one has written. A committed
position is noted in the tracker that it was taken from. If the partition has started again with another tracker
meanwhile, that one is not changed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Final, Protocol

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
        """Claim of the partition; its ZooKeeper session sends the commit."""

    @property
    def tracker(self) -> OffsetTracker | None:
        """Tracker of the acknowledged and committed positions; None while nothing may be committed."""

    @property
    def fulfils(self) -> OffsetRequest | None:
        """Operator's request that the next commit carries out and deletes; None without one.

        A request asks for another position (``consumerd offsets set``). The commit deletes it together with writing the
        position.
        """

    def note_commit(self, failure: str | None) -> None:
        """Receive a commit's result: None after a success, else the reason of the failure."""


class Committer:
    """Commits the acknowledged positions of the partitions added to it, once per interval.

    Args:
        store: Stores positions in ZooKeeper, in Kafka, or in both.
        interval_s: Time between two commits of all partitions, in seconds.
        not_owner: Called at once with each claim that a commit finds to be lost.
        auto_commit: True: commit every interval. False: commit only when :meth:`commit` or :meth:`commit_at_once` is
            called.
    """

    def __init__(
        self,
        store: OffsetStore,
        *,
        interval_s: float,
        hooks: Hooks,
        not_owner: Callable[[Claim], None],
        auto_commit: bool = True,
    ) -> None:
        self._store = store
        self._interval_s = interval_s
        self._hooks = hooks
        self._not_owner = not_owner
        self._auto_commit = auto_commit
        self._parts: dict[Committable, None] = {}
        self._unwritten: set[Committable] = set()
        """Partitions whose position this member has not written yet; used for Kafka, which forgets positions."""
        self._urgent: dict[Committable, None] = {}
        self._turn = asyncio.Lock()
        self._failing = False

    def add(self, part: Committable) -> None:
        """Include a partition in all commits from now on."""
        self._parts[part] = None
        if self._store.rewrite_s is not None:
            self._unwritten.add(part)

    def remove(self, part: Committable) -> None:
        """Exclude a partition from all commits from now on."""
        self._parts.pop(part, None)
        self._unwritten.discard(part)

    async def run(self) -> None:
        """Commit every interval, until cancelled; without ``auto_commit`` this does nothing."""
        if not self._auto_commit:
            return
        rewrite_s = self._store.rewrite_s
        passes = None if rewrite_s is None else max(1, int(rewrite_s / self._interval_s))
        for number in itertools.count(1):
            await asyncio.sleep(self._interval_s)
            await self.commit(list(self._parts), rewrite=passes is not None and number % passes == 0)

    async def commit(self, parts: Iterable[Committable], *, rewrite: bool = False) -> None:
        """Commit the acknowledged positions that are not committed yet; with ``rewrite`` all of them.

        Takes no longer than the deadlines of the store (ZooKeeper or Kafka) allow. Failures are not raised: they are
        passed to :meth:`Committable.note_commit`. Safe to cancel.
        """
        async with self._turn:
            await self._pass(parts, rewrite=rewrite)

    async def commit_at_once(self, part: Committable) -> bool:
        """Commit one partition now; return True if the store then has its acknowledged position.

        The store is ZooKeeper or Kafka. Calls that come while a commit runs are answered by one next commit together.
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
        """Return why the store refuses commits of ``partition``; None unless a permission is missing."""
        return self._store.explain_refusal(partition)

    async def _pass(self, parts: Iterable[Committable], *, rewrite: bool = False) -> None:
        sent: list[tuple[Committable, Commit, OffsetTracker]] = []
        for part in parts:
            tracker = part.tracker
            if tracker is None:
                continue
            position = tracker.pending
            if position is None and (rewrite or part in self._unwritten):
                position = tracker.committed
            if position is not None:
                commit = Commit(part.claim, position, part.fulfils, truncation=tracker.truncation)
                sent.append((part, commit, tracker))
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
                self._unwritten.discard(part)
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
