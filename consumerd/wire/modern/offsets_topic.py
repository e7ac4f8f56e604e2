# SPDX-License-Identifier: Apache-2.0
"""What brokers write into ``__consumer_offsets``: committed offsets, and the groups that they manage.

A key says by its version what it is of: 0 and 1 of an offset, 2 of a group. Both parts of a record begin with their
version; a null value is a tombstone. Written are (Kafka's OffsetManager of 0.8.2, GroupMetadataManager since 0.9):

| brokers | offset key | offset value | group value |
|---|---|---|---|
| 0.8.2 | 0 | 0 | |
| 0.9, 0.10.0 | 1 | 1 | 0 |
| 0.10.1 to 1.1 | 1 | 1 | 1 |

Version 1 of an offset's value adds when it expires, and version 1 of a group's value the rebalance timeout. Offset keys
0 and 1 differ in nothing else.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeVar, cast

from consumerd.errors import CorruptMessageError, RemoteProtocolError
from consumerd.wire.declaration import BYTES, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import compile_codec

OFFSET_KEY_VERSIONS: Final = range(2)
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSIONS: Final = range(2)
GROUP_VALUE_VERSIONS: Final = range(2)

NO_EXPIRY: Final = -1
"""The ``expire_timestamp`` of a value that leaves it to the broker's retention."""

_VERSION: Final = struct.Struct(">h")

T = TypeVar("T")

# -- keys


@message
class OffsetKey:
    """Of which partition and group an offset is."""

    group_id: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


@message
class GroupKey:
    """Of which group something is."""

    group_id: str = field(STRING)


def encode_offset_key(key: OffsetKey, version: int = OFFSET_KEY_VERSIONS[-1]) -> bytes:
    """Write an offset's key. Raises LocalProtocolError."""
    return _encode(OffsetKey, key, version)


def encode_group_key(key: GroupKey) -> bytes:
    """Write a group's key. Raises LocalProtocolError."""
    return _encode(GroupKey, key, GROUP_KEY_VERSION)


def decode_key(data: bytes | None) -> OffsetKey | GroupKey:
    """Read a record's key. Raises CorruptMessageError."""
    version = _version(data, "key")
    if version == GROUP_KEY_VERSION:
        return _decode(GroupKey, data, version)
    return _decode(OffsetKey, data, _among(OFFSET_KEY_VERSIONS, version, "key"))


# -- values


@message
class OffsetValue:
    """A committed offset; times in ms since the epoch."""

    offset: int = field(INT64)
    metadata: str = field(STRING, default="")
    commit_timestamp: int = field(INT64)
    expire_timestamp: int = field(INT64, "1", default=NO_EXPIRY)


@message
class GroupMember:
    """A member, what it said of itself in the protocol that was chosen, and what it was given."""

    member_id: str = field(STRING)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1)
    session_timeout_ms: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


@message
class GroupValue:
    """A group at the end of a rebalance; ``protocol`` and ``leader`` are None when it has no members."""

    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(STRING, nullable="0+")
    leader: str | None = field(STRING, nullable="0+")
    members: tuple[GroupMember, ...] = field(ArrayOf(GroupMember))


def encode_offset_value(value: OffsetValue, version: int = OFFSET_VALUE_VERSIONS[-1]) -> bytes:
    """Write an offset's value. Raises LocalProtocolError for what the version cannot say."""
    return _encode(OffsetValue, value, version)


def decode_offset_value(data: bytes) -> OffsetValue:
    """Read an offset's value. Raises CorruptMessageError."""
    version = _among(OFFSET_VALUE_VERSIONS, _version(data, "offset"), "offset")
    return _decode(OffsetValue, data, version)


def encode_group_value(value: GroupValue, version: int = GROUP_VALUE_VERSIONS[-1]) -> bytes:
    """Write a group's value. Raises LocalProtocolError for what the version cannot say."""
    return _encode(GroupValue, value, version)


def decode_group_value(data: bytes) -> GroupValue:
    """Read a group's value. Raises CorruptMessageError."""
    version = _among(GROUP_VALUE_VERSIONS, _version(data, "group"), "group")
    return _decode(GroupValue, data, version)


# -- version and rest


def _encode(cls: type[T], value: T, version: int) -> bytes:
    return _VERSION.pack(version) + compile_codec(cls, version).encode(value)


def _decode(cls: type[T], data: bytes | None, version: int) -> T:
    try:
        return cast("T", compile_codec(cast("Any", cls), version).decode(memoryview(data or b"")[_VERSION.size :]))
    except RemoteProtocolError as error:
        raise CorruptMessageError(f"__consumer_offsets: {error}") from error


def _version(data: bytes | None, what: str) -> int:
    if data is None or len(data) < _VERSION.size:
        raise CorruptMessageError(f"__consumer_offsets: {what} of {len(data or b'')} bytes: needs a version")
    return int(_VERSION.unpack_from(data)[0])


def _among(known: range, version: int, what: str) -> int:
    if version not in known:
        raise CorruptMessageError(f"__consumer_offsets: {what} v{version}: known are {known[0]} to {known[-1]}")
    return version
