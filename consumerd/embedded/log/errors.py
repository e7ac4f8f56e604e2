# SPDX-License-Identifier: Apache-2.0
"""Errors of logs.

::

    ConsumerdError
    ├── CorruptMessageError         (consumerd.errors) the records to be appended cannot be read
    └── LogError
        ├── LogOffsetOutOfRange     a read below the log's start or above its end
        ├── LogRecordTooLarge       a message or batch above max_message_bytes
        ├── RecordSetTooLarge       a record set that fits into no segment
        ├── SequenceGap             a producer's batch does not follow its last one
        ├── ForgottenProducer       a producer's batch is not its first, and nothing of it is in the log
        ├── StaleEpoch              a producer with the same id and a newer epoch has written
        ├── InvalidTimestamp        a timestamp too far from the clock, or of a type reserved for brokers
        ├── LogLocked               another process uses the directory
        ├── LogDamaged              the files are not those of a log
        ├── LogWriteFailed          nothing of this append was kept; the next one may succeed
        │   └── LogFull             ... since the disk is full
        └── LogFailed               the log is offline until it is opened again
"""

from __future__ import annotations

from consumerd.errors import ConsumerdError
from consumerd.model import TopicPartition


class LogError(ConsumerdError):
    """An operation on a log failed."""


class LogOffsetOutOfRange(LogError):
    """The offset to read is below the log's start or above its end.

    The message has both.
    """

    def __init__(self, partition: TopicPartition, offset: int, earliest: int, latest: int) -> None:
        super().__init__(f"{partition}: offset {offset} is outside the log [{earliest}, {latest}]")


class LogRecordTooLarge(LogError):
    """A message or batch has more than ``limit`` bytes (``max.message.bytes``)."""

    def __init__(self, partition: TopicPartition, size: int, limit: int) -> None:
        super().__init__(f"{partition}: a message or batch of {size} bytes, max.message.bytes is {limit}")


class RecordSetTooLarge(LogError):
    """A record set does not fit into a segment of ``limit`` bytes (``segment.bytes``)."""

    def __init__(self, partition: TopicPartition, size: int, limit: int) -> None:
        super().__init__(f"{partition}: a record set of {size} bytes, segment.bytes is {limit}")


class SequenceGap(LogError):
    """A producer's batch does not follow its last one (error 45)."""


class ForgottenProducer(LogError):
    """A batch is not its producer's first, and no earlier one is there (59)."""


class StaleEpoch(LogError):
    """A producer with the same id and a newer epoch has written (error 47)."""


class InvalidTimestamp(LogError):
    """A timestamp is too far from the clock, or of type LogAppendTime, reserved for brokers."""


class LogLocked(LogError):
    """Another process uses this directory of logs."""


class LogDamaged(LogError):
    """Recovery cannot open these files as a log; the message names them, with advice."""


class LogWriteFailed(LogError):
    """An append was not written; the log is unchanged, and the append can be repeated."""


class LogFull(LogWriteFailed):
    """The disk or its quota is full."""


class LogFailed(LogError):
    """The log is offline, because the content of the disk is unknown after a failure.

    Opening the log again checks the files.
    """
