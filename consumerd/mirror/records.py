# SPDX-License-Identifier: Apache-2.0
"""Records of a mirror's positions and offset maps in the target cluster.

They are in a compacted topic of the target, and are written in the transaction of the records that they cover. Keys are
JSON lists, so that the topic can be read with Kafka's own tools:

| key | value |
|---|---|
| ``["position", cluster, group, topic, partition, incarnation]`` | JSON: a :class:`StoredPosition` |
| ``["map", cluster, group, topic, partition, incarnation, number]`` | an encoded segment (``mirror.segment``) |
| ``["assignment", cluster, group, topic, partition]`` | JSON: a :class:`StoredAssignment` |
| ``["mark"]`` | none: only its offset matters, up to which a reader has to read (``mirror.positions``) |

The first part of a key is its kind. Other kinds are of other parts of a mirror, or of later releases.

Key parts
    ``cluster`` is the id of the source cluster, ``group`` the group that mirrors. ``partition`` is ``3`` or, for Kafka
    0.6 and 0.7, ``0-3``. ``incarnation`` tells a topic from an earlier one of the same name, and a truncated log from
    the one before.

A value of None removes a segment whose records the target has deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from consumerd.errors import CorruptMessageError
from consumerd.mirror.offset_map import MirrorPosition

_VERSION: Final = 1
_POSITION: Final = "position"
_MAP: Final = "map"
_ASSIGNMENT: Final = "assignment"

_KINDS: Final = frozenset({_POSITION, _MAP, _ASSIGNMENT})

MARK: Final = b'["mark"]'
"""Key of a mark, which a reader of the topic writes to learn where its end is."""


class SourcePartition(NamedTuple):
    """A source partition and the group that mirrors it, as the keys name them."""

    cluster: str
    group: str
    topic: str
    partition: str


class SourceLog(NamedTuple):
    """Log of a source partition, as the keys name it."""

    cluster: str
    group: str
    topic: str
    partition: str
    incarnation: str

    @property
    def source(self) -> SourcePartition:
        """The partition, without the incarnation."""
        return SourcePartition(*self[:4])


class SegmentKey(NamedTuple):
    """Key of a segment of an offset map; segments are numbered from 0."""

    log: SourceLog
    number: int


class PositionKey(NamedTuple):
    """Key of a position."""

    log: SourceLog


class AssignmentKey(NamedTuple):
    """Key of a fixed target partition of a partition of Kafka 0.6 or 0.7."""

    source: SourcePartition


Key: TypeAlias = PositionKey | SegmentKey | AssignmentKey
"""Key of a record that this module knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPosition:
    """Positions of a mirror in one partition, and where its map is.

    Attributes:
        source: source offset from which the mirror goes on.
        target: target offset behind the last record that it wrote, or from which it began.
        target_topic: topic in the target.
        target_partition: its partition.
        counts_bytes: True if source offsets count bytes (Kafka 0.6 and 0.7).
        first_segment: number of the first segment of the map.
        last_segment: number of the last one; below ``first_segment`` if there is none.
        is_mapped: False if records were distributed by their keys; then there is no map.
        request_id: id of the operator's request that moved the mirror here last (``consumerd offsets set``); None if
            there was none.
    """

    source: int
    target: int
    target_topic: str
    target_partition: int
    counts_bytes: bool = False
    first_segment: int = 0
    last_segment: int = -1
    is_mapped: bool = True
    request_id: str | None = None

    @property
    def position(self) -> MirrorPosition:
        """The two offsets."""
        return MirrorPosition(source=self.source, target=self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAssignment:
    """Fixed target partition of a partition of Kafka 0.6 or 0.7.

    The number of such a partition is not unique in its topic.
    """

    target_topic: str
    target_partition: int


def encode_key(key: Key) -> bytes:
    """Return the encoded key."""
    match key:
        case PositionKey(log):
            parts: list[str | int] = [_POSITION, *log]
        case SegmentKey(log, number):
            parts = [_MAP, *log, number]
        case AssignmentKey():
            parts = [_ASSIGNMENT, *key.source]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()


def decode_key(data: bytes | None) -> Key | None:
    """Return the key of a record; None for one of another kind.

    Raises CorruptMessageError for bytes that are no key, and for a malformed key of a known kind.
    """
    try:
        parts = json.loads(data or b"")
    except (ValueError, RecursionError):
        parts = None
    match parts:
        case ["position", str(cluster), str(group), str(topic), str(partition), str(incarnation)]:
            return PositionKey(SourceLog(cluster, group, topic, partition, incarnation))
        case ["map", str(cluster), str(group), str(topic), str(partition), str(incarnation), int(number)] if (
            number >= 0 and not isinstance(number, bool)
        ):
            return SegmentKey(SourceLog(cluster, group, topic, partition, incarnation), number)
        case ["assignment", str(cluster), str(group), str(topic), str(partition)]:
            return AssignmentKey(SourcePartition(cluster, group, topic, partition))
        case [str(kind), *_] if kind not in _KINDS:
            return None
    raise CorruptMessageError(f"no key of a mirror's position or map: {(data or b'')[:200]!r}")


def encode_position(stored: StoredPosition) -> bytes:
    """Return the encoded value."""
    return _encode(asdict(stored))


def decode_position(data: bytes) -> StoredPosition:
    """Return the position in a value.

    Raises CorruptMessageError for any other bytes, also for a value of a later version.
    """
    fields = _decode(data, "position")
    try:
        stored = StoredPosition(**fields)
    except TypeError as error:
        raise CorruptMessageError(f"no position of a mirror: {data[:200]!r}") from error
    numbers = (stored.source, stored.target, stored.target_partition, stored.first_segment, stored.last_segment + 1)
    has_texts = type(stored.target_topic) is str and isinstance(stored.request_id, str | None)
    has_flags = all(type(flag) is bool for flag in (stored.counts_bytes, stored.is_mapped))
    if not all(map(_is_count, numbers)) or not has_texts or not has_flags:
        raise CorruptMessageError(f"a mirror's position has a field of another kind: {data[:300]!r}")
    return stored


def encode_assignment(stored: StoredAssignment) -> bytes:
    """Return the encoded value."""
    return _encode(asdict(stored))


def decode_assignment(data: bytes) -> StoredAssignment:
    """Return the assignment in a value. Raises CorruptMessageError, as :func:`decode_position`."""
    fields = _decode(data, "assignment")
    match fields:
        case {"target_topic": str(topic), "target_partition": partition, **rest} if not rest and _is_count(partition):
            return StoredAssignment(target_topic=topic, target_partition=partition)
    raise CorruptMessageError(f"no assignment of a mirror: {data[:200]!r}")


def _encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps({"version": _VERSION, **fields}, separators=(",", ":")).encode()


def _decode(data: bytes, what: str) -> dict[str, Any]:
    """Return the fields of a value of the known version."""
    try:
        fields: dict[str, Any] = json.loads(data)
        version = fields.pop("version")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptMessageError(f"no {what} of a mirror: {data[:200]!r}") from error
    if version != _VERSION:
        raise CorruptMessageError(f"a mirror's {what} has version {version!r}; only {_VERSION} is known")
    return fields


def _is_count(number: object) -> bool:
    return type(number) is int and number >= 0
