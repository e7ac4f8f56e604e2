# SPDX-License-Identifier: Apache-2.0
"""Records of the topic ``__transaction_state``: the state of each transactional id (Kafka's TransactionLog, v0).

Key and value begin with their version. A null value is a tombstone.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, Final, TypeVar, cast

from consumerd.errors import CorruptMessageError, RemoteProtocolError
from consumerd.wire.declaration import INT8, INT16, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.modern.transactions import TransactionTopic
from consumerd.wire.schema import compile_codec

_VERSION: Final = struct.Struct(">h")
_ONLY_VERSION: Final = 0

T = TypeVar("T")


class TransactionStatus(enum.IntEnum):
    """State of a transactional id, with its number in the record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


@message
class TransactionKey:
    """Key of a record of ``__transaction_state``."""

    transactional_id: str = field(STRING)


@message
class TransactionValue:
    """Value of a record of ``__transaction_state``.

    ``topics`` are the partitions of the open transaction; None without one. Times are in ms since the epoch.
    """

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    timeout_ms: int = field(INT32)
    status: int = field(INT8)
    topics: tuple[TransactionTopic, ...] | None = field(ArrayOf(TransactionTopic), nullable="0+")
    updated_ms: int = field(INT64)
    started_ms: int = field(INT64)


def encode_transaction_key(key: TransactionKey) -> bytes:
    """Encode the key of a transactional id. Raises LocalProtocolError."""
    return _encode(TransactionKey, key)


def encode_transaction_value(value: TransactionValue) -> bytes:
    """Encode the state of a transactional id. Raises LocalProtocolError."""
    return _encode(TransactionValue, value)


def decode_transaction_key(data: bytes | None) -> TransactionKey:
    """Decode the key of a record. Raises CorruptMessageError."""
    return _decode(TransactionKey, data)


def decode_transaction_value(data: bytes | None) -> TransactionValue:
    """Decode the value of a record. Raises CorruptMessageError."""
    return _decode(TransactionValue, data)


def _encode(cls: type[T], value: T) -> bytes:
    return _VERSION.pack(_ONLY_VERSION) + compile_codec(cls, _ONLY_VERSION).encode(value)


def _decode(cls: type[T], data: bytes | None) -> T:
    if data is None or len(data) < _VERSION.size or _VERSION.unpack_from(data)[0] != _ONLY_VERSION:
        raise CorruptMessageError(f"__transaction_state: {cls.__name__} of another version than {_ONLY_VERSION}")
    try:
        return cast("T", compile_codec(cast("Any", cls), _ONLY_VERSION).decode(memoryview(data)[_VERSION.size :]))
    except RemoteProtocolError as error:
        raise CorruptMessageError(f"__transaction_state: {error}") from error
