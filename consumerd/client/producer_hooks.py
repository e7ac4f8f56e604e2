# SPDX-License-Identifier: Apache-2.0
"""Extension points of the producer: encoders, hooks for a record's stages, sender of batches.

The stages are those of Kafka's ``CallbackHandler`` and ``EventHandler`` (``kafka.producer.async``, 0.7 and 0.8; Kafka's
documentation, "Implementation: API Design")::

    before_enqueue -> after_enqueue -> after_dequeuing -> before_sending -> EventHandler.handle -> after_sending
                                       last_batch_before_close, closed: at the end

Hooks are called on the event loop; they must return at once and not raise. An exception of ``before_enqueue`` or
``after_enqueue`` is raised by the producer's call. One of a later hook ends the producer, like any programming error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from consumerd.client.accumulator import Written
from consumerd.client.producer_actions import BatchSequence
from consumerd.cluster.view import Broker
from consumerd.errors import ConsumerdError
from consumerd.model import PartitionKey, TopicPartition
from consumerd.wire.record_fields import Headers
from consumerd.wire.records import NewRecord


class Encoder(Protocol):
    """Function that turns a key or a value into bytes.

    It is not called for None (no key, a tombstone), which stays None.
    """

    def __call__(self, data: object) -> bytes:
        """Return a key or value as bytes.

        An exception is passed on to the caller of the producer, and the record is not buffered.
        """


def encode_nothing(data: object) -> bytes:
    """Return bytes unchanged: the producer's default encoder. Raises TypeError for other types."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"expected bytes, got {type(data).__name__}; give the producer an encoder")


def encode_text(data: object) -> bytes:
    """Encode text as UTF-8, and return bytes unchanged. Raises TypeError for other types."""
    return data.encode() if isinstance(data, str) else encode_nothing(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """Record as passed to the producer, before its key and value are encoded.

    Attributes:
        key: None for no key.
        value: None for a tombstone.
        partition: Partition number, or in Kafka 0.6 and 0.7 its key; None lets the partitioner choose.
        timestamp_ms: In ms since the epoch; None for the time of the call.
        headers: Pairs of a name and a value.
    """

    topic: str
    value: object
    key: object = None
    partition: int | PartitionKey | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


class ProducerHooks:
    """Hooks that a producer calls at each stage of a record. The defaults do nothing.

    Override the ones you need.
    """

    def before_enqueue(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to buffer instead of this one."""
        return record

    def after_enqueue(self, record: ProducerRecord, *, added: bool) -> None:
        """Called after a record was buffered (``added`` is True), or could not be."""

    def after_dequeuing(self, partition: TopicPartition, record: NewRecord) -> Sequence[NewRecord]:  # noqa: ARG002
        """Return the records to send instead of this one.

        Called once for each record, before the first attempt to send its batch. An empty result leaves the record out.
        If the result has several records, the :class:`~consumerd.client.delivery.Delivery` of the caller tells the
        outcome of the last one.
        """
        return (record,)

    def before_sending(self, partition: TopicPartition, records: Sequence[NewRecord]) -> Sequence[NewRecord]:  # noqa: ARG002
        """Return the records to send instead of this batch, before its first attempt.

        Records are compared by object identity: records missing from the result are not sent, new ones are sent in
        addition.
        """
        return records

    def after_sending(
        self, partition: TopicPartition, records: Sequence[NewRecord], outcome: Written | ConsumerdError
    ) -> None:
        """Called when the final outcome of a batch is known: written, or an error."""

    def last_batch_before_close(self) -> Sequence[ProducerRecord]:
        """Return records to send as the last ones; may be empty.

        Called when the producer begins to close.
        """
        return ()

    def closed(self) -> None:
        """Called at the end of closing the producer, when all records have an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingBatch:
    """Records to append to one partition, in this order.

    Attributes:
        sequence: Producer id, epoch and first sequence number; None for a producer without idempotence.
    """

    partition: TopicPartition
    records: Sequence[NewRecord]
    sequence: BatchSequence | None = None


Outcomes = dict[TopicPartition, Written | ConsumerdError]
"""Outcomes of batches, by partition: written, or the error."""


class EventHandler(Protocol):
    """Sends a producer's batches, each once; implement it to replace the producer's own Produce requests.

    The producer decides on retries, and keeps the order.
    """

    async def handle(self, leader: Broker, batches: Sequence[OutgoingBatch], outcomes: Outcomes) -> None:
        """Send a batch for each of several partitions to their leader, and set the outcomes.

        An outcome is :class:`~consumerd.client.accumulator.Written` or an error. ConnectionLost and retriable
        BrokerErrors lead to a retry, other errors are final. A final error is raised as WriteRefused, unless it is a
        ProduceError itself. A partition without an outcome is retried too. May raise ConnectionLost or ProtocolError,
        which then apply to all batches without an outcome.

        The producer limits the time, and cancels the call at its end. Outcomes that are set by then count. So set each
        one when it is known, if there are several requests; set RequestNotSent for a batch that is not sent yet.

        Args:
            outcomes: Filled by the call; empty at first.
        """

    async def drain(self) -> None:
        """Wait until brokers have processed everything sent, acknowledged or not.

        Called once, when the producer is closed. The producer limits the time.
        """
