# SPDX-License-Identifier: Apache-2.0
"""The transaction coordinator: transactional ids, their transactions, and markers.

``transaction.CoordinatedTransaction`` makes the decisions; this module stores them in ``__transaction_state``, writes
markers and ends transactions that are open for too long. It runs on one event loop; an id whose state is being stored
answers CONCURRENT_TRANSACTIONS (51) meanwhile, as in Kafka.

An id belongs to one partition of the topic, and the leader of that partition coordinates it. As all brokers of a
process share the logs, the coordinator writes the markers itself, also into partitions that another broker leads.

Source: Kafka's ``TransactionCoordinator.scala`` and ``TransactionStateManager.scala`` of 1.1.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import structlog

from consumerd.embedded.appending import Appender, Marker
from consumerd.embedded.coordinator.journal import partition_of
from consumerd.embedded.coordinator.state_topic import NotWritten, StateTopic
from consumerd.embedded.coordinator.transaction import CoordinatedTransaction
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.topics import TRANSACTIONS_TOPIC, Topics
from consumerd.errors import ConsumerdError, CoordinationError, CorruptMessageError
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.transaction_topic import (
    TransactionKey,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from consumerd.wire.modern.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from consumerd.wire.records import NewRecord, Record

_PARTITIONS: Final = 4
"""Partitions of ``__transaction_state``. Kafka's 50 are many for one node on a laptop."""
_SEGMENT_BYTES: Final = 100 << 20
MAX_TIMEOUT_MS: Final = 15 * 60 * 1000
"""Kafka's ``transaction.max.timeout.ms``."""
_CHECK_INTERVAL_S: Final = 0.5
"""Interval in which transactions that are open for too long are looked for, in seconds."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AssignedProducer:
    """Answer to InitProducerId: id and epoch, or an error code."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


@dataclass(slots=True)
class _Entry:
    transaction: CoordinatedTransaction
    is_storing: bool = False
    is_finishing: bool = False


def make_transaction_topic(topics: Topics, appender: Appender) -> StateTopic:
    """Return the topic ``__transaction_state``, which is created on first use."""
    config = {"segment.bytes": str(_SEGMENT_BYTES), "cleanup.policy": "compact"}
    return StateTopic(TRANSACTIONS_TOPIC, topics, appender, partitions_of_new=_PARTITIONS, config=config)


