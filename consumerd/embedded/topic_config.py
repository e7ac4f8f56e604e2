# SPDX-License-Identifier: Apache-2.0
"""A topic's own settings in Kafka's names, applied to the settings of its logs. Pure.

A topic's missing settings are the broker's. Settings that have no meaning for this broker (replicas, cleaner threads,
compression of producers) are kept and ignored.

Source: Kafka's documentation, "Topic Configs"; ``LogConfig.scala``; ``ApiVersion.scala`` for message formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.errors import ConfigError
from consumerd.model import TimestampType

_TIMESTAMP_TYPES: Final = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}
_NEVER: Final = 2**63 - 1


def _limit(text: str) -> int | None:
    """Parse a limit; negative values and the largest one mean "no limit"."""
    value = int(text)
    return None if value < 0 or value == _NEVER else value


def _message_format(text: str) -> int:
    """Return the magic that a release stores.

    Examples: ``0.9.0`` is 0, ``0.10.2-IV0`` is 1, ``1.1`` is 2.
    """
    release = tuple(int(part) for part in text.partition("-")[0].split("."))
    return 0 if release < (0, 10) else 1 if release < (0, 11) else 2


def _cleanup_policy(text: str) -> CleanupPolicy:
    """Parse one cleanup policy, or both in any order."""
    policies = {CleanupPolicy(part.strip()) for part in text.split(",")}
    return policies.pop() if len(policies) == 1 else CleanupPolicy.COMPACT_AND_DELETE


_KNOWN: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "cleanup.policy": ("cleanup_policy", _cleanup_policy),
    "delete.retention.ms": ("delete_retention_ms", int),
    "flush.messages": ("flush_messages", _limit),
    "flush.ms": ("flush_interval_ms", _limit),
    "index.interval.bytes": ("index_interval_bytes", int),
    "max.message.bytes": ("max_message_bytes", int),
    "message.format.version": ("message_format", _message_format),
    "message.timestamp.difference.max.ms": ("max_timestamp_difference_ms", _limit),
    "message.timestamp.type": ("timestamp_type", _TIMESTAMP_TYPES.__getitem__),
    "min.cleanable.dirty.ratio": ("min_cleanable_ratio", float),
    "retention.bytes": ("retention_bytes", _limit),
    "retention.ms": ("retention_ms", _limit),
    "segment.bytes": ("segment_bytes", int),
    "segment.index.bytes": ("segment_index_bytes", int),
    "segment.ms": ("segment_ms", int),
}


_IGNORED: Final = frozenset(
    {
        "compression.type",
        "file.delete.delay.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "segment.jitter.ms",
        "unclean.leader.election.enable",
    }
)
"""Settings of Kafka's topics that have no effect on a log here."""


def apply_config(settings: LogSettings, config: Mapping[str, str]) -> LogSettings:
    """Return a broker's settings of logs, overridden by a topic's own settings.

    Raises ConfigError with the name of a setting whose value is invalid.

    Args:
        settings: The broker's settings.
        config: The topic's own settings, in Kafka's names, such as ``retention.ms``.
    """
    own: dict[str, Any] = {}
    for key, text in config.items():
        if key not in _KNOWN:
            continue
        name, read = _KNOWN[key]
        try:
            own[name] = read(text)
        except (ValueError, KeyError) as error:
            raise ConfigError(f"topic setting {key}: {text!r} is no value for it") from error
    return replace(settings, **own)


def is_setting(name: str) -> bool:
    """Return True if a topic can have this setting."""
    return name in _KNOWN or name in _IGNORED


def describe_settings(settings: LogSettings) -> Mapping[str, str]:
    """Return a broker's defaults of the settings that logs use, in Kafka's names and texts."""
    return {key: _describe(getattr(settings, name)) for key, (name, _) in _KNOWN.items()}


def _describe(value: object) -> str:
    if value is None:
        return "-1"
    if isinstance(value, TimestampType):
        return next(text for text, kind in _TIMESTAMP_TYPES.items() if kind is value)
    return str(value)
