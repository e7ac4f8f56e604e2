# SPDX-License-Identifier: Apache-2.0
"""The group coordinator: groups by name, their positions, timers and stored state.

``group.CoordinatedGroup`` makes the decisions; this module has the timers, sends the responses and writes the log. It
runs on one event loop without locks: nothing changes between two awaits. Steps that must not be interrupted (a record
is written, and then the state in memory updated) run in the coordinator's own tasks, so a client that disconnects does
not cancel them.

A group belongs to one partition of the log, by the hash of its name, and the leader of that partition coordinates it.
While a broker loads a partition, after a start or an election, requests of the group get COORDINATOR_LOAD_IN_PROGRESS
(14). Other brokers answer NOT_COORDINATOR (16), and so does every broker before there is a log. A broker that loses the
leadership drops its groups; pending requests get NOT_COORDINATOR.

Members, positions, timers and loading are in one class, since each affects whether a group exists.

Sources: Kafka's ``GroupCoordinator.scala`` and ``GroupMetadataManager.scala`` of 1.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import structlog

from consumerd.aio.timeouts import timeout
from consumerd.embedded.appending import Marker
from consumerd.embedded.coordinator.exchange import (
    UNKNOWN_MEMBER,
    Effect,
    GroupDescription,
    GroupState,
    Join,
    Joined,
    JoinResult,
    Store,
    Synced,
    SyncResult,
)
from consumerd.embedded.coordinator.group import CoordinatedGroup
from consumerd.embedded.coordinator.group_log import OffsetsTopic
from consumerd.embedded.coordinator.journal import Journal, JournalReplay, partition_of
from consumerd.embedded.coordinator.member import Protocol, Ticket
from consumerd.embedded.coordinator.positions import CoordinatedPosition, Positions
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.state_topic import NoLog, NotWritten, StateTooLarge
from consumerd.embedded.coordinator.waiting import PendingResponses
from consumerd.embedded.handlers.context import Hangup
from consumerd.embedded.log.errors import LogError, StaleEpoch
from consumerd.embedded.topics import OFFSETS_TOPIC
from consumerd.errors import ConsumerdError
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.records import NewRecord

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_STRING_BYTES: Final = 2**15 - 1
"""Largest size of a string in the protocol."""

NO_DESCRIPTION: Final = GroupDescription(state=GroupState.DEAD)
"""The response to DescribeGroups for a group that does not exist."""


@dataclass(frozen=True, slots=True)
class _Undecided:
    """Position in an open transaction, with the offset of its record."""

    entry: _Entry
    partition: TopicPartition
    position: CoordinatedPosition
    log_offset: int


@dataclass(slots=True)
class _Entry:
    """A group with its positions; ``pending`` counts admitted commits until they are written."""

    group: CoordinatedGroup
    positions: Positions = field(default_factory=Positions)
    pending: Counter[TopicPartition] = field(default_factory=Counter)

    @property
    def forgettable(self) -> bool:
        """True if nothing is left of the group."""
        return self.group.state is GroupState.EMPTY and not len(self.positions) and not self.pending.total()


class GroupCoordinator:
    """The group coordinator of an embedded broker.

    It serves requests while its ``async with`` block runs; pending ones get NOT_COORDINATOR at its end.

    Args:
        now: A monotonic clock in seconds, for members' sessions.
        now_ms: Calendar time in ms since the epoch, for stored records.
        new_id: Returns the random part of a member's id.
    """

    def __init__(
        self,
        group_log: OffsetsTopic,
        *,
        settings: CoordinatorSettings,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self.settings = settings
        self._log = group_log
        self._now = now
        self._now_ms = now_ms
        self._new_id = new_id
        self._initial_delay_s = settings.initial_rebalance_delay_ms / 1000
        self._journal = Journal(offset_version=settings.offset_version, group_version=settings.group_version)
        self._entries: dict[str, _Entry] = {}
        self._partitions: int | None = None
        """Number of partitions of the log when the first was loaded: a group's partition must not change."""
        self._owned: set[int] = set()
        self._loading: set[int] = set()
        self._making = False
        self._tickets = itertools.count(1)
        self._joins = PendingResponses[JoinResult]()
        self._syncs = PendingResponses[SyncResult]()
        self._next_check = math.inf
        """Time at which deadlines are checked next; a group's deadline may have been postponed meanwhile."""
        self._rearm = asyncio.Event()
        self._active = False
        self._tasks = asyncio.TaskGroup()
        self._standing: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] = lambda: None
        self._unsubscribe_markers: Callable[[], None] = lambda: None
        self._undecided: dict[tuple[int, int], list[_Undecided]] = {}
        """Positions of open transactions, by partition of the log and producer id."""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._unsubscribe = self._log.subscribe(self._on_topics)
        self._unsubscribe_markers = self._log.subscribe_markers(self._on_marker)
        self._active = True
        self._load_new_partitions()
        self._standing = [
            self._tasks.create_task(self._run_timers(), name="group-timers"),
            self._tasks.create_task(self._run_expiry(), name="offset-expiry"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._active = False
        self._unsubscribe()
        self._unsubscribe_markers()
        for task in self._standing:
            task.cancel()
        for entry in self._entries.values():
            self._carry_out(entry, entry.group.kill())
        # an error of the block is raised unchanged, outside of any group; a cancellation is passed to the group. Writes
        # in progress are waited for, as long as the disk takes.
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        await self._tasks.__aexit__(*((kind, error, traceback) if cancelled else (None, None, None)))

    # -- finding a group

    def find(self, group_id: str) -> BrokerId | ErrorCode:
        """Return the id of the broker that coordinates a group now, or COORDINATOR_NOT_AVAILABLE.

        The first call creates the topic ``__consumer_offsets`` and returns the error, so that the client tries again.
        """
        partition = self._partition(group_id)
        if self._active and self._log.partitions is None and not self._making:
            self._making = True
            self._tasks.create_task(self._make_log(), name="make-offsets-topic")
        leader = self._log.leader(partition) if self._active and partition is not None else None
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if leader is None else leader

    def _check(self, group_id: str) -> ErrorCode:
        """Return NONE if a group's requests can be handled now."""
        partition = self._partition(group_id)
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE if partition in self._owned else ErrorCode.NOT_COORDINATOR

    def _partition(self, group_id: str) -> int | None:
        return None if self._partitions is None else partition_of(group_id, self._partitions)

    def _get(self, group_id: str) -> _Entry | ErrorCode:
        """Return a group, or the error if it is missing or not available now."""
        error = self._check(group_id)
        if error is not ErrorCode.NONE:
            return error
        return self._entries.get(group_id, ErrorCode.UNKNOWN_MEMBER_ID)

    # -- members

    async def join(
        self,
        group_id: str,
        *,
        member_id: str,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocol_type: str,
        protocols: Sequence[Protocol],
        hangup: Hangup,
    ) -> JoinResult:
        """Handle a JoinGroup: add a member, wait until all have joined, return the response.

        The wait ends at the latest after the longest of the members' rebalance timeouts, or when the client disconnects
        (``hangup``).
        """
        error = self._check(group_id) if group_id or not self._active else ErrorCode.INVALID_GROUP_ID
        shortest, longest = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        if error is ErrorCode.NONE and not shortest <= session_timeout_ms <= longest:
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        if error is ErrorCode.NONE and group_id not in self._entries and member_id != UNKNOWN_MEMBER:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        new_member_id = member_id
        if error is ErrorCode.NONE and member_id == UNKNOWN_MEMBER:
            new_member_id = f"{client_id}-{self._new_id()}"
        if error is ErrorCode.NONE and len(new_member_id.encode()) > _STRING_BYTES:
            error = ErrorCode.INVALID_REQUEST  # the client id is too long to form a member id
        if error is not ErrorCode.NONE:
            return JoinResult(error=error, member_id=member_id)
        entry = self._entry(group_id)
        ticket = Ticket(next(self._tickets))
        request = Join(
            ticket=ticket,
            member_id=member_id,
            new_member_id=new_member_id,
            client_id=client_id,
            client_host=client_host,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=tuple(protocols),
        )
        lost = JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=member_id)

        def start() -> None:
            self._carry_out(entry, entry.group.join(request, self._now()))

        return await self._joins.wait(ticket, start, hangup, lost)

    async def sync(
        self, group_id: str, *, member_id: str, generation: int, assignment: Mapping[str, bytes], hangup: Hangup
    ) -> SyncResult:
        """Handle a SyncGroup: wait for the leader's assignment, and return the member's part.

        The wait also ends, with an error in the result, when the leader's session expires or the client disconnects
        (``hangup``).
        """
        entry = self._get(group_id)
        if isinstance(entry, ErrorCode):
            return SyncResult(error=entry)
        ticket = Ticket(next(self._tickets))

        def start() -> None:
            self._carry_out(entry, entry.group.sync(ticket, member_id, generation, assignment, self._now()))

        return await self._syncs.wait(ticket, start, hangup, SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID))

    def heartbeat(self, group_id: str, *, member_id: str, generation: int) -> ErrorCode:
        """Handle a Heartbeat: restart the member's session timeout, and return an error code.

        The code is NONE for success. It is also NONE while the group is being read from ``__consumer_offsets``, because
        members would join again after an error.
        """
        entry = self._get(group_id)
        if isinstance(entry, ErrorCode):
            return ErrorCode.NONE if entry is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else entry
        return entry.group.heartbeat(member_id, generation, self._now())

    def leave(self, group_id: str, *, member_id: str) -> ErrorCode:
        """Remove a member from a group; return an error code, NONE for success."""
        entry = self._get(group_id)
        if isinstance(entry, ErrorCode):
            return entry
        error, effects = entry.group.leave(member_id, self._now())
        self._carry_out(entry, effects)
        return error

    def describe(self, group_id: str) -> tuple[ErrorCode, GroupDescription]:
        """Return an error code (NONE for success), and the description of a group.

        A group that does not exist has the state DEAD, without error.
        """
        error = self._check(group_id)
        entry = self._entries.get(group_id)
        return error, NO_DESCRIPTION if error is not ErrorCode.NONE or entry is None else entry.group.describe()

    def groups(self) -> tuple[ErrorCode, Sequence[tuple[str, str]]]:
        """Return an error code, and the ids of all groups with their protocol types.

        The code is COORDINATOR_LOAD_IN_PROGRESS (14) while some groups may be missing.
        """
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._loading else ErrorCode.NONE
        return error, [(group_id, entry.group.protocol_type) for group_id, entry in sorted(self._entries.items())]

    # -- positions

    async def commit(
        self, group_id: str, *, member_id: str, generation: int, positions: Mapping[TopicPartition, CoordinatedPosition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Store positions of a group; return each partition's error code, NONE for success.

        The positions are written to ``__consumer_offsets``, which takes as long as the disk, and then kept in memory.
        """
        error = self._check(group_id)
        if error is ErrorCode.NONE and group_id not in self._entries and generation >= 0:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.NONE:
            entry = self._entry(group_id)
            error = entry.group.admit_commit(member_id, generation, self._now())
            if error is ErrorCode.NONE:
                entry.pending.update(positions.keys())  # keeps the group from being forgotten
                # shielded: written positions are remembered even if the client has disconnected
                storing = self._tasks.create_task(self._store_positions(entry, positions), name="commit")
                return await asyncio.shield(storing)
        return dict.fromkeys(positions, error)

    def positions(self, group_id: str) -> tuple[ErrorCode, Mapping[TopicPartition, CoordinatedPosition]]:
        """Return an error code (NONE for success), and a group's committed positions.

        A group without positions has an empty mapping, without error.
        """
        error = self._check(group_id)
        entry = self._entries.get(group_id)
        return error, {} if error is not ErrorCode.NONE or entry is None else entry.positions.all

    async def _store_positions(
        self, entry: _Entry, positions: Mapping[TopicPartition, CoordinatedPosition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        limit = self.settings.max_metadata_characters
        fitting = {partition: one for partition, one in positions.items() if len(one.metadata) <= limit}
        errors = dict.fromkeys(positions, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        if fitting:
            group_id, now_ms = entry.group.group_id, self._now_ms()
            records = [self._journal.position(group_id, partition, one, now_ms) for partition, one in fitting.items()]
            error, base = await self._append(group_id, records, too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            if error is ErrorCode.NONE:
                for partition, one in fitting.items():
                    entry.positions.keep(partition, one, base)
            errors.update(dict.fromkeys(fitting, error))
        entry.pending.subtract(positions.keys())
        entry.pending = +entry.pending  # removes zero counts
        return errors

    def partition_of_offsets(self, group_id: str) -> TopicPartition:
        """Return the partition of ``__consumer_offsets`` that has a group's positions, even before the topic exists."""
        count = self._partitions or self._log.partitions or self.settings.offsets_topic_partitions
        return TopicPartition.modern(OFFSETS_TOPIC, partition_of(group_id, count))

    async def commit_in_transaction(
        self,
        group_id: str,
        *,
        producer_id: int,
        epoch: int,
        member_id: str,
        generation: int,
        positions: Mapping[TopicPartition, CoordinatedPosition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Store positions that count when the producer's transaction is committed; return error codes.

        With a member id, the member must be one of the present generation.
        """
        error = self._check(group_id)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(positions, error)
        entry = self._entry(group_id)
        if member_id or generation >= 0:
            error = entry.group.admit_commit(member_id, generation, self._now())
        if error is not ErrorCode.NONE:
            return dict.fromkeys(positions, error)
        entry.pending.update(positions.keys())
        storing = self._tasks.create_task(
            self._store_undecided(entry, positions, producer_id, epoch), name="commit in a transaction"
        )
        return await asyncio.shield(storing)

    async def _store_undecided(
        self, entry: _Entry, positions: Mapping[TopicPartition, CoordinatedPosition], producer_id: int, epoch: int
    ) -> Mapping[TopicPartition, ErrorCode]:
        limit = self.settings.max_metadata_characters
        fitting = {partition: one for partition, one in positions.items() if len(one.metadata) <= limit}
        errors = dict.fromkeys(positions, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        kept: list[_Undecided] = []
        number = self._partition(entry.group.group_id)
        if fitting and number is not None:
            group_id, now_ms = entry.group.group_id, self._now_ms()
            records = [self._journal.position(group_id, partition, one, now_ms) for partition, one in fitting.items()]
            error = ErrorCode.NONE
            try:
                base = await self._log.append_in_transaction(number, records, producer_id, epoch)
                kept = [
                    _Undecided(entry, partition, one, base + row)
                    for row, (partition, one) in enumerate(fitting.items())
                ]
                self._undecided.setdefault((number, producer_id), []).extend(kept)
            except StaleEpoch:
                error = ErrorCode.INVALID_PRODUCER_EPOCH
            except (NotWritten, LogError) as failure:
                log.warning("group_log_failing", group=group_id, error=str(failure))
                error = ErrorCode.NOT_COORDINATOR
            errors.update(dict.fromkeys(fitting, error))
        entry.pending.subtract(positions.keys())
        entry.pending.update(one.partition for one in kept)  # until the transaction has ended
        entry.pending = +entry.pending
        return errors

    def _on_marker(self, where: TopicPartition, marker: Marker) -> None:
        """Keep, or forget, the positions of a transaction that has ended."""
        if where.topic != OFFSETS_TOPIC:
            return
        for one in self._undecided.pop((where.partition.number, marker.producer_id), ()):
            if marker.commit:
                one.entry.positions.keep(one.partition, one.position, one.log_offset)
            one.entry.pending.subtract((one.partition,))
            one.entry.pending = +one.entry.pending

    # -- effects and time

    def _entry(self, group_id: str) -> _Entry:
        if group_id not in self._entries:
            self._entries[group_id] = _Entry(CoordinatedGroup(group_id, initial_delay_s=self._initial_delay_s))
        return self._entries[group_id]

    def _carry_out(self, entry: _Entry, effects: Iterable[Effect]) -> None:
        """Send responses, begin writes, and check deadlines earlier if the group's is earlier now."""
        for effect in effects:
            match effect:
                case Joined(ticket, joined):
                    self._joins.respond(ticket, joined)
                case Synced(ticket, synced):
                    self._syncs.respond(ticket, synced)
                case Store():
                    self._tasks.create_task(self._store_group(entry, effect), name="store-group")
        if entry.group.deadline < self._next_check:
            self._rearm.set()

    async def _store_group(self, entry: _Entry, store: Store) -> None:
        group = entry.group
        record = self._journal.group(group.group_id, store.group, self._now_ms())
        error, _ = await self._append(group.group_id, [record], too_large=ErrorCode.UNKNOWN_SERVER_ERROR)
        if error is not ErrorCode.NONE:
            log.warning("group_not_stored", group=group.group_id, generation=store.group.generation, error=error.name)
        elif store.group.members:
            log.info("group_stable", group=group.group_id, generation=store.group.generation)
        self._carry_out(entry, group.stored(store.group.generation, store.assignment, error, self._now()))

    async def _append(
        self, group_id: str, records: Sequence[NewRecord], *, too_large: ErrorCode
    ) -> tuple[ErrorCode, int]:
        """Write a group's records; return the client's error code and the first offset."""
        partition = self._partition(group_id)
        if partition is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1
        try:
            return ErrorCode.NONE, await self._log.append(partition, records)
        except NoLog:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1
        except StateTooLarge:
            return too_large, -1
        except NotWritten as error:
            log.warning("group_log_failing", group=group_id, error=str(error))
            return ErrorCode.NOT_COORDINATOR, -1

    async def _run_timers(self) -> None:
        """Remove members and end barriers when their time is over. Runs until cancelled."""
        while True:
            self._rearm.clear()
            now = self._now()
            for entry in self._entries.values():
                if entry.group.deadline <= now:
                    self._carry_out(entry, entry.group.expire(now))
            self._next_check = min((entry.group.deadline for entry in self._entries.values()), default=math.inf)
            with contextlib.suppress(TimeoutError):
                async with timeout(None if math.isinf(self._next_check) else self._next_check - now):
                    await self._rearm.wait()

    # -- expiry

    async def _run_expiry(self) -> None:
        while True:
            await asyncio.sleep(self.settings.offsets_check_interval_s)
            for entry in tuple(self._entries.values()):
                await self._forget(entry, entry.positions.expired(self._now_ms()))

    async def _forget(self, entry: _Entry, partitions: Iterable[TopicPartition]) -> None:
        """Delete positions, and an empty group too; write tombstones for both."""
        group, now_ms = entry.group, self._now_ms()
        tombstones = []
        for partition in partitions:
            if not entry.pending[partition]:  # otherwise it is being committed again
                entry.positions.forget(partition)
                tombstones.append(self._journal.position_end(group.group_id, partition, now_ms))
        if entry.forgettable and self._entries.get(group.group_id) is entry:
            self._carry_out(entry, group.kill())
            del self._entries[group.group_id]
            log.info("group_forgotten", group=group.group_id)
            if group.generation > 0:
                tombstones.append(self._journal.group_end(group.group_id, now_ms))
        if tombstones:
            # a tombstone that is not written is written after the next start, when the positions expire again
            await self._append(group.group_id, tombstones, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)

    # -- creating and reading the log

    async def _make_log(self) -> None:
        try:
            await self._log.make()
        except ConsumerdError as error:
            log.warning("offsets_topic_not_made", error=str(error))
        finally:
            self._making = False

    def _on_topics(self, changed: frozenset[str]) -> None:
        if OFFSETS_TOPIC in changed:
            self._drop_closed_partitions()
            self._load_new_partitions()
        gone = frozenset(topic for topic in changed if not self._log.knows(topic))
        for entry in tuple(self._entries.values()):
            if positions := entry.positions.of_topics(gone):
                self._tasks.create_task(self._forget(entry, positions), name="forget-positions")

    def _drop_closed_partitions(self) -> None:
        """Drop the groups whose partition of the log is deleted, or led by another broker."""
        self._owned = {partition for partition in self._owned if self._log.is_open(partition)}
        self._undecided = {key: kept for key, kept in self._undecided.items() if key[0] in self._owned}
        for group_id, entry in tuple(self._entries.items()):
            if self._partition(group_id) not in self._owned:
                self._carry_out(entry, entry.group.kill())
                del self._entries[group_id]
        if not self._owned | self._loading:
            self._partitions = None

    def _load_new_partitions(self) -> None:
        partitions = self._log.partitions
        if self._partitions is None:
            self._partitions = partitions
        for partition in range(self._partitions or 0):
            if partition not in self._owned | self._loading and self._log.is_open(partition):
                self._loading.add(partition)
                self._tasks.create_task(self._load(partition), name=f"load-groups-{partition}")

    async def _load(self, partition: int) -> None:
        replay = None
        epoch = self._log.leader_epoch(partition)
        with contextlib.suppress(NotWritten):
            replay = await self._log.replay(partition)
        self._loading.discard(partition)
        # deleted and perhaps re-created meanwhile, or led by another broker that may have written to it
        if replay is None or self._log.leader_epoch(partition) != epoch:
            self._drop_closed_partitions()
            self._load_new_partitions()
            return
        self._restore(replay)
        self._restore_undecided(partition, replay)
        self._owned.add(partition)
        log.info("groups_loaded", partition=partition, groups=len(replay.group_ids()))

    def _restore_undecided(self, partition: int, replay: JournalReplay) -> None:
        for producer_id in replay.undecided:
            for group_id, where, position, log_offset in replay.undecided_positions(producer_id):
                entry = self._entry(group_id)
                entry.pending.update((where,))
                kept = self._undecided.setdefault((partition, producer_id), [])
                kept.append(_Undecided(entry, where, position, log_offset))

    def _restore(self, replay: JournalReplay) -> None:
        for group_id, stored in replay.group_ids().items():
            group = (
                CoordinatedGroup(group_id, initial_delay_s=self._initial_delay_s)
                if stored is None
                else CoordinatedGroup.restore(group_id, stored, self._now(), initial_delay_s=self._initial_delay_s)
            )
            entry = _Entry(group, replay.positions.get(group_id, Positions()))
            self._entries[group_id] = entry
            self._carry_out(entry, ())
