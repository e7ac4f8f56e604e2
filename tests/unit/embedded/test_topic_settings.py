# SPDX-License-Identifier: Apache-2.0
"""Names and settings of topics, as Kafka's tools check and write them."""

from __future__ import annotations

import pytest

from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.embedded.topic_config import apply_config
from consumerd.embedded.topics import find_collision
from consumerd.errors import ConfigError
from consumerd.model import TimestampType, find_topic_fault

BROKERS = LogSettings(retention_ms=1000)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "_", "...", "__consumer_offsets", "x" * 249])
def test_names_that_kafka_allows(name: str) -> None:
    """Each of them can be a directory's and a node's name."""
    assert find_topic_fault(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "a\n", "é", "a:b"])
def test_names_that_kafka_refuses(name: str) -> None:
    """Before anything is written."""
    assert find_topic_fault(name) is not None


def test_a_name_that_differs_in_dots_and_underscores_only_collides() -> None:
    """Their metrics would have one name."""
    assert find_collision("a.b", ["x", "a_b"]) == "a_b"
    assert find_collision("a.b", ["a.b", "a-b"]) is None


def test_a_topics_settings_stand_above_the_brokers() -> None:
    """Under Kafka's names, in Kafka's units; what the broker does not know changes nothing."""
    config = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.1",
        "flush.messages": "9223372036854775807",
        "compression.type": "producer",
    }

    expected = LogSettings(
        cleanup_policy=CleanupPolicy.COMPACT_AND_DELETE,
        retention_ms=None,
        segment_bytes=104857600,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        min_cleanable_ratio=0.1,
        flush_messages=None,
    )
    assert expected == apply_config(BROKERS, config)
    assert apply_config(BROKERS, {}) == BROKERS


@pytest.mark.parametrize(
    ("release", "magic"),
    [("0.8.2", 0), ("0.9.0", 0), ("0.10.0-IV0", 1), ("0.10.2", 1), ("0.11.0-IV2", 2), ("1.1", 2)],
)
def test_a_release_names_a_message_format(release: str, magic: int) -> None:
    """``message.format.version`` is a release's name, its internal versions included."""
    assert magic == apply_config(BROKERS, {"message.format.version": release}).message_format


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "soon"),
        ("cleanup.policy", "none"),
        ("message.timestamp.type", "Never"),
        ("message.format.version", "new"),
        ("segment.bytes", "1"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(key: str, value: str) -> None:
    """Before a topic is made of it."""
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        apply_config(BROKERS, {key: value})
