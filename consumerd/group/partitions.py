# SPDX-License-Identifier: Apache-2.0
"""Records of a member's partitions: their state changes, and the effects of one step.

Pure. :mod:`consumerd.group.machine` decides which partitions change, by the newest assignment and the member's state.
This module changes them by :data:`~consumerd.group.transitions.PARTITION_TRANSITIONS`, applies the outcomes of claims,
releases and drains, and turns all changes of one step into effects. A step is the handling of one event.

Example: an assignment takes T/0 and T/1, which are OWNED, away from this member. Both go to QUIESCING in one step, and
``flush`` adds one ``Drain`` effect with serial number 7. Meanwhile T/0 is lost: it goes to DROPPING and waits for
another serial number. The drain ends: ``end_drains(7)`` revokes T/1 alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, assert_never

from consumerd.group import events as ev
from consumerd.group.plan import Grant, Holder
from consumerd.group.records import EffectBatch, PartitionRecord, RebalancePass
from consumerd.group.settings import RebalanceSettings
from consumerd.group.transitions import HELD, PARTITION_TRANSITIONS, PartitionState, PartitionTrigger
from consumerd.model import SessionEpoch, ThreadId, TopicPartition

BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 2.0
"""Longest delay, in seconds, before a request that ZooKeeper could not carry out is repeated."""


def add_jitter(seconds: float, random: Callable[[], float]) -> float:
    """Return a duration that is up to a quarter shorter or longer, at random.

    Args:
        seconds: The duration to change.
        random: Returns floats in [0, 1).
    """
    return seconds * (0.75 + random() / 2)


class PartitionTable:
    """The partitions of a member, and the effects of the current step.

    A step is the handling of one event by :class:`~consumerd.group.machine.GroupMachine`. Partitions in the state
    ABSENT have no record.

    Args:
        random: Returns floats in [0, 1), for delays.
    """

    def __init__(self, settings: RebalanceSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._now = 0.0
        self._serial = 0
        self._contested: Counter[str] = Counter()
        """Number of contested partitions by topic."""
        self._pass: RebalancePass | None = None
        self.records: dict[TopicPartition, PartitionRecord] = {}
        self.moves = 0
        """Grows with each transition and with each view."""
        self.batch = EffectBatch()
        """Partitions that get the same effect at the end of the step."""
        self.effects: list[ev.Effect] = []
        """Effects of the step so far, in order."""

    def begin(self, now: float) -> None:
        """Begin the handling of one event.

        Args:
            now: Present time, in seconds of the machine's clock.
        """
        self._now = now

    def has_contested(self, topics: Collection[str]) -> bool:
        """Return True if another member still has a partition that this one is assigned.

        Only partitions of ``topics`` count.
        """
        return any(self._contested[topic] for topic in topics)

    # -- moves

    def add(self, partition: TopicPartition, grant: Grant) -> PartitionRecord:
        """Add and return a record for a partition that has none.

        Its state is ABSENT until the next transition.
        """
        record = PartitionRecord(state=PartitionState.ABSENT, grant=grant, since=self._now)
        self.records[partition] = record
        return record

    def step(self, partition: TopicPartition, record: PartitionRecord, trigger: PartitionTrigger) -> None:
        """Change a partition's state as the transition table says for ``trigger``."""
        state = PARTITION_TRANSITIONS[record.state, trigger]
        if state is record.state:
            return
        if record.state is PartitionState.OWNED and record.op:
            record.rethreading = True  # the outcome of that write will be ignored
        self._contested[partition.topic] += (state is PartitionState.CONTESTED) - (
            record.state is PartitionState.CONTESTED
        )
        self.moves += 1
        record.state, record.since, record.op = state, self._now, 0
        if state not in HELD:
            record.claim, record.unproven, record.rethreading = 0, False, False
        if state is PartitionState.RELEASING:
            record.due, record.attempts = self._now, 0
        if state is PartitionState.ABSENT:
            del self.records[partition]

    def drop(self, partition: TopicPartition, record: PartitionRecord, trigger: PartitionTrigger, reason: str) -> None:
        """Change a lost partition's state to DROPPING; the listener will be told ``reason``."""
        self.step(partition, record, trigger)
        self.batch.drops.setdefault(reason, set()).add(partition)
        if self._pass is not None:
            self._pass.lost += 1

    def next_serial(self) -> int:
        """Return a new number, one above the last, for an effect or a claim."""
        self._serial += 1
        return self._serial

    def _await(self, partitions: Iterable[TopicPartition]) -> int:
        serial = self.next_serial()
        for partition in partitions:
            self.records[partition].op = serial
        return serial

    def confirm(self, covered: Mapping[TopicPartition, int], grants: Mapping[TopicPartition, Grant]) -> None:
        """Start the delivery of claimed partitions that a newer assignment confirms.

        A partition is started if its claim existed when the read of the group began, and the new assignment still gives
        the partition of the same incarnation of the topic to this member.

        Args:
            covered: The partitions that were claimed when the read began, with the numbers of their claims.
            grants: The partitions that the assignment gives to this member.
        """
        for partition, claim in covered.items():
            record, grant = self.records.get(partition), grants.get(partition)
            if record is None or grant is None or record.claim != claim:
                continue
            if record.state is not PartitionState.CONFIRMING or record.grant.incarnation != grant.incarnation:
                continue
            self.step(partition, record, PartitionTrigger.CONFIRMED)
            record.attempts = 0
            self.batch.starts[partition] = record.grant
            if self._pass is not None:
                self._pass.gained += 1
                self._pass.claimed_at = self._now

    # -- outcomes

    def _awaiting(self, serial: int, state: PartitionState) -> list[tuple[TopicPartition, PartitionRecord]]:
        """Return the partitions in ``state`` that wait for this outcome, and clear the wait."""
        found = [(p, r) for p, r in self.records.items() if r.op == serial and r.state is state]
        for _, record in found:
            record.op = 0
        return found

    def end_claims(self, serial: int, outcomes: Mapping[TopicPartition, ev.ClaimOutcome]) -> None:
        """Apply the outcomes of claims; a missing outcome counts as unknown.

        Args:
            serial: Serial of the :class:`~consumerd.group.events.ClaimPartitions` effect that has ended.
        """
        for partition, record in self._awaiting(serial, PartitionState.CLAIMING):
            outcome = outcomes.get(partition, ev.Unknown())
            match outcome:
                case ev.Created():
                    self.step(partition, record, PartitionTrigger.CREATED)
                    record.claim, record.holder = self.next_serial(), None
                case ev.Taken(holder):
                    self.step(partition, record, PartitionTrigger.TAKEN)
                    self._contest(partition, record, holder)
                case ev.Occupied():
                    self.step(partition, record, PartitionTrigger.TAKEN)
                    record.attempts += 1
                    record.due = self._now + add_jitter(self._settings.backoff_s, self._random)
                case ev.NotSent():
                    self.step(partition, record, PartitionTrigger.TAKEN)
                    record.due = self._now + add_jitter(BACKOFF_S, self._random)
                case ev.Unknown():
                    self.step(partition, record, PartitionTrigger.UNKNOWN)
                case _:
                    assert_never(outcome)

    def _contest(self, partition: TopicPartition, record: PartitionRecord, holder: Holder) -> None:
        record.attempts += 1
        record.due = self._now + add_jitter(self._settings.backoff_s, self._random)
        starved = record.attempts == self._settings.max_retries + 1
        # one report per holder, and one when the retries are used up
        if holder != record.holder or starved:
            self.effects.append(ev.ReportConflict(partition, holder, record.attempts, starved))
        record.holder = holder

    def end_releases(self, serial: int, released: frozenset[TopicPartition]) -> None:
        """Forget released partitions; those that could not be released are tried again.

        Args:
            serial: Serial of the :class:`~consumerd.group.events.Release` effect that has ended.
            released: The partitions whose owner nodes are certainly deleted.
        """
        for partition, record in self._awaiting(serial, PartitionState.RELEASING):
            if partition in released:
                self.step(partition, record, PartitionTrigger.RELEASED)
                if self._pass is not None:
                    self._pass.released_at = self._now
            else:
                record.attempts += 1
                record.due = self._now + min(MAX_BACKOFF_S, BACKOFF_S * 2 ** min(record.attempts, 8))

    def end_rethreads(self, serial: int, written: Mapping[TopicPartition, ThreadId]) -> None:
        """Note the threads that were written into owner nodes.

        The nodes of the effect that are not in ``written`` are written again later.

        Args:
            serial: Serial of the :class:`~consumerd.group.events.Rethread` effect that has ended.
            written: The thread in each node that was certainly written.
        """
        for partition, record in self._awaiting(serial, PartitionState.OWNED):
            record.rethreading = partition not in written
            if record.rethreading:
                record.due = self._now + self._settings.backoff_s
            else:
                record.grant = Grant(written[partition], record.grant.incarnation)

    def end_drains(self, serial: int) -> None:
        """Revoke the claims of drained partitions, and begin the grace period before their release.

        Args:
            serial: Serial of the :class:`~consumerd.group.events.Drain` effect that has ended.
        """
        for partition, record in self._awaiting(serial, PartitionState.QUIESCING):
            self.step(partition, record, PartitionTrigger.DRAINED)
            record.due = self._now + self._settings.release_grace_s
            self.batch.revokes.add(partition)
            if self._pass is not None:
                self._pass.drained_at = self._now
                self._pass.lost += 1

    def end_drops(self, serial: int) -> None:
        """Forget the partitions of the Drop effect with this serial, which the listener has discarded."""
        for partition, record in self._awaiting(serial, PartitionState.DROPPING):
            self.step(partition, record, PartitionTrigger.DROPPED)

    def lose(self, partition: TopicPartition, record: PartitionRecord, reason: str) -> None:
        """Note that a partition's owner node is gone, or another member's.

        A partition that is in delivery is dropped: its claim is revoked, and its unflushed records are discarded.
        """
        self.open_pass("an owner node was lost")
        if record.state in {PartitionState.OWNED, PartitionState.QUIESCING}:
            self.drop(partition, record, PartitionTrigger.LOSE, reason)
        else:
            self.step(partition, record, PartitionTrigger.LOSE)

    # -- effects

    def flush(self, epoch: SessionEpoch) -> None:
        """Turn the state changes of this step into effects; revocations of claims come first.

        Args:
            epoch: The ZooKeeper session in which the effects write.
        """
        batch, self.batch = self.batch, EffectBatch()
        urgent: list[ev.Effect] = [
            ev.Revoke(frozenset(partitions), reason) for reason, partitions in batch.drops.items()
        ]
        if batch.revokes:
            urgent.append(ev.Revoke(frozenset(batch.revokes), "it was handed over"))
        for reason, partitions in batch.drops.items():
            urgent.append(ev.Drop(self._await(partitions), frozenset(partitions), reason))
        self.effects[:0] = urgent
        # a partition may have been confirmed and then lost or denied in the same step
        starts = {p: grant for p, grant in batch.starts.items() if self._is_in(p, PartitionState.OWNED)}
        if starts:
            self.effects.append(ev.StartPartitions(epoch, starts))
        if batch.drains:
            serial = self._await(batch.drains)
            self.effects.append(ev.Drain(serial, frozenset(batch.drains), self._settings.drain_timeout_s))
        if batch.releases:
            self.effects.append(ev.Release(self._await(batch.releases), epoch, frozenset(batch.releases)))
        if batch.threads:
            self.effects.append(ev.Rethread(self._await(batch.threads), epoch, batch.threads))
        if batch.claims:
            serial = self._await(batch.claims)
            self.effects.append(ev.ClaimPartitions(serial, epoch, batch.claims, frozenset(batch.first_claims)))

    def _is_in(self, partition: TopicPartition, state: PartitionState) -> bool:
        record = self.records.get(partition)
        return record is not None and record.state is state

    def open_pass(self, cause: str) -> None:
        """Begin a rebalance, or add a cause to the one that is running."""
        if self._pass is None:
            self._pass = RebalancePass(began=self._now, causes=[cause])
        elif cause != "a partition became free":
            self._pass.causes.append(cause)

    @property
    def rebalancing(self) -> bool:
        """True from the start of a rebalance until :meth:`close_pass` has reported its end."""
        return self._pass is not None

    def close_pass(self) -> None:
        """Report the end of the running rebalance, if there is one."""
        if self._pass is None:
            return
        owned = sum(record.state is PartitionState.OWNED for record in self.records.values())
        rebalance = self._pass.finish(self._now, stayed=max(0, owned - self._pass.gained))
        self._pass = None
        self.effects.append(ev.ReportRebalance(rebalance))

    def note_read(self) -> None:
        """Note for the rebalance report that the group is being read now."""
        if self._pass is not None and self._pass.read_at is None:
            self._pass.read_at = self._now

    def note_view(self) -> None:
        """Note for the rebalance report that a newly read assignment is applied."""
        self.moves += 1
        if self._pass is not None:
            self._pass.viewed_at = self._now

    def take_effects(self) -> list[ev.Effect]:
        """Return the effects of this step, in order, and forget them."""
        effects, self.effects = self.effects, []
        return effects
