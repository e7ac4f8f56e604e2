# SPDX-License-Identifier: Apache-2.0
"""What a log refuses, and what it can fail of.

::

    ConsumerdError
    ├── CorruptMessageError         (consumerd.errors) what was given to append cannot be read
    └── LogError
        ├── OffsetOutOfRange        a read below the log's start or above its end
        ├── RecordTooLarge          a message or batch above max_message_bytes
        ├── RecordSetTooLarge       a record set that fits into no segment
        ├── InvalidTimestamp        a timestamp too far from the clock, or of a type that producers may not claim
        ├── LogLocked               another process has the directory
        ├── LogDamaged              the files cannot be of a log
        ├── LogWriteFailed          nothing of this append was kept; the next one may pass
        │   └── LogFull             ... since the disk is full
        └── LogFailed               the log is offline until it is opened anew
"""

from __future__ import annotations

from consumerd.errors import ConsumerdError
from consumerd.model import TopicPartition


class LogError(ConsumerdError):
    """A log did not do what it was asked for."""


class LogOffsetOutOfRange(LogError):
    """There is no such offset: ``earliest`` is the first one held, ``latest`` the next to be written."""

    def __init__(self, partition: TopicPartition, offset: int, earliest: int, latest: int) -> None:
        super().__init__(f"{partition}: offset {offset} is outside the log [{earliest}, {latest}]")
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class LogRecordTooLarge(LogError):
    """A message or batch of ``size`` bytes where ``limit`` are allowed (``max.message.bytes``)."""

    def __init__(self, partition: TopicPartition, size: int, limit: int) -> None:
        super().__init__(f"{partition}: a message or batch of {size} bytes, max.message.bytes is {limit}")
        self.partition = partition
        self.size = size
        self.limit = limit


class RecordSetTooLarge(LogError):
    """A record set of ``size`` bytes that fits into no segment of ``limit`` bytes (``segment.bytes``)."""

    def __init__(self, partition: TopicPartition, size: int, limit: int) -> None:
        super().__init__(f"{partition}: a record set of {size} bytes, segment.bytes is {limit}")
        self.partition = partition
        self.size = size
        self.limit = limit


class InvalidTimestamp(LogError):
    """A timestamp further from the clock than allowed, or of type LogAppendTime, which only a broker gives."""


class LogLocked(LogError):
    """Another process works on this directory of logs."""


class LogDamaged(LogError):
    """Files that recovery cannot make a log of; the message says which, and what to do."""


class LogWriteFailed(LogError):
    """An append could not be written. The log is as it was before, and the same append may be tried again."""


class LogFull(LogWriteFailed):
    """The disk, or its quota, is full."""


class LogFailed(LogError):
    """The log is offline: after a failure nobody knows what the disk holds. Open it anew, which checks that."""
