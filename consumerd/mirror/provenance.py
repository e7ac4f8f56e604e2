# SPDX-License-Identifier: Apache-2.0
"""Origin of a mirrored record, written with the record itself. Pure.

A mirror without transactions (``delivery: at-least-once``) has no positions in the target. Each of its records says
where it comes from, and a mirror that starts reads the last ones back.

Brokers of 0.11 and later
    The record has one header more, :data:`HEADER`. Its value is a JSON list::

        ["k9V...", "orders", "3", "4294967337", 120, 121]

    These are cluster, topic, partition, incarnation, offset and next offset.

Older brokers
    Their messages have no headers. The value is an envelope: ``consumerd-mirror:``, the same JSON list, a line feed,
    and the value. :func:`open_envelope` returns both. A null value stays null, since it is what compaction goes by.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.model import Incarnation, TopicPartition

HEADER: Final = "consumerd.source"
"""Key of the header with a record's origin."""
_MARK: Final = b"consumerd-mirror:"
_MOST_ORIGIN_BYTES: Final = 2048
"""Limit of the size of an encoded origin: topics have up to 249 characters."""


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """Place of a record in the source.

    Attributes:
        cluster: Id of the source cluster.
        partition: Its number.
        incarnation: Tells the topic from an earlier one of the same name, and a truncated log from the one before.
        offset: Offset of the record.
        next_offset: Offset after it.
    """

    cluster: str
    topic: str
    partition: str
    incarnation: str
    offset: int
    next_offset: int

    def is_of(self, cluster: str, partition: TopicPartition, incarnation: Incarnation) -> bool:
        """Return True for a record of this partition; truncations of its log do not count."""
        log = (self.cluster, self.topic, self.partition)
        if log != (cluster, partition.topic, str(partition.partition)):
            return False
        try:
            return Incarnation.parse(self.incarnation).is_same_topic(incarnation)
        except ValueError:
            return False


def encode_origin(origin: RecordOrigin) -> bytes:
    """Return the value of the header."""
    parts = (
        origin.cluster,
        origin.topic,
        origin.partition,
        origin.incarnation,
        origin.offset,
        origin.next_offset,
    )
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()


def decode_origin(data: bytes | None) -> RecordOrigin:
    """Return the origin in a header's value. Raises CorruptMessageError for any other bytes."""
    if data is not None and len(data) <= _MOST_ORIGIN_BYTES:
        try:
            parts = json.loads(data)
        except (ValueError, RecursionError):
            parts = None
        match parts:
            case [str(cluster), str(topic), str(partition), str(incarnation), int(offset), int(end)]:
                if 0 <= offset < end and not any(isinstance(one, bool) for one in parts):
                    return RecordOrigin(cluster, topic, partition, incarnation, offset, end)
    raise CorruptMessageError(f"no origin of a mirrored record: {len(data or b'')} bytes")


def find_origin(headers: Sequence[tuple[str, bytes | None]]) -> RecordOrigin | None:
    """Return the origin in a record's headers; None without one that can be read.

    A record that was mirrored twice has two. The last one is that of the last mirror.
    """
    for key, value in reversed(headers):
        if key == HEADER:
            try:
                return decode_origin(value)
            except CorruptMessageError:
                return None
    return None


def make_envelope(origin: RecordOrigin, value: bytes | None) -> bytes | None:
    """Return a value with its origin in front of it; None for None."""
    return None if value is None else b"".join((_MARK, encode_origin(origin), b"\n", value))


def open_envelope(value: bytes) -> tuple[RecordOrigin, bytes]:
    """Return the origin and the value of a mirrored record in an envelope.

    Raises CorruptMessageError for a value that is no envelope.
    """
    head, line_feed, _ = value[: len(_MARK) + _MOST_ORIGIN_BYTES + 1].partition(b"\n")
    if not head.startswith(_MARK) or not line_feed:
        raise CorruptMessageError("the value is no envelope of a mirrored record")
    return decode_origin(head[len(_MARK) :]), value[len(head) + 1 :]
