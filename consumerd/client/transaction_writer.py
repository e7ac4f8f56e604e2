# SPDX-License-Identifier: Apache-2.0
"""Writes encoded record batches to a few partitions in transactions, for one transactional id.

It is the producer's core without what a mirror does not need: records come in whole batches, calls come one after the
other, and no task runs in the background. So a thousand transactional ids take no tasks, and share one pool of
connections and one directory. What may be sent, and what follows an error, is decided by ``client.producer_state``, as
for the producer.

After an error nothing is repaired: the caller makes another :class:`TransactionWriter` with the same id, whose
:meth:`TransactionWriter.init` ends the open transaction, and asks the target what was committed. A call that was
cancelled leaves the writer in an unknown state, which ends in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout
from consumerd.client.accumulator import Written
from consumerd.client.produce_handler import ProduceConnections, ProduceRequests, refuse_write
from consumerd.client.producer_actions import Action, BatchSequence, EndTransaction
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.producer_state import Phase, ProducerState, Remedy, Verdict
from consumerd.client.topics import MetadataDirectory
from consumerd.client.transaction_requests import TransactionRequests
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    CoordinationError,
    DeliveryTimedOut,
    ProduceError,
    ProtocolError,
    RequestTimedOut,
    UnknownProducer,
    WriteRefused,
)
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode

Encode = Callable[[BatchSequence], bytes]
"""Returns a record batch (magic 2) with this producer id, epoch and first sequence number."""

_ENDING_BACKOFF_S: Final = 0.02
"""Initial backoff, in seconds, while the previous transaction ends."""


class TransactionWriter:
    """Writes record batches in transactions. Calls must not overlap.

    Args:
        connections: Pool of connections to the brokers.
        directory: Directory of leaders; the caller lets it follow the topics.
        settings: Settings of a producer with a transactional id.
        random: Returns floats in [0, 1), for backoffs.
        principal: Our identity at the brokers, for advice.
    """

    def __init__(
        self,
        connections: ProduceConnections,
        directory: MetadataDirectory,
        settings: ProducerSettings,
        *,
        random: Callable[[], float],
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._principal = principal
        self._directory = directory
        self._settings = settings
        self._random = random
        self._state = ProducerState(settings.transactional_id)
        self._requests = TransactionRequests(connections, directory, settings, random=random)
        self._produce = ProduceRequests(connections, directory, settings)
        self._busy = False
        self._last_outcome: ConsumerdError | None = None

    @property
    def in_transaction(self) -> bool:
        """True from :meth:`begin` to the end of :meth:`commit`."""
        return self._state.phase is not Phase.READY

    # -- the transaction

    async def init(self) -> None:
        """Get a producer id, which fences earlier producers and ends their transactions.

        When it returns, the last transaction of an earlier producer has its markers in all its partitions. Takes at
        most ``max_block_s``. Raises TransactionFailed, RequestTimedOut.
        """
        self._state.init()
        if not await self._drive(lambda: self._state.phase is Phase.READY):
            raise RequestTimedOut(f"InitProducerId: {self._explain_wait()}") from self._state.last_failure

    def begin(self) -> None:
        """Begin a transaction. Raises TransactionFailed after an error."""
        self._state.begin()

    async def commit(self) -> None:
        """Commit the transaction.

        EndTxn is repeated until it is answered, for ``max_block_s`` at most. Raises TransactionFailed, ProducerFenced;
        DeliveryTimedOut if the outcome is unknown.
        """
        self._state.commit()
        self._state.end()
        if not await self._drive(lambda: self._state.phase is Phase.READY):
            raise DeliveryTimedOut(f"EndTxn: {self._explain_wait()}; the outcome is unknown", in_doubt=True)

    async def abort(self) -> None:
        """Abort the transaction, unless the outcome of one of its batches is unknown.

        In that case a broker may still append the batch, which would hold up readers of committed records for long. So
        the end of the transaction is left to the next producer of this id, or to the coordinator, which both fence
        first. Raises TransactionFailed, ProducerFenced, RequestTimedOut.
        """
        if self._busy or not self._state.may_abort:
            return
        self._state.abort()
        self._state.end()
        if not await self._drive(lambda: self._state.phase is not Phase.ABORTING):
            raise RequestTimedOut(f"EndTxn: {self._explain_wait()}")

    async def _drive(self, reached: Callable[[], bool]) -> bool:
        """Send the requests that the state needs until ``reached``; return False after ``max_block_s``.

        Raises the error that ends the transaction or the producer.
        """
        backoff = self._make_backoff(self._settings.retry_backoff_s)
        ending = self._make_backoff(_ENDING_BACKOFF_S)
        try:
            async with timeout(self._settings.max_block_s):
                while not reached() and self._state.failure is None:
                    action = self._state.next_action()
                    assert action is not None, "a state that waits for nothing"
                    failure = await self._perform(action)
                    if failure is not None:
                        is_ending = isinstance(failure, BrokerError) and (
                            failure.code == ErrorCode.CONCURRENT_TRANSACTIONS
                        )
                        await asyncio.sleep((ending if is_ending else backoff).next())
        except TimeoutError:
            return reached()
        if self._state.failure is not None:
            raise self._state.failure
        return True

    async def _perform(self, action: Action) -> ConsumerdError | None:
        """Send one request; return the failure after which it is to be repeated."""
        self._state.start(action)
        try:
            identity = await self._requests.perform(action, self._state.identity)
        except (BrokerError, ConnectionLost, CoordinationError, ProtocolError) as error:
            if isinstance(error, ConnectionLost) and not isinstance(action, EndTransaction):
                await self._directory.refresh(f"transaction coordinator: {error}")
            return error if self._state.failed(action, error) else None
        if identity is None:
            self._state.succeeded(action)
        else:
            self._state.identified(identity)
        return None

    def _make_backoff(self, initial_s: float) -> Backoff:
        return Backoff(initial_s=initial_s, maximum_s=self._settings.retry_backoff_max_s, random=self._random)

    def _explain_wait(self) -> str:
        last = self._state.last_failure
        return f"no outcome within {self._settings.max_block_s:g} s; last: {'no answer' if last is None else last}"

    # -- batches

    async def add_partitions(self, *partitions: TopicPartition) -> None:
        """Add partitions to the transaction, in one request.

        :meth:`write` adds those that are missing. Raises TransactionFailed, ProducerFenced, RequestTimedOut.
        """
        for partition in partitions:
            self._state.want(partition)
        wanted = set(partitions)

        def are_added() -> bool:
            return all(self._state.judge(one, numbered=False) is Verdict.SEND for one in wanted)

        if not await self._drive(are_added):
            raise RequestTimedOut(f"AddPartitionsToTxn: {self._explain_wait()}") from self._state.last_failure

    async def write(self, partition: TopicPartition, count: int, encode: Encode) -> int:
        """Write a batch; return the offset of its first record.

        All in-sync replicas have it then. A broker that has not answered gets the batch again, and does not
        append it twice. Takes at most ``delivery_timeout_s``.

        Args:
            count: Number of its records.
            encode: Encodes the batch; called again if it needs another sequence number.

        Raises ProducerFenced, TransactionFailed; WriteRefused, of which the cause is a BrokerError, for a batch that
        the broker does not take, after which the transaction may go on; DeliveryTimedOut.
        """
        await self.add_partitions(partition)
        self._busy = True
        try:
            async with timeout(self._settings.delivery_timeout_s):
                written = await self._write(partition, count, encode)
        except TimeoutError:
            last = self._last_outcome
            raise DeliveryTimedOut(
                f"{partition}: no acknowledgement within {self._settings.delivery_timeout_s:g} s; last: "
                f"{'no answer' if last is None else last}",
                partition=partition,
                in_doubt=True,
            ) from last
        self._busy = False
        return written

    async def _write(self, partition: TopicPartition, count: int, encode: Encode) -> int:
        backoff = self._make_backoff(self._settings.retry_backoff_s)
        sequence: BatchSequence | None = None
        self._last_outcome = None
        encoded = b""
        in_doubt = False
        while True:
            if sequence is None:
                sequence = self._state.number(partition, count)
                encoded = encode(sequence)
            outcome = await self._produce.attempt(
                partition, partial(self._produce.send_encoded, partition=partition, encoded=encoded)
            )
            if isinstance(outcome, Written):
                if outcome.base_offset is None:
                    raise self._lose(partition, sequence, "the broker has the batch, and does not say where", None)
                self._state.written(partition, outcome.base_offset + count - 1)
                return outcome.base_offset
            self._last_outcome = outcome
            if isinstance(outcome, BrokerError):
                log_start = outcome.log_start_offset if isinstance(outcome, UnknownProducer) else -1
                remedy = self._state.refused(
                    partition, sequence, outcome.code, in_doubt=in_doubt, log_start_offset=log_start
                )
                if remedy is Remedy.FENCED:
                    assert self._state.failure is not None
                    raise self._state.failure
                if remedy is Remedy.GIVE_UP:
                    raise self._lose(partition, sequence, str(outcome), outcome)
                if remedy is Remedy.RENUMBER:
                    sequence = None
                elif remedy is None and not outcome.retriable:
                    raise self._refuse(partition, sequence, outcome, in_doubt=in_doubt)
                else:
                    in_doubt = in_doubt or remedy is None
                if outcome.refresh:
                    await self._directory.refresh(f"leader of {partition}: {outcome}")
            else:
                in_doubt = True
                await self._directory.refresh(f"leader of {partition}: {outcome}")
            await asyncio.sleep(backoff.next())

    def _refuse(
        self, partition: TopicPartition, sequence: BatchSequence, refused: BrokerError, *, in_doubt: bool
    ) -> ProduceError:
        error = refuse_write(partition, refused, self._principal, in_doubt=in_doubt)
        if in_doubt:
            self._state.lost(partition, sequence, error)
        else:
            self._state.give_back(partition, sequence)
            self._busy = False
        return error

    def _lose(
        self, partition: TopicPartition, sequence: BatchSequence, reason: str, cause: BrokerError | None
    ) -> ProduceError:
        error = WriteRefused(f"{partition}: {reason}", partition=partition, in_doubt=True)
        error.__cause__ = cause
        self._state.lost(partition, sequence, error)
        return error
