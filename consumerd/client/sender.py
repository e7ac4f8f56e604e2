# SPDX-License-Identifier: Apache-2.0
"""Sends what an accumulator holds: which batches now, to whom, what follows from the answer.

Order. A partition has one batch in flight; one that failed and may be sent again stays its partition's first, so that
no later batch is sent before it is acknowledged, over any number of changes of the leader. A batch whose outcome is
unknown (its connection broke, or was given up) is sent again over another connection. Then its records may stand twice
in the log, and the second copy may stand behind later records:

    1. Batch A is sent over connection 1. The broker's thread hangs; the request is given up after a while.
    2. A is sent again over connection 2 and acknowledged, then batch B. The log holds A, B.
    3. The broker's thread goes on and appends what it had received over connection 1. The log holds A, B, A.

Only a broker that knows sequence numbers (idempotent produce, 0.11) could refuse step 3; they are not used. The first
copies of records are in order in any case.

Time. A batch is tried again until ``delivery_timeout_s`` after its first record came. The attempt that is under way
then is waited for, ``request_timeout_s`` at most: its answer is still the truth. An attempt that is given up takes its
connection along.

A batch that the broker refuses for what may be one of its records (too large, a time that the topic does not take) is
cut in two, down to that record, which fails alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout
from consumerd.client.accumulator import Accumulator, Batch, Written
from consumerd.client.partitioner import Partitioner
from consumerd.client.produce_handler import ProduceConnections
from consumerd.client.producer_hooks import EventHandler, OutgoingBatch, ProducerHooks
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.room import Room
from consumerd.client.topics import TopicDirectory
from consumerd.cluster.view import Broker
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    DeliveryTimedOut,
    ProduceError,
    ProtocolError,
    RemoteProtocolError,
    RequestTimedOut,
    WriteRefused,
)
from consumerd.model import BrokerId, TopicPartition
from consumerd.telemetry.wording import counted
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.building import NewRecord

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

_OF_ONE_RECORD: Final = _TOO_LARGE | {ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD}
"""Codes that a single record can bring upon its batch, which holds those of other callers."""

_NOTHING: Final = Written(base_offset=None)
"""The outcome of a batch of which hooks have left nothing."""


class ProduceSender:
    """Drives batches to their outcome while :meth:`run` runs."""

    def __init__(
        self,
        accumulator: Accumulator,
        room: Room,
        directory: TopicDirectory,
        connections: ProduceConnections,
        handler: EventHandler,
        partitioner: Partitioner,
        hooks: ProducerHooks,
        settings: ProducerSettings,
        *,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._accumulator = accumulator
        self._room = room
        self._directory = directory
        self._connections = connections
        self._handler = handler
        self._partitioner = partitioner
        self._hooks = hooks
        self._changes = _changes_records(hooks)
        self._settings = settings
        self._now = now
        self._random = random
        self._wanted = asyncio.Event()
        self._in_flight: dict[BrokerId, int] = defaultdict(int)
        self._backoffs: dict[TopicPartition, Backoff] = {}
        self._failing: dict[TopicPartition, int] = {}
        """Partitions that were told of in the log, and how many of their records were given up since."""
        self.requests = 0
        self.retries = 0
        self.written_records = 0
        self.written_bytes = 0
        self.failed_records = 0
        self._log = structlog.get_logger(__name__)

    def wake(self) -> None:
        """Look again at what may be sent."""
        self._wanted.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as requests:
            while True:
                self._wanted.clear()
                rest_s = self._start_due(requests) - self._now()
                with contextlib.suppress(TimeoutError):
                    async with timeout(None if rest_s == math.inf else max(rest_s, 0.0)):
                        await self._wanted.wait()

    # -- which batches, and when

    def _start_due(self, requests: asyncio.TaskGroup) -> float:
        """Begin to send what is due, and return when to look again at the latest."""
        now = self._now()
        look_again = math.inf
        ready: dict[Broker, list[Batch]] = defaultdict(list)
        for batch in list(self._accumulator.waiting()):
            due = self._accumulator.due_at(batch)
            expires = batch.created + self._settings.delivery_timeout_s
            if expires <= now:
                self._expire(batch)
                look_again = now  # those behind it are now the first
            elif due > now:
                look_again = min(look_again, due, expires)
            elif (leader := self._find_leader(batch)) is None:
                look_again = min(look_again, now + self._settings.retry_backoff_s, expires)
            else:
                ready[leader].append(batch)
        for leader, batches in ready.items():
            while batches and self._in_flight[leader.id] < self._settings.max_in_flight:
                self._start(requests, leader, self._take(batches))
        return look_again

    def _find_leader(self, batch: Batch) -> Broker | None:
        """Return whom to send to now; None while there is nobody, or one that cannot be reached."""
        leader = self._directory.find_leader(batch.partition)
        if leader is None:
            self._directory.request_refresh(f"no leader of {batch.partition}")
        elif self._connections.waits_s(leader) > self._settings.retry_backoff_s:
            # its partitions are perhaps led by another one by now
            self._directory.request_refresh(f"broker {leader} is not reached")
            return None
        return leader

    def _take(self, batches: list[Batch]) -> list[Batch]:
        """Take as many as a request may hold; the first one in any case."""
        taken: list[Batch] = []
        size = 0
        while batches and (not taken or size + batches[0].size_bytes <= self._settings.max_request_bytes):
            batch = batches.pop(0)
            self._accumulator.take(batch)
            size += batch.size_bytes
            taken.append(batch)
            if batch.attempts == 1:
                self._partitioner.batch_closed(batch.partition.topic, batch.partition.partition.number)
                if self._changes:
                    _apply_hooks(self._hooks, batch)
        return taken

    # -- one request

    def _start(self, requests: asyncio.TaskGroup, leader: Broker, batches: list[Batch]) -> None:
        self._in_flight[leader.id] += 1
        self.requests += 1
        requests.create_task(self._send(leader, batches), name=f"produce to broker {leader.id}")

    async def _send(self, leader: Broker, batches: Sequence[Batch]) -> None:
        outgoing = [OutgoingBatch(partition=one.partition, records=one.to_send) for one in batches if one.to_send]
        outcomes: Mapping[TopicPartition, Written | ConsumerdError] = {}
        failure: ConsumerdError | None = None
        try:
            if outgoing:
                async with timeout(self._settings.delivery_timeout_s):
                    outcomes = await self._handler.handle(leader, outgoing)
        except TimeoutError:
            failure = RequestTimedOut(
                f"broker {leader}: no acknowledgement within {self._settings.delivery_timeout_s:g} s"
            )
        except (ConnectionLost, ProtocolError) as error:
            failure = error
        finally:
            self._in_flight[leader.id] -= 1
        for batch in batches:
            if not batch.to_send:
                self._finish(batch, _NOTHING)
                continue
            outcome = outcomes.get(batch.partition, failure)
            if outcome is None:
                outcome = ConnectionLost(f"broker {leader}: {batch.partition} is missing from the answer")
            self._conclude(batch, outcome)
        self._room.serve()
        self.wake()

    # -- what follows

    def _conclude(self, batch: Batch, outcome: Written | ConsumerdError) -> None:
        if isinstance(outcome, Written):
            self._note_recovery(batch.partition)
            self._finish(batch, outcome)
        elif isinstance(outcome, BrokerError) and outcome.code in _OF_ONE_RECORD and len(batch.to_send) > 1:
            self._accumulator.split(batch, self._now())
        elif _may_pass(outcome):
            self._try_again(batch, outcome)
        else:
            self._finish(batch, _refusal(batch, outcome))

    def _try_again(self, batch: Batch, failure: ConsumerdError) -> None:
        partition = batch.partition
        backoff = self._backoffs.get(partition)
        if backoff is None:
            self._note_trouble(partition, failure)
            backoff = self._backoffs[partition] = Backoff(
                initial_s=self._settings.retry_backoff_s,
                maximum_s=self._settings.retry_backoff_max_s,
                random=self._random,
            )
        self.retries += 1
        self._accumulator.put_back(batch, failure, self._now() + backoff.next())
        if isinstance(failure, ConnectionLost) or (isinstance(failure, BrokerError) and failure.refresh):
            self._directory.request_refresh(f"Produce: {failure}")

    def _expire(self, batch: Batch) -> None:
        self._finish(batch, _lateness(batch, self._settings.delivery_timeout_s))
        self._room.serve()

    def _finish(self, batch: Batch, outcome: Written | ProduceError) -> None:
        sent = self._settle(batch, outcome)
        self._hooks.after_sending(batch.partition, sent, outcome)

    def _settle(self, batch: Batch, outcome: Written | ProduceError) -> Sequence[NewRecord]:
        """Fix a batch's outcome, and return what was sent, or would have been."""
        sent = batch.to_send
        if isinstance(outcome, Written):
            self.written_records += len(sent)
            self.written_bytes += batch.size_bytes if sent else 0
        else:
            self.failed_records += len(sent)
            self._backoffs.pop(batch.partition, None)
            self._note_loss(batch, outcome)
        self._accumulator.finish(batch, outcome)
        return sent

    def give_up(self, explain: Callable[[Batch], ProduceError]) -> None:
        """Settle everything that is left, oldest first, for the end; requests under way must have been cancelled.

        Everything is settled before the first hook is called: one that fails leaves nobody waiting.
        """
        settled = []
        for batch in self._accumulator.unfinished():
            outcome = explain(batch)
            settled.append((batch.partition, self._settle(batch, outcome), outcome))
        for partition, sent, outcome in settled:
            self._hooks.after_sending(partition, sent, outcome)

    # -- what is logged: the first of a partition's failures, the first of its losses, and their end

    def _note_trouble(self, partition: TopicPartition, failure: ConsumerdError) -> None:
        if partition not in self._failing:
            self._failing[partition] = 0
            self._log.warning(
                "produce_failed", topic=partition.topic, partition=str(partition.partition), reason=str(failure)
            )

    def _note_loss(self, batch: Batch, failure: ConsumerdError) -> None:
        partition, count = batch.partition, len(batch.to_send)
        before = self._failing.get(partition, 0)
        self._failing[partition] = before + count
        if not before:
            self._log.warning(
                "records_not_delivered",
                topic=partition.topic,
                partition=str(partition.partition),
                records=count,
                reason=str(failure),
            )

    def _note_recovery(self, partition: TopicPartition) -> None:
        self._backoffs.pop(partition, None)
        if (lost := self._failing.pop(partition, None)) is not None:
            self._log.info(
                "produce_recovered",
                topic=partition.topic,
                partition=str(partition.partition),
                records_not_delivered=lost,
            )


