# SPDX-License-Identifier: Apache-2.0
"""The logs of a restore: of one creation of the topic, in their order, each from where the target stands."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.errors import ConfigError
from consumerd.landing.coverage import Coverage
from consumerd.landing.ranges import RangeSet
from consumerd.landing.values import LogId
from consumerd.mirror.records import SourceLog, StoredPosition
from consumerd.spark.replay_plan import PlannedLog, ReplayedTopics, apply_positions, plan_logs

ID = "a5g7j1tvSx-Ob3bjRwaYgQ"


def covered(*logs: tuple[str, int, int], doubtful: tuple[tuple[str, int, int], ...] = ()) -> Coverage:
    def by_log(some: tuple[tuple[str, int, int], ...]) -> dict[LogId, RangeSet]:
        return {LogId.parse(name): RangeSet.of([(start, end)]) for name, start, end in some}

    return Coverage(cluster="c", covered=by_log(logs), doubtful=by_log(doubtful))


def shown(logs: tuple[PlannedLog, ...]) -> list[tuple[str, str, int, int]]:
    return [(str(log.partition), str(log.incarnation), log.position, log.end) for log in logs]


def stored(partition: str, incarnation: str, source: int) -> dict[SourceLog, StoredPosition]:
    position = StoredPosition(
        source=source, target=0, target_topic="orders", target_partition=0, counts_bytes=False, first_segment=0,
        last_segment=-1, request_id=None,
    )  # fmt: skip
    return {SourceLog("c", "g", "orders", partition, incarnation): position}


def test_the_newest_creation_is_taken_with_its_truncations_in_turn() -> None:
    """7.10 comes behind 7.9, and what is doubtful is in the table as well."""
    given = covered(
        ("orders/1@7", 5, 9), ("orders/0@7.10", 20, 30), ("orders/0@7.9", 0, 25), ("orders/0@5", 0, 99), ("other/0@9", 0, 1),
        doubtful=(("orders/1@7", 8, 12),),
    )  # fmt: skip

    assert [
        ("orders/0", "7.9", 0, 25),
        ("orders/0", "7.10", 20, 30),
        ("orders/1", "7", 5, 12),
    ] == shown(plan_logs(given, "orders"))
    assert [("orders/0", "5", 0, 99)] == shown(plan_logs(given, "orders", incarnation="5"))
    assert [("orders/1", "7", 5, 12)] == shown(plan_logs(given, "orders", partition=1))


@pytest.mark.parametrize(
    ("incarnation", "partition", "message"),
    [
        ("7.1", None, "expected one creation of orders without its truncations, .*: 5, 7; got 7.1"),
        ("all", None, "got all"),
        ("6", None, "bronze has no 6 of orders, but 5, 7"),
        (None, 4, r"pipeline\.replay\.partition: bronze has taken no offsets of orders/4"),
    ],
)
def test_what_bronze_does_not_have_is_told(incarnation: str | None, partition: int | None, message: str) -> None:
    """With what it has."""
    given = covered(("orders/0@7", 0, 1), ("orders/0@5", 0, 1))

    with pytest.raises(ConfigError, match=message):
        plan_logs(given, "orders", incarnation=incarnation, partition=partition)


def test_topic_ids_do_not_tell_which_is_the_newest() -> None:
    """They are random: an operator has to say."""
    given = covered((f"orders/0@{ID}", 0, 1), ("orders/0@7", 0, 2))

    with pytest.raises(ConfigError, match=f"name one with --incarnation: 7, {ID}"):
        plan_logs(given, "orders")
    assert [("orders/0", ID, 0, 1)] == shown(plan_logs(given, "orders", incarnation=ID))
    with pytest.raises(ConfigError, match="bronze has taken no offsets of absent"):
        plan_logs(given, "absent")


def test_each_log_goes_on_where_the_target_stands() -> None:
    """What the target has passed is left out, and another creation's positions mean nothing."""
    logs = plan_logs(covered(("orders/0@7", 0, 50), ("orders/0@7.1", 30, 60), ("orders/1@7", 0, 9)), "orders")

    assert logs == apply_positions(logs, stored("0", "5", 20))
    assert [20, 30, 0] == [log.position for log in apply_positions(logs, stored("0", "7", 20))]
    later = apply_positions(logs, {**stored("0", "7", 20), **stored("0", "7.1", 60), **stored("1", "7", 10)})
    assert [(True, True), (False, True), (False, True)] == [(log.passed, log.is_done) for log in later]


def test_topics_are_described_by_their_partitions() -> None:
    """Of Kafka 0.7 those of all brokers; records keep old timestamps, so nothing may be deleted by age."""
    logs = plan_logs(covered(("orders/0-0@7", 0, 50), ("orders/3-0@7", 0, 60), ("orders/3-1@7", 0, 9)), "orders")
    topics = ReplayedTopics("c", logs)

    described = asyncio.run(topics.describe("orders"))

    assert described is not None
    assert ["0-0", "3-0", "3-1"] == [str(key) for key in described.partitions]
    assert ({"retention.ms": "-1"}, None) == (described.settings, described.replication_factor)
    assert asyncio.run(topics.describe("other")) is None
    assert "c" == asyncio.run(topics.find_cluster_id())
