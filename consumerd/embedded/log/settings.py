# SPDX-License-Identifier: Apache-2.0
"""Settings of a log: Kafka's topic settings in Python names, with the defaults of 1.1.

Source: Kafka's documentation, "Topic Configs" (LogConfig).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from consumerd.errors import ConfigError
from consumerd.model import TimestampType

_DAY_MS: Final = 24 * 60 * 60 * 1000
_INT32_MAX: Final = (1 << 31) - 1


class CleanupPolicy(enum.StrEnum):
    """The topic setting ``cleanup.policy``: deletion or compaction of old segments."""

    DELETE = "delete"
    """Old segments are deleted, by age and size."""
    COMPACT = "compact"
    """The last record of each key is kept."""
    COMPACT_AND_DELETE = "compact,delete"
    """The last record of each key is kept, until its segment is deleted."""

    @property
    def compacts(self) -> bool:
        """True if earlier records of a key are removed."""
        return self is not CleanupPolicy.DELETE

    @property
    def deletes(self) -> bool:
        """True if old segments are deleted."""
        return self is not CleanupPolicy.COMPACT


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings of one log. Raises ConfigError for impossible values.

    ``flush_messages``, ``flush_interval_ms``, ``retention_ms``, ``retention_bytes`` and ``max_timestamp_difference_ms``
    are None for "never" or "no limit". A compaction reads the keys of segments, one after the other, until there are at
    least ``cleaner_keys``, and leaves the other segments to the next one.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    flush_messages: int | None = None
    flush_interval_ms: int | None = None
    retention_ms: int | None = 7 * _DAY_MS
    retention_bytes: int | None = None
    max_message_bytes: int = 1_000_012
    message_format: int = 2
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    max_timestamp_difference_ms: int | None = None
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    delete_retention_ms: int = _DAY_MS
    min_cleanable_ratio: float = 0.5
    cleaner_keys: int = 1 << 20

    def __post_init__(self) -> None:
        if not 14 <= self.segment_bytes <= _INT32_MAX:
            raise ConfigError(f"segment.bytes is {self.segment_bytes}, expected 14 to {_INT32_MAX}")
        if self.segment_index_bytes < 12:
            raise ConfigError(f"segment.index.bytes is {self.segment_index_bytes}, expected at least 12")
        if self.segment_ms < 1:
            raise ConfigError(f"segment.ms is {self.segment_ms}, expected at least 1")
        if self.index_interval_bytes < 0:
            raise ConfigError(f"index.interval.bytes is {self.index_interval_bytes}, expected 0 or more")
        if self.flush_messages is not None and self.flush_messages < 1:
            raise ConfigError(f"flush.messages is {self.flush_messages}, expected at least 1")
        if self.message_format not in (0, 1, 2):
            raise ConfigError(f"the message format is {self.message_format}, expected 0, 1 or 2")
        if self.timestamp_type is TimestampType.NONE:
            raise ConfigError("message.timestamp.type is none, expected CreateTime or LogAppendTime")
        if not 0 <= self.min_cleanable_ratio <= 1:
            raise ConfigError(f"min.cleanable.dirty.ratio is {self.min_cleanable_ratio}, expected 0 to 1")
