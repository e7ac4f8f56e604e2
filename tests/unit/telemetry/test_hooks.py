# SPDX-License-Identifier: Apache-2.0
"""Who is told of what happens, and what a scrape says of it."""

from prometheus_client import CollectorRegistry

from consumerd.model import TopicPartition
from consumerd.telemetry.hooks import FanOutHooks, Hooks
from consumerd.telemetry.metrics import MetricsHooks

A, B = (TopicPartition.modern("logs", number) for number in range(2))


class Commits(Hooks):
    """Listens to one hook of all."""

    def __init__(self) -> None:
        self.seen: list[tuple[TopicPartition, int]] = []

    def offset_committed(self, partition: TopicPartition, position: int) -> None:
        """See Hooks."""
        self.seen.append((partition, position))


def test_everybody_who_listens_is_told_once() -> None:
    """Nobody, one, two of three listen; and whoever passes on to others listens to whatever they do."""
    first, second, third = Commits(), Commits(), Commits()
    for hooks in (FanOutHooks(), FanOutHooks(Hooks(), first), FanOutHooks(second, Hooks(), FanOutHooks(third))):
        hooks.offset_committed(A, 5)
        hooks.commit_failed(A, "nobody listens")
    assert first.seen == second.seen == third.seen == [(A, 5)]


def delivered(registry: CollectorRegistry, partition: TopicPartition) -> tuple[float | None, ...]:
    labels = {"topic": partition.topic, "partition": str(partition.partition)}
    names = ("records_fetched", "records_delivered", "delivered_bytes")
    return tuple(registry.get_sample_value(f"consumerd_{name}_total", labels) for name in names)


def test_a_partition_is_counted_until_it_is_released_and_from_zero_when_it_comes_back() -> None:
    """What is kept of a partition, to count it quickly, must go with it: else nobody sees what is counted then."""
    registry = CollectorRegistry()
    hooks = MetricsHooks(registry)

    def deliver(partition: TopicPartition) -> None:
        hooks.batch_fetched(partition, records=3, size=300, high_watermark=9)
        hooks.batch_delivered(partition, records=2, size=200, position=2)

    deliver(A)
    deliver(A)
    deliver(B)
    assert delivered(registry, A) == (6, 4, 400)
    assert delivered(registry, B) == (3, 2, 200)

    hooks.partition_released(A)
    hooks.partition_released(A)
    assert delivered(registry, A) == (None, None, None)
    deliver(A)
    assert delivered(registry, A) == (3, 2, 200)
    assert delivered(registry, B) == (3, 2, 200)


def test_requests_are_counted_by_their_kind() -> None:
    """One histogram a kind, whichever broker answered."""
    registry = CollectorRegistry()
    hooks = MetricsHooks(registry)
    for api, seconds in (("FETCH", 0.5), ("METADATA", 0.25), ("FETCH", 1.5)):
        hooks.request_finished(None, api, seconds)
    taken = [
        registry.get_sample_value("consumerd_broker_request_seconds_sum", {"api": api}) for api in ("FETCH", "METADATA")
    ]
    assert taken == [2.0, 0.25]