def _may_pass(failure: ConsumerdError) -> bool:
    """Whether sending again can help; after an answer that cannot be read nobody knows what the broker has done."""
    return isinstance(failure, (ConnectionLost, RemoteProtocolError)) or (
        isinstance(failure, BrokerError) and failure.retriable
    )


def _refusal(batch: Batch, failure: ConsumerdError) -> WriteRefused:
    what = counted(len(batch.to_send), "record")
    advice = "sending again does not help"
    if isinstance(failure, BrokerError) and failure.code in _TOO_LARGE:
        advice = (
            f"the record has about {batch.size_bytes} bytes: raise the broker's message.max.bytes, or the topic's "
            "max.message.bytes, or write smaller records"
        )
    refused = WriteRefused(f"{batch.partition}: {what} not written: {failure}; {advice}", partition=batch.partition)
    refused.__cause__ = failure
    return refused


def _lateness(batch: Batch, timeout_s: float) -> DeliveryTimedOut:
    what = counted(len(batch.to_send), "record")
    if batch.last_failure is None:
        last = "not sent: the partition had no leader that could be reached"
    else:
        last = f"tried {batch.attempts} times, last: {batch.last_failure}; they may have been written"
    late = DeliveryTimedOut(
        f"{batch.partition}: {what} not acknowledged within {timeout_s:g} s: {last}. Look at the brokers (consumerd topics "
        "--partitions), or raise delivery_timeout_s",
        partition=batch.partition,
    )
    late.__cause__ = batch.last_failure
    return late


# -- hooks


def _changes_records(hooks: ProducerHooks) -> bool:
    kind = type(hooks)
    return (
        kind.after_dequeuing is not ProducerHooks.after_dequeuing
        or kind.before_sending is not ProducerHooks.before_sending
    )


def _apply_hooks(hooks: ProducerHooks, batch: Batch) -> None:
    """Let hooks say what is sent in the place of a batch's records, and note where each of those stands then."""
    dequeued: list[NewRecord] = []
    origins: dict[int, int] = {}
    for index, record in enumerate(batch.records):
        for one in hooks.after_dequeuing(batch.partition, record):
            origins[id(one)] = index
            dequeued.append(one)
    batch.to_send = list(hooks.before_sending(batch.partition, dequeued))
    places: list[int | None] = [None] * len(batch.records)
    for place, one in enumerate(batch.to_send):
        origin = origins.get(id(one))
        if origin is not None:
            places[origin] = place
    batch.places = places
