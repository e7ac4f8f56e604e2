# SPDX-License-Identifier: Apache-2.0
"""Records that a program takes from streams, each with its topic and partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from consumerd.model import BrokerId, TimestampType
from consumerd.wire.record_fields import Headers
from consumerd.wire.records import RecordBatch

_TYPES: Final = (TimestampType.NONE, TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)
"""Timestamp types by their number in ``RecordBatch.timestamp_types``."""


# Never changed, but not frozen: a frozen one takes three times as long to make, and one is made for each record.
@dataclass(slots=True, unsafe_hash=True)
class ConsumerRecord:
    """One record that a program takes from a stream.

    In Kafka 0.6 and 0.7, topic, broker, partition, offset and index together identify it; later, topic, partition and
    offset do.

    Attributes:
        partition: Number of the partition; in Kafka 0.6 and 0.7 its number on ``broker``.
        timestamp: In ms since the epoch; -1 if the format has none, or the producer set none.
        timestamp_type: Origin of the timestamp: the producer's clock, the broker's, or none.
        key: None for a record without a key.
        value: None for a tombstone.
        headers: Pairs of a name and a value, in the record's order.
        broker: Broker to which the partition belongs in Kafka 0.6 and 0.7; None in later releases.
        index: Place among the records of one compressed message in Kafka 0.7, which share its offset; otherwise 0.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    broker: BrokerId | None = None
    index: int = 0


def make_records(batch: RecordBatch) -> list[ConsumerRecord]:
    """Return the records of a batch as objects, for a program.

    Raises CorruptMessageError for headers that cannot be decoded.
    """
    partition = batch.partition
    types: Iterable[TimestampType] = repeat(TimestampType.NONE)
    if batch.timestamp_types:
        types = map(_TYPES.__getitem__, batch.timestamp_types)
    columns: tuple[Iterable[Any], ...] = (
        repeat(partition.topic),
        repeat(partition.partition.number),
        batch.offsets,
        batch.timestamps,
        types,
        batch.keys(),
        batch.values(),
    )
    broker = partition.partition.broker
    if batch.header_starts or broker is not None:
        columns += (batch.headers() if batch.header_starts else repeat(()),)
    if broker is not None:
        columns += (repeat(broker), batch.indexes or repeat(0))
    return list(map(ConsumerRecord, *columns))
