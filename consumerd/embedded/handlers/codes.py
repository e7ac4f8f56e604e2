# SPDX-License-Identifier: Apache-2.0
"""Error codes in responses, for errors of logs and for partitions not served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consumerd.embedded.log.errors import (
    ForgottenProducer,
    InvalidTimestamp,
    LogFailed,
    LogOffsetOutOfRange,
    LogRecordTooLarge,
    LogWriteFailed,
    RecordSetTooLarge,
    SequenceGap,
    StaleEpoch,
)
from consumerd.errors import ConsumerdError, CorruptMessageError, DecompressedTooLarge, LocalProtocolError
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.checking import TimestampRefused, UnsupportedForFormat

if TYPE_CHECKING:
    from consumerd.embedded.faults import BrokerFaults
    from consumerd.embedded.log.partition_log import PartitionLog
    from consumerd.embedded.topics import Topics

_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (
    (LogOffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (TimestampRefused, ErrorCode.INVALID_TIMESTAMP),
    (UnsupportedForFormat, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (DecompressedTooLarge, ErrorCode.MESSAGE_TOO_LARGE),  # makes producers split the batch
    (CorruptMessageError, ErrorCode.CORRUPT_MESSAGE),
    (LogRecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (RecordSetTooLarge, ErrorCode.RECORD_LIST_TOO_LARGE),
    (InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (SequenceGap, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (ForgottenProducer, ErrorCode.UNKNOWN_PRODUCER_ID),
    (StaleEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (LogWriteFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (LogFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (LocalProtocolError, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
)


def get_log(topics: Topics, faults: BrokerFaults, topic: str, number: int) -> PartitionLog | ErrorCode:
    """Return the log of a requested partition, or an error code without it.

    UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist or this broker has no replica, NOT_LEADER_OR_FOLLOWER if
    another broker leads it.
    """
    if number < 0:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = TopicPartition.modern(topic, number)
    log = topics.find_log(partition)
    if log is None:
        # as up to 1.1, a broker without a replica does not know the partition
        follows = topics.is_follower(partition)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if follows else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return log if faults.find_leader(log.partition) is None else ErrorCode.NOT_LEADER_OR_FOLLOWER


def code_of(error: ConsumerdError | OSError) -> ErrorCode:
    """Return Kafka's error code for an error of a log."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNKNOWN_SERVER_ERROR)


def old_code_of(error: ConsumerdError | OSError) -> ErrorCode:
    """Return the error code for an error of a log, for older clients.

    Produce up to v3 and Fetch up to v5 return NOT_LEADER_OR_FOLLOWER if a disk has failed: clients of that time do not
    know KAFKA_STORAGE_ERROR (KIP-112).
    """
    code = code_of(error)
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code is ErrorCode.KAFKA_STORAGE_ERROR else code
