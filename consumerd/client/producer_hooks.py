# SPDX-License-Identifier: Apache-2.0
"""Where a producer can be joined into: encoders, hooks at each stage of a record's way, and who sends.

The stages are those of the Kafka producer's ``CallbackHandler`` and ``EventHandler`` (``kafka.producer.async``, 0.7 and
0.8; "Kafka's documentation, Implementation: API Design")::

    before_enqueue -> after_enqueue -> after_dequeuing -> before_sending -> EventHandler.handle -> after_sending
                                       last_batch_before_close, closed: at the end

Hooks are called on the event loop, return at once and raise nothing. What one raises around enqueuing goes to the caller; one
that raises later ends the producer, as any programming error does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from consumerd.client.accumulator import Written
from consumerd.cluster.view import Broker
from consumerd.errors import ConsumerdError
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import NewRecord
from consumerd.wire.records import Headers


class Encoder(Protocol):
    """Turns what the caller gives into bytes; None stays None (no key, a tombstone) and is not shown to it."""

    def __call__(self, data: object) -> bytes:
        """Return the bytes. What it raises goes to the caller, and the record is not buffered."""


def encode_nothing(data: object) -> bytes:
    """Return bytes as they are: the default. Raises TypeError for anything else."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"expected bytes, got {type(data).__name__}; give the producer an encoder")


def encode_text(data: object) -> bytes:
    """Return text as UTF-8, and bytes as they are. Raises TypeError for anything else."""
    return data.encode() if isinstance(data, str) else encode_nothing(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """A record as the caller gives it: key and value before they are encoded, None in place of what is not chosen."""

    topic: str
    value: object
    key: object = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


class ProducerHooks:
    """What happens to records on their way; does nothing. Override what is wanted."""

    def before_enqueue(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record that is to be buffered in the place of this one."""
        return record

    def after_enqueue(self, record: ProducerRecord, *, added: bool) -> None:
        """Hear whether a record was buffered."""

    def after_dequeuing(self, partition: TopicPartition, record: NewRecord) -> Sequence[NewRecord]:  # noqa: ARG002
        """Return what is to be sent in the place of a record whose batch is about to be sent for the first time.

        None of them: the record is left out. Several: its delivery is that of the last one.
        """
        return (record,)

    def before_sending(self, partition: TopicPartition, records: Sequence[NewRecord]) -> Sequence[NewRecord]:  # noqa: ARG002
        """Return the batch that is to be sent in the place of this one; before the first attempt alone.

        A record is known again by being the same object: those that are missing are left out, others are additions.
        """
        return records

    def after_sending(
        self, partition: TopicPartition, records: Sequence[NewRecord], outcome: Written | ConsumerdError
    ) -> None:
        """Hear what became of a batch in the end."""

    def last_batch_before_close(self) -> Sequence[ProducerRecord]:
        """Return records to be sent last, before the producer is closed."""
        return ()

    def closed(self) -> None:
        """Hear that nothing more comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingBatch:
    """Records to be appended to one partition together, in this order."""

    partition: TopicPartition
    records: Sequence[NewRecord]


class EventHandler(Protocol):
    """Sends batches, once; the producer decides whether to try again, and keeps the order. May be replaced."""

    async def handle(
        self, leader: Broker, batches: Sequence[OutgoingBatch]
    ) -> Mapping[TopicPartition, Written | ConsumerdError]:
        """Send one batch for each of some partitions to their leader, and return what became of each.

        A failure that may pass is a ConnectionLost, or a BrokerError that says so; any other one is final. A partition that
        is missing from the result counts as unknown, and is tried again. Raises ConnectionLost or ProtocolError for all
        of them at once. The producer bounds the call.
        """

    async def drain(self) -> None:
        """Return when brokers have worked on all that was sent, acknowledged or not. Before the end, which bounds it."""
