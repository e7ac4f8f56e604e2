# SPDX-License-Identifier: Apache-2.0
"""The demo's stream: as uneven as real ones, with everything in it that a consumer must cope with."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from consumerd.demo.brokers import make_brokers
from consumerd.demo.show import DemoSettings, make_events
from consumerd.demo.stream import CLICKS, LEGACY_SERVICES, ORDERS, SERVICES, STEP_MS, Event, make_stream


def events(count: int = 5000, seed: int = 7) -> list[Event]:
    return list(make_stream(Random(seed), count=count, start_ms=1_000_000))


def test_the_same_randomness_gives_the_same_stream() -> None:
    """What a demo has shown can be shown again."""
    assert events(200) == events(200)
    assert events(200) != events(200, seed=8)


def test_it_has_both_topics_tombstones_records_without_key_and_every_codec() -> None:
    """What is not in the stream, the audit does not see."""
    stream = events()
    tombstones = [one for one in stream if one.value is None]

    assert len(stream) == 5000
    assert {one.topic for one in stream} == {ORDERS, CLICKS}
    assert tombstones
    assert all(one.topic == ORDERS and one.key is not None for one in tombstones)
    assert any(one.key is None for one in stream if one.topic == CLICKS)
    assert {one.service.codec for one in stream} == {"none", "gzip", "snappy", "lz4"}
    assert {one.service for one in stream} == set(SERVICES)


def test_for_kafka_0_7_it_has_neither_tombstones_nor_lz4() -> None:
    """Its brokers can store neither; all else is the same."""
    legacy = list(make_stream(Random(7), count=5000, start_ms=1_000_000, services=LEGACY_SERVICES, tombstones=False))

    assert None not in {one.value for one in legacy}
    assert {one.service.codec for one in legacy} == {"none", "gzip", "snappy"}
    assert [(one.topic, one.key, one.service.name) for one in legacy[:20]] == [
        (one.topic, one.key, one.service.name) for one in events(20)
    ]


@pytest.mark.parametrize("tombstones", [True, False])
def test_no_two_values_are_alike(*, tombstones: bool) -> None:
    """A record that stands where another should be must be told from it; on Kafka 0.7 by its value alone."""
    stream = make_stream(Random(7), count=5000, start_ms=0, tombstones=tombstones)
    values = [one.value for one in stream if one.value is not None]

    assert len(set(values)) == len(values)


def test_some_keys_get_far_more_than_others() -> None:
    """Partitions of a real topic are not of a size."""
    keys = Counter(one.key for one in events() if one.topic == ORDERS)
    counts = [count for _, count in keys.most_common()]

    assert counts[0] > 20 * counts[len(counts) // 2]


def test_values_are_json_that_adds_up() -> None:
    """People will look at them."""
    order = next(json.loads(one.value) for one in events() if one.topic == ORDERS and one.value is not None)
    click = next(json.loads(one.value) for one in events() if one.topic == CLICKS and one.value is not None)

    assert order["total_cents"] == sum(line["quantity"] * line["cents"] for line in order["lines"])
    assert order["channel"] in {service.name for service in SERVICES}
    assert click["page"].startswith("/")


def test_time_goes_on() -> None:
    """Offsets by time mean something."""
    assert all(earlier.timestamp_ms < later.timestamp_ms for earlier, later in pairwise(events(100)))


def test_no_event_of_the_demo_lies_in_the_future() -> None:
    """Its lag in seconds, and the statistics by hour, would be of times to come."""
    before_ms = round(time.time() * 1000)
    settings = DemoSettings(folder=Path("unused"), records=20_000, seconds=1.0, seed=7)
    events = make_events(settings, make_brokers(settings.generation, settings.folder))
    newest_ms = max(event.timestamp_ms for event in events)
    assert newest_ms <= round(time.time() * 1000)
    assert newest_ms >= before_ms - STEP_MS
