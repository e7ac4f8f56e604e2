"""How one log behaves: Kafka's topic settings under their own names, with the defaults of 1.1.

Source: Kafka's documentation, "Topic Configs" (LogConfig).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from consumerd.errors import ConfigError
from consumerd.model import TimestampType

_DAY_MS: Final = 24 * 60 * 60 * 1000
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1


class CleanupPolicy(enum.StrEnum):
    """What happens to old segments."""

    DELETE = "delete"
    """They go, by age and by size."""
    COMPACT = "compact"
    """Of each key the last record stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings of one log.

    ``flush_messages``, ``flush_interval_ms``, ``retention_ms``, ``retention_bytes`` and ``max_timestamp_difference_ms``
    are None for "never" or "without limit". Raises ConfigError for values that no log can have.
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

    def with_configs(self, configs: Mapping[str, str]) -> Self:
        """Return these settings with a topic's own in their place, as they stand in ``/config/topics``.

        Names that this log has no use for are passed over, as a broker does with those of other releases. Raises
        ConfigError for a value that cannot be read.
        """
        changes: dict[str, object] = {}
        for name, text in configs.items():
            if name in _CONFIGS:
                field, read = _CONFIGS[name]
                try:
                    changes[field] = read(text.strip())
                except (ValueError, KeyError) as error:
                    raise ConfigError(f"{name} cannot be {text!r}") from error
        return replace(self, **changes)  # type: ignore[arg-type]  # fields by their names


def _limit(text: str) -> int | None:
    """Read a number that stands for "no limit" when it is negative, or the largest that Java has."""
    number = int(text)
    return None if number < 0 or number >= _INT64_MAX else number


def _message_format(text: str) -> int:
    """Read a version of Kafka: the format came with 0.10 (magic 1) and with 0.11 (magic 2)."""
    major, minor = (int(part) for part in text.partition("-")[0].split(".")[:2])
    return 2 if (major, minor) >= (0, 11) else 1 if (major, minor) >= (0, 10) else 0


_CONFIGS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "cleanup.policy": ("cleanup_policy", CleanupPolicy),
    "delete.retention.ms": ("delete_retention_ms", int),
    "flush.messages": ("flush_messages", _limit),
    "flush.ms": ("flush_interval_ms", _limit),
    "index.interval.bytes": ("index_interval_bytes", int),
    "max.message.bytes": ("max_message_bytes", int),
    "message.format.version": ("message_format", _message_format),
    "message.timestamp.difference.max.ms": ("max_timestamp_difference_ms", _limit),
    "message.timestamp.type": (
        "timestamp_type",
        {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}.__getitem__,
    ),
    "min.cleanable.dirty.ratio": ("min_cleanable_ratio", float),
    "retention.bytes": ("retention_bytes", _limit),
    "retention.ms": ("retention_ms", _limit),
    "segment.bytes": ("segment_bytes", int),
    "segment.index.bytes": ("segment_index_bytes", int),
    "segment.ms": ("segment_ms", int),
}
"""Kafka's names, what they set here, and how their values are read."""
