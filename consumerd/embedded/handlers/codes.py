# SPDX-License-Identifier: Apache-2.0
"""Error codes for the errors of logs."""

from __future__ import annotations

from typing import Final

from consumerd.embedded.log.errors import (
    InvalidTimestamp,
    LogFailed,
    LogOffsetOutOfRange,
    LogRecordTooLarge,
    LogWriteFailed,
    RecordSetTooLarge,
)
from consumerd.errors import ConsumerdError, CorruptMessageError, DecompressedTooLarge, LocalProtocolError
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.units import TimestampRefused, UnsupportedForFormat

_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (
    (LogOffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (TimestampRefused, ErrorCode.INVALID_TIMESTAMP),
    (UnsupportedForFormat, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (DecompressedTooLarge, ErrorCode.MESSAGE_TOO_LARGE),  # makes producers split the batch
    (CorruptMessageError, ErrorCode.CORRUPT_MESSAGE),
    (LogRecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (RecordSetTooLarge, ErrorCode.RECORD_LIST_TOO_LARGE),
    (InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (LogWriteFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (LogFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (LocalProtocolError, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
)


def code_of(error: ConsumerdError | OSError) -> ErrorCode:
    """Return Kafka's error code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNKNOWN_SERVER_ERROR)


def old_code_of(error: ConsumerdError | OSError) -> ErrorCode:
    """Return the error code for Produce up to v3 and Fetch up to v5.

    They return NOT_LEADER_OR_FOLLOWER if a disk has failed: clients of that time do not know KAFKA_STORAGE_ERROR
    (KIP-112).
    """
    code = code_of(error)
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code is ErrorCode.KAFKA_STORAGE_ERROR else code
