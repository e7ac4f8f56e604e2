# SPDX-License-Identifier: Apache-2.0
"""Records of the topic ``__consumer_offsets``: committed offsets, and groups managed by brokers.

The version of a key tells its kind: 0 and 1 of an offset, 2 of a group. Keys and values begin with their version; a
null value is a tombstone. Versions that brokers write (Kafka's OffsetManager of 0.8.2, GroupMetadataManager since 0.9):

| brokers | offset key | offset value | group value |
|---|---|---|---|
| 0.8.2 | 0 | 0 | |
| 0.9, 0.10.0 | 1 | 1 | 0 |
| 0.10.1 to 1.1 | 1 | 1 | 1 |

Version 1 of an offset's value adds the expiry time, version 1 of a group's value the rebalance timeout. Versions 0 and
1 of an offset's key have the same fields.
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
"""``expire_timestamp`` of an offset whose value has none; the broker's retention setting applies."""

_VERSION: Final = struct.Struct(">h")

T = TypeVar("T")

# -- keys


@message
class OffsetKey:
    """Key of a record of ``__consumer_offsets`` that has a committed offset."""

    group_id: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


@message
class GroupKey:
    """Key of a record of ``__consumer_offsets`` that has a group's state."""

    group_id: str = field(STRING)


def encode_offset_key(key: OffsetKey, version: int = OFFSET_KEY_VERSIONS[-1]) -> bytes:
    """Encode the key of a committed offset in ``__consumer_offsets``. Raises LocalProtocolError."""
    return _encode(OffsetKey, key, version)


def encode_group_key(key: GroupKey) -> bytes:
    """Encode the key of a group in ``__consumer_offsets``. Raises LocalProtocolError."""
    return _encode(GroupKey, key, GROUP_KEY_VERSION)


def decode_key(data: bytes | None) -> OffsetKey | GroupKey:
    """Decode the key of a record of ``__consumer_offsets``. Raises CorruptMessageError."""
    version = _version(data, "key")
    if version == GROUP_KEY_VERSION:
        return _decode(GroupKey, data, version)
    return _decode(OffsetKey, data, _among(OFFSET_KEY_VERSIONS, version, "key"))


# -- values


@message
class OffsetValue:
    """Value of a record of ``__consumer_offsets``: a committed offset.

    Times are in ms since the epoch.
    """

    offset: int = field(INT64)
    metadata: str = field(STRING, default="")
    commit_timestamp: int = field(INT64)
    expire_timestamp: int = field(INT64, "1", default=NO_EXPIRY)


@message
class GroupMember:
    """A group member, with its subscription in the chosen protocol and its assignment."""

    member_id: str = field(STRING)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1)
    session_timeout_ms: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


@message
class GroupValue:
    """Value of a record of ``__consumer_offsets``: a group after a rebalance.

    ``protocol`` and ``leader`` are None if it has no members.
    """

    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(STRING, nullable="0+")
    leader: str | None = field(STRING, nullable="0+")
    members: tuple[GroupMember, ...] = field(ArrayOf(GroupMember))


def encode_offset_value(value: OffsetValue, version: int = OFFSET_VALUE_VERSIONS[-1]) -> bytes:
    """Encode a committed offset for ``__consumer_offsets``.

    Raises LocalProtocolError for a field that the version lacks.
    """
    return _encode(OffsetValue, value, version)


def decode_offset_value(data: bytes) -> OffsetValue:
    """Decode a committed offset from ``__consumer_offsets``. Raises CorruptMessageError."""
    version = _among(OFFSET_VALUE_VERSIONS, _version(data, "offset"), "offset")
    return _decode(OffsetValue, data, version)


def encode_group_value(value: GroupValue, version: int = GROUP_VALUE_VERSIONS[-1]) -> bytes:
    """Encode a group's state for ``__consumer_offsets``.

    Raises LocalProtocolError for a field that the version lacks.
    """
    return _encode(GroupValue, value, version)


def decode_group_value(data: bytes) -> GroupValue:
    """Decode a group's state from ``__consumer_offsets``. Raises CorruptMessageError."""
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
