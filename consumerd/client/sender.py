# SPDX-License-Identifier: Apache-2.0
"""Sender of the producer: order of batches, choice of the broker, retries.

Order
    A partition has at most one batch in flight. A batch that failed and is retried stays the first of its partition, so
    that no later batch is sent before it is acknowledged, even if the leader changes several times. A batch with an
    unknown outcome (its connection broke, or was closed) is sent again over another connection. Its records may then be
    in the log twice, the second time after later records:

    1. Batch A is sent over connection 1. The broker's thread hangs; the request times out.
    2. A is sent again over connection 2 and acknowledged, then batch B. The log contains A, B.
    3. The broker's thread continues, and appends what it had received over connection 1. The log contains A, B, A.

    Only a broker that checks sequence numbers (``enable_idempotence``, 0.11) refuses step 3. The first copies of all
    records are in order in any case.

Sequence numbers
    With idempotence, a batch gets its number on the first attempt, and keeps it until it is finished. Whether it may be
    sent, and what follows an error about numbers, is decided by ``client.producer_state``.

Time
    A batch is retried until ``delivery_timeout_s`` after its first record. An attempt in flight at that time is awaited
    for at most ``request_timeout_s``, since its response still tells the outcome. An attempt that is given up closes
    its connection. If a handler sends several requests for its batches, those that were finished by then keep their
    outcomes, and those that were not begun count as not sent.

Splitting
    If the broker refuses a batch for a fault that may lie in a single record (too large, invalid timestamp), the batch
    is split into halves, repeatedly, until the faulty record is alone and fails alone. Example: of records 0 to 7,
    record 5 has an invalid timestamp. The halves are 0-3 and 4-7, then 4-5 and 6-7, then 4 and 5; only 5 fails.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout, wait_set
from consumerd.client.accumulator import Accumulator, Batch, Written
from consumerd.client.partitioner import Partitioner
from consumerd.client.produce_handler import ProduceConnections
from consumerd.client.producer_hooks import EventHandler, Outcomes, OutgoingBatch, ProducerHooks
from consumerd.client.producer_rules import ProducerRules
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.producer_state import ProducerState, Remedy, Verdict
from consumerd.client.remedies import advise_write
from consumerd.client.room import Room
from consumerd.client.topics import MetadataDirectory
from consumerd.client.transactions import Transactions
from consumerd.cluster.view import Broker
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    DeliveryTimedOut,
    ProduceError,
    ProtocolError,
    RemoteProtocolError,
    RequestNotSent,
    RequestTimedOut,
    TransactionFailed,
    UnknownProducer,
    WriteRefused,
)
from consumerd.model import BrokerId, TopicPartition
from consumerd.telemetry.wording import counted
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.records import NewRecord

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

_OF_ONE_RECORD: Final = _TOO_LARGE | {ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD}
"""Error codes that a single faulty record can cause for its whole batch."""

_NOTHING: Final = Written(base_offset=None)
"""Outcome of a batch from which hooks removed all records."""


class ProduceSender:
    """Sends a producer's batches until each has an outcome, while :meth:`run` runs.

    Retries failed batches, chooses the broker, and keeps the order of each partition.

    Args:
        room: Queue of callers that wait for memory.
        directory: Topics, their partitions and leaders.
        handler: Sends batches once.
        rules: Explains why a batch was not sent.
        now: Monotonic clock, in seconds.
        random: Returns floats in [0, 1), for backoffs.
        transactions: Producer id and transaction; None without idempotence.
        principal: Our identity at the brokers, for advice.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        room: Room,
        directory: MetadataDirectory,
        connections: ProduceConnections,
        handler: EventHandler,
        partitioner: Partitioner,
        hooks: ProducerHooks,
        settings: ProducerSettings,
        *,
        rules: ProducerRules,
        now: Callable[[], float],
        random: Callable[[], float],
        transactions: Transactions | None = None,
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._principal = principal
        self._accumulator = accumulator
        self._transactions = transactions
        self._state = None if transactions is None else transactions.state
        self._rules = rules
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
        """Partitions whose failure was logged, and the number of their records that have failed since."""
        self._known: dict[Batch, Written | ProduceError] = {}
        """Final outcomes of batches whose request was cancelled."""
        self.requests = 0
        self.retries = 0
        self.written_records = 0
        self.written_bytes = 0
        self.failed_records = 0
        self._log = structlog.get_logger(__name__)

    def wake(self) -> None:
        """Make :meth:`run` check again which batches can be sent."""
        self._wanted.set()

    async def run(self) -> None:
        """Send batches until cancelled."""
        async with asyncio.TaskGroup() as requests:
            while True:
                self._wanted.clear()
                await wait_set(self._wanted, self._start_due(requests) - self._now())

    # -- which batches, and when

    def _start_due(self, requests: asyncio.TaskGroup) -> float:
        """Send the batches that are due.

        Returns the time of the next check at the latest.
        """
        now = self._now()
        look_again = math.inf
        ready: dict[Broker, list[Batch]] = defaultdict(list)
        for batch in list(self._accumulator.waiting()):
            due = self._accumulator.due_at(batch)
            expires = batch.created + self._settings.delivery_timeout_s
            verdict = Verdict.SEND if self._state is None else _judge(self._state, batch)
            if expires <= now:
                self._expire(batch)
                look_again = now  # the partition's next batch takes its place
            elif verdict is Verdict.FAIL:
                self._fail_unwritten(batch)
                look_again = now
            elif verdict is Verdict.WAIT:
                look_again = min(look_again, expires)
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
        """Return the leader to send to.

        None if there is none, or if it cannot be reached.
        """
        leader = self._directory.find_leader(batch.partition)
        if leader is None:
            self._directory.request_refresh(f"no leader of {batch.partition}")
        elif self._connections.waits_s(leader) > self._settings.retry_backoff_s:
            # its partitions may have another leader by now
            self._directory.request_refresh(f"broker {leader} is not reached")
            return None
        return leader

    def _take(self, batches: list[Batch]) -> list[Batch]:
        """Take batches for one request: as many as fit into it, but at least one."""
        taken: list[Batch] = []
        size = 0
        while batches and (not taken or size + batches[0].size_bytes <= self._settings.max_request_bytes):
            batch = batches.pop(0)
            self._accumulator.take(batch)
            size += batch.size_bytes
            taken.append(batch)
            if batch.attempts == 1:
                self._partitioner.batch_closed(batch.partition.topic, batch.queue.index)
                if self._changes:
                    _apply_hooks(self._hooks, batch)
            if self._state is not None and batch.sequence is None and batch.to_send:
                batch.sequence = self._state.number(batch.partition, len(batch.to_send))
        return taken

    # -- one request

    def _start(self, requests: asyncio.TaskGroup, leader: Broker, batches: list[Batch]) -> None:
        self._in_flight[leader.id] += 1
        self.requests += 1
        requests.create_task(self._send(leader, batches), name=f"produce to broker {leader.id}")

    async def _send(self, leader: Broker, batches: Sequence[Batch]) -> None:
        outgoing = [
            OutgoingBatch(partition=one.partition, records=one.to_send, sequence=one.sequence)
            for one in batches
            if one.to_send
        ]
        outcomes: Outcomes = {}
        failure: ConsumerdError | None = None
        try:
            if outgoing:
                async with timeout(self._settings.delivery_timeout_s):
                    await self._handler.handle(leader, outgoing, outcomes)
        except TimeoutError:
            failure = RequestTimedOut(
                f"broker {leader}: no acknowledgement within {self._settings.delivery_timeout_s:g} s"
            )
        except (ConnectionLost, ProtocolError) as error:
            failure = error
        except asyncio.CancelledError:
            self._keep_known(batches, outcomes)
            raise
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

    def _keep_known(self, batches: Sequence[Batch], outcomes: Outcomes) -> None:
        """Keep what is known of the batches of a cancelled request, for :meth:`give_up`.

        Their outcomes are not set here, since hooks that raise must not replace the cancellation.
        """
        for batch in batches:
            outcome = outcomes.get(batch.partition)
            if isinstance(outcome, (Written, ProduceError)):
                self._known[batch] = outcome
            elif isinstance(outcome, RequestNotSent):
                self._accumulator.put_back(batch, outcome, self._now())

    # -- what follows

    def _conclude(self, batch: Batch, outcome: Written | ConsumerdError) -> None:
        if isinstance(outcome, BrokerError) and outcome.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            outcome = Written(base_offset=None)  # an earlier attempt has written it
        if isinstance(outcome, Written):
            self._note_recovery(batch.partition)
            self._finish(batch, outcome)
        elif isinstance(outcome, BrokerError) and (remedy := self._find_remedy(batch, outcome)) is not None:
            self._apply_remedy(batch, outcome, remedy)
        elif isinstance(outcome, BrokerError) and outcome.code in _OF_ONE_RECORD and len(batch.to_send) > 1:
            if self._state is not None and batch.sequence is not None:
                self._state.give_back(batch.partition, batch.sequence)
            self._accumulator.split(batch, self._now())
        elif isinstance(outcome, ProduceError):
            self._finish(batch, outcome)
        elif _may_pass(outcome):
            self._try_again(batch, outcome)
        else:
            self._finish(batch, _refusal(batch, outcome, self._principal))

    def _find_remedy(self, batch: Batch, refused: BrokerError) -> Remedy | None:
        """Return the decision on an error about sequence numbers; None for other errors."""
        if self._state is None or batch.sequence is None:
            return None
        log_start = refused.log_start_offset if isinstance(refused, UnknownProducer) else -1
        return self._state.refused(
            batch.partition, batch.sequence, refused.code, in_doubt=batch.in_doubt, log_start_offset=log_start
        )

    def _apply_remedy(self, batch: Batch, refused: BrokerError, remedy: Remedy) -> None:
        if remedy is Remedy.FENCED:
            self._fail_unwritten(batch)
            return
        if remedy is Remedy.GIVE_UP:
            self._finish(batch, _refusal(batch, refused, self._principal))
            return
        in_doubt = batch.in_doubt
        if remedy is Remedy.RENUMBER:
            batch.sequence = None
        self._try_again(batch, refused)
        batch.in_doubt = in_doubt  # this attempt has surely not written it

    def _fail_unwritten(self, batch: Batch) -> None:
        """Fail a batch that is not sent, since its transaction or producer has ended."""
        assert self._state is not None
        failure = self._state.explain_unwritten(batch.partition)
        failure.in_doubt = batch.in_doubt
        self._finish(batch, failure)
        self._room.serve()

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
        unsent = self._rules.explain_unsent(batch.partition)
        if self._state is not None and self._state.last_failure is not None:
            unsent = f"a request for the producer id or the transaction fails: {self._state.last_failure}"
        self._finish(batch, _lateness(batch, self._settings.delivery_timeout_s, unsent, self._principal))
        self._room.serve()

    def _finish(self, batch: Batch, outcome: Written | ProduceError) -> None:
        sent = self._settle(batch, outcome)
        self._hooks.after_sending(batch.partition, sent, outcome)

    def _settle(self, batch: Batch, outcome: Written | ProduceError) -> Sequence[NewRecord]:
        """Set a batch's outcome; returns the records that were sent, or would have been."""
        sent = batch.to_send
        if self._transactions is not None:
            _report(self._transactions, batch, outcome)
        if isinstance(outcome, Written):
            self.written_records += len(sent)
            self.written_bytes += batch.size_bytes if sent else 0
        else:
            self.failed_records += len(sent)
            self._backoffs.pop(batch.partition, None)
            if not isinstance(outcome, TransactionFailed):  # its cause was logged, or the program has aborted it
                self._note_loss(batch, outcome)
        self._accumulator.finish(batch, outcome)
        return sent

    def give_up(self, explain: Callable[[Batch], ProduceError]) -> None:
        """Fail all remaining batches, oldest first, when the producer is closed.

        Requests in flight must have been cancelled. Batches whose outcome was known by then get that one.
        All batches get their outcome before the first hook is called, so that a hook that raises does not leave callers
        waiting.

        Args:
            explain: Returns the error for a batch.
        """
        settled: list[tuple[TopicPartition, Sequence[NewRecord], Written | ProduceError]] = []
        for batch in self._accumulator.unfinished():
            outcome = self._known.pop(batch, None) or explain(batch)
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