class TransactionCoordinator:
    """The transaction coordinator of an embedded broker; it serves while its ``async with`` block runs.

    Args:
        state: The topic ``__transaction_state``.
        appender: Writes markers.
        find_log: Returns the log of a partition, whichever broker leads it.
        take_id: Returns a new producer id. Raises CoordinationError.
        now_ms: Calendar time in ms since the epoch.
    """

    def __init__(
        self,
        state: StateTopic,
        appender: Appender,
        *,
        find_log: Callable[[TopicPartition], PartitionLog | None],
        take_id: Callable[[], Awaitable[int]],
        now_ms: Callable[[], int],
    ) -> None:
        self._state = state
        self._appender = appender
        self._find_log = find_log
        self._take_id = take_id
        self._now_ms = now_ms
        self._entries: dict[str, _Entry] = {}
        self._partitions: int | None = None
        self._owned: set[int] = set()
        self._loading: set[int] = set()
        self._making = False
        self._active = False
        self._tasks = asyncio.TaskGroup()
        self._timer: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._active = True
        self._unsubscribe = self._state.subscribe(self._on_topics)
        self._load_new_partitions()
        self._timer = self._tasks.create_task(self._run_timer(), name="transaction-timeouts")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._active = False
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        await self._tasks.__aexit__(*((kind, error, traceback) if cancelled else (None, None, None)))

    # -- requests

    def find(self, transactional_id: str) -> BrokerId | ErrorCode:
        """Return the broker that coordinates an id, or COORDINATOR_NOT_AVAILABLE.

        The first call creates the topic ``__transaction_state`` and returns the error, so that the client tries again.
        """
        partition = self._partition(transactional_id)
        if self._active and self._state.partitions is None and not self._making:
            self._making = True
            self._tasks.create_task(self._make_topic(), name="make-transactions-topic")
        leader = self._state.leader(partition) if self._active and partition is not None else None
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if leader is None else leader

    async def init(
        self, transactional_id: str | None, timeout_ms: int, present: tuple[int, int] | None = None
    ) -> AssignedProducer:
        """Handle InitProducerId: return a producer id and epoch, or an error.

        Args:
            timeout_ms: Longest time of the producer's transactions, in ms.
            present: Producer id and epoch that the producer renews; None for a new producer.
        """
        if transactional_id == "":
            return AssignedProducer(ErrorCode.INVALID_REQUEST)
        if transactional_id is not None:
            if (error := self._check(transactional_id)) is not ErrorCode.NONE:
                return AssignedProducer(error)
            if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
                return AssignedProducer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        try:
            fresh_id = await self._take_id()
        except CoordinationError as failure:
            log.warning("producer_id_not_taken", error=str(failure))
            return AssignedProducer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if transactional_id is None:
            return AssignedProducer(ErrorCode.NONE, fresh_id, 0)
        entry = self._entries.setdefault(
            transactional_id, _Entry(CoordinatedTransaction(transactional_id, producer_id=fresh_id))
        )
        transaction = entry.transaction
        answer = AssignedProducer(ErrorCode.CONCURRENT_TRANSACTIONS)

        def renew() -> ErrorCode:
            nonlocal answer
            error = transaction.renew(timeout_ms, present=present, fresh_id=fresh_id)
            # read now: by the time that this is stored and we go on, the next producer may have renewed it again
            answer = AssignedProducer(error, transaction.producer_id, transaction.epoch)
            return error

        error = await self._change(entry, renew, begins_ending=True)
        return answer if error is ErrorCode.NONE else AssignedProducer(error)

    async def add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn: add partitions to the producer's transaction."""
        entry = self._get(transactional_id)
        if isinstance(entry, ErrorCode):
            return entry
        wanted = frozenset(partitions)
        transaction = entry.transaction
        return await self._change(entry, lambda: transaction.add(producer_id, epoch, wanted, self._now_ms()))

    async def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> ErrorCode:
        """Handle EndTxn: return when the outcome is stored; the markers follow."""
        entry = self._get(transactional_id)
        if isinstance(entry, ErrorCode):
            return entry
        transaction = entry.transaction
        return await self._change(entry, lambda: transaction.end(producer_id, epoch, commit=commit))

    def _get(self, transactional_id: str) -> _Entry | ErrorCode:
        error = self._check(transactional_id)
        if error is not ErrorCode.NONE:
            return error
        return self._entries.get(transactional_id, ErrorCode.INVALID_PRODUCER_ID_MAPPING)

    def _check(self, transactional_id: str) -> ErrorCode:
        partition = self._partition(transactional_id)
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE if partition in self._owned else ErrorCode.NOT_COORDINATOR

    def _partition(self, transactional_id: str) -> int | None:
        return None if self._partitions is None else partition_of(transactional_id, self._partitions)

    # -- changes

    async def _change(
        self, entry: _Entry, change: Callable[[], ErrorCode], *, begins_ending: bool = False
    ) -> ErrorCode:
        """Make a change and store it; begin to write markers after a decision."""
        if entry.is_storing:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        was_ending, before = entry.transaction.is_ending, entry.transaction.copy()
        error = change()
        decided = entry.transaction.is_ending and not was_ending
        if error is not ErrorCode.NONE and not (begins_ending and decided):
            return error
        entry.is_storing = True  # at once: before the task begins, another request may come
        # shielded: a stored decision is carried out even if the client has disconnected
        storing = self._tasks.create_task(self._store_change(entry, before, decided=decided), name="store transaction")
        stored = await asyncio.shield(storing)
        return error if stored is ErrorCode.NONE else stored

    async def _store_change(self, entry: _Entry, before: CoordinatedTransaction, *, decided: bool) -> ErrorCode:
        """Store the state; what is not stored has not happened, and is taken back."""
        entry.is_storing = True
        try:
            await self._store(entry)
        except NotWritten as failure:
            self._complain(entry, failure)
            entry.transaction = before
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        finally:
            entry.is_storing = False
        if decided:
            self._start_finishing(entry)
        return ErrorCode.NONE

    def _start_finishing(self, entry: _Entry) -> None:
        if not entry.is_finishing:
            entry.is_finishing = True
            self._tasks.create_task(self._finish(entry), name="write markers")

    async def _store(self, entry: _Entry) -> None:
        """Write the state of an id. Raises NotWritten."""
        transaction, now_ms = entry.transaction, self._now_ms()
        partition = self._partition(transaction.transactional_id)
        if partition is None:
            raise NotWritten(f"{TRANSACTIONS_TOPIC}: the topic is gone")
        record = NewRecord(
            key=encode_transaction_key(TransactionKey(transactional_id=transaction.transactional_id)),
            value=encode_transaction_value(transaction.store(now_ms)),
            timestamp=now_ms,
        )
        await self._state.append(partition, [record])

    async def _finish(self, entry: _Entry) -> None:
        """Write the markers of a decided transaction, and then store that it is complete."""
        transaction = entry.transaction
        marker = Marker(
            producer_id=transaction.producer_id,
            epoch=transaction.epoch,
            commit=transaction.commits,
            time_ms=self._now_ms(),
        )
        try:
            for partition in sorted(transaction.partitions, key=str):
                target = self._find_log(partition)
                if target is not None:  # else the topic was deleted meanwhile
                    await self._appender.append_marker(target, marker)
            transaction.complete()
            await self._store(entry)
        except (NotWritten, LogError) as failure:
            self._complain(entry, failure)  # tried again by the timer
        finally:
            entry.is_finishing = False

    def _complain(self, entry: _Entry, failure: ConsumerdError) -> None:
        log.warning("transaction_log_failing", transactional_id=entry.transaction.transactional_id, error=str(failure))

    async def _run_timer(self) -> None:
        """Abort transactions that are open for longer than their timeout. Runs until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            for entry in tuple(self._entries.values()):
                if entry.transaction.is_ending and not entry.is_storing:
                    self._start_finishing(entry)
                if not entry.is_storing and entry.transaction.is_overdue(self._now_ms()):
                    log.info("transaction_timed_out", transactional_id=entry.transaction.transactional_id)
                    before = entry.transaction.copy()
                    entry.transaction.fence()
                    await self._store_change(entry, before, decided=True)

    # -- creating and reading the topic

    async def _make_topic(self) -> None:
        try:
            await self._state.make()
        except ConsumerdError as error:
            log.warning("transactions_topic_not_made", error=str(error))
        finally:
            self._making = False

    def _on_topics(self, changed: frozenset[str]) -> None:
        if TRANSACTIONS_TOPIC in changed:
            self._drop_closed_partitions()
            self._load_new_partitions()

    def _drop_closed_partitions(self) -> None:
        self._owned = {partition for partition in self._owned if self._state.is_open(partition)}
        self._entries = {one: entry for one, entry in self._entries.items() if self._partition(one) in self._owned}
        if not self._owned | self._loading:
            self._partitions = None

    def _load_new_partitions(self) -> None:
        if self._partitions is None:
            self._partitions = self._state.partitions
        for partition in range(self._partitions or 0):
            if partition not in self._owned | self._loading and self._state.is_open(partition):
                self._loading.add(partition)
                self._tasks.create_task(self._load(partition), name=f"load-transactions-{partition}")

    async def _load(self, partition: int) -> None:
        epoch = self._state.leader_epoch(partition)
        found: dict[str, CoordinatedTransaction] = {}
        is_read = False
        with contextlib.suppress(NotWritten):
            await self._state.read(partition, lambda records: _replay(records, found))
            is_read = True
        self._loading.discard(partition)
        if not is_read or self._state.leader_epoch(partition) != epoch:
            self._drop_closed_partitions()
            self._load_new_partitions()
            return
        for transactional_id, transaction in found.items():
            entry = self._entries[transactional_id] = _Entry(transaction)
            if transaction.is_ending:  # the former coordinator has decided it
                self._start_finishing(entry)
        self._owned.add(partition)


def _replay(records: Sequence[Record], found: dict[str, CoordinatedTransaction]) -> None:
    """Apply records of ``__transaction_state``; those that cannot be decoded are left out."""
    for record in records:
        with contextlib.suppress(CorruptMessageError, ValueError):
            key = decode_transaction_key(record.key).transactional_id
            if record.value is None:
                found.pop(key, None)
            else:
                found[key] = CoordinatedTransaction.restore(key, decode_transaction_value(record.value))