def _judge(state: ProducerState, batch: Batch) -> Verdict:
    return state.judge(batch.partition, numbered=batch.sequence is not None)


def _report(transactions: Transactions, batch: Batch, outcome: Written | ProduceError) -> None:
    """Tell the producer's state the outcome of a batch."""
    state = transactions.state
    if isinstance(outcome, Written):
        if batch.sequence is not None and outcome.base_offset is not None:
            state.written(batch.partition, outcome.base_offset + len(batch.to_send) - 1)
        return
    if batch.sequence is None:
        state.doom(outcome)
    else:
        state.lost(batch.partition, batch.sequence, outcome)
    transactions.announce()


def _may_pass(failure: ConsumerdError) -> bool:
    """Return True if a retry can help.

    After a response that cannot be decoded the outcome is unknown, so the batch is retried too.
    """
    return isinstance(failure, (ConnectionLost, RemoteProtocolError)) or (
        isinstance(failure, BrokerError) and failure.retriable
    )


def _refusal(batch: Batch, failure: ConsumerdError, principal: Principal) -> WriteRefused:
    what = counted(len(batch.to_send), "record")
    advice = advise_write(failure, batch.partition.topic, principal) or "sending again does not help"
    if isinstance(failure, BrokerError) and failure.code in _TOO_LARGE:
        advice = (
            f"the record has about {batch.size_bytes} bytes: raise the broker's message.max.bytes, or the topic's "
            "max.message.bytes, or write smaller records"
        )
    refused = WriteRefused(
        f"{batch.partition}: {what} not written: {failure}; {advice}",
        partition=batch.partition,
        in_doubt=batch.in_doubt,  # by an earlier attempt
    )
    refused.__cause__ = failure
    return refused


def _lateness(batch: Batch, timeout_s: float, unsent: str, principal: Principal) -> DeliveryTimedOut:
    what = counted(len(batch.to_send), "record")
    if batch.last_failure is None:
        last = f"not sent: {unsent}"
    else:
        outcome = "they may have been written" if batch.in_doubt else "they were not sent"
        last = f"tried {batch.attempts} times, last: {batch.last_failure}; {outcome}"
    advice = advise_write(batch.last_failure, batch.partition.topic, principal)
    late = DeliveryTimedOut(
        f"{batch.partition}: {what} not acknowledged within {timeout_s:g} s: {last}. "
        f"{f'{advice[0].upper()}{advice[1:]}. ' if advice else ''}"
        "Look at the brokers (consumerd topics --partitions), or raise delivery_timeout_s",
        partition=batch.partition,
        in_doubt=batch.in_doubt,
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
    """Replace a batch's records by those that the hooks return.

    The place of each original record among them is recorded in ``places``.
    """
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
