# SPDX-License-Identifier: Apache-2.0
"""What a trigger of a stream reads, and what lies between two checkpointed sets of offsets."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import example, given
from hypothesis import strategies as st

from consumerd.errors import OffsetOutOfRange
from consumerd.model import BrokerId, LogRange, PartitionKey, TopicPartition
from consumerd.spark.datasource.planning import OffsetRange
from consumerd.spark.datasource.triggers import plan_trigger, ranges_between

A, B, C = (TopicPartition.modern("orders", number) for number in range(3))


def _texts(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[str]:
    return [str(one) for one in ranges_between(start, end)]


def test_a_trigger_takes_all_there_is_where_there_is_no_limit() -> None:
    """No limit is no limit, and a second look at the same logs has nothing to do."""
    logs = {A: LogRange(0, 10), B: LogRange(0, 5)}
    plan = plan_trigger({A: 4, B: 5}, logs)

    assert plan.end == {A: 10, B: 5}
    assert (plan.taken, plan.available, plan.losses) == (6, 6, ())
    assert plan_trigger(plan.end, logs).end == plan.end


def test_a_limit_is_shared_by_how_much_there_is() -> None:
    """A large backlog must not keep a small one waiting, nor the other way round."""
    plan = plan_trigger({A: 0, B: 0, C: 0}, {A: LogRange(0, 900), B: LogRange(0, 100), C: LogRange(0, 1)}, most=100)

    assert plan.end[C] == 1
    assert 85 <= plan.end[A] <= 90
    assert 9 <= plan.end[B] <= 10
    assert plan.available == 1001


def test_a_new_partition_begins_with_a_step_without_rows() -> None:
    """A repeated trigger must read the same rows, so nothing may depend on what the log begins with by then."""
    start = {A: 3}
    plan = plan_trigger(start, {A: LogRange(0, 3), B: LogRange(0, 7)})

    assert plan.end == {A: 3, B: 0}
    assert _texts(start, plan.end) == []
    after = plan_trigger(plan.end, {A: LogRange(0, 3), B: LogRange(0, 7)})
    assert _texts(plan.end, after.end) == ["orders/1 [0, 7)"]


def test_a_new_partition_that_has_lost_its_beginning_is_a_loss() -> None:
    """Its first records came and went while nobody looked."""
    plan = plan_trigger({A: 3}, {A: LogRange(0, 3), B: LogRange(5, 7)})

    assert plan.end == {A: 3, B: 5}
    assert ["orders/1: a new partition that begins with offset 5; what was before it is gone"] == [
        str(loss) for loss in plan.losses
    ]


def test_a_partition_that_is_gone_is_a_loss_and_left_out() -> None:
    """Its topic was deleted: whoever reads must hear of it."""
    plan = plan_trigger({A: 3, B: 9}, {A: LogRange(0, 5)})

    assert plan.end == {A: 5}
    assert ["orders/1: the partition is not there any more; it was read up to 9"] == [str(loss) for loss in plan.losses]
    assert _texts({A: 3, B: 9}, plan.end) == ["orders/0 [3, 5)"]


def test_a_log_that_ends_before_the_position_is_a_loss_and_goes_on_at_its_end() -> None:
    """It was made again, or has lost its end; what was read must not be read again."""
    start = {A: 100}
    plan = plan_trigger(start, {A: LogRange(0, 5)})

    assert plan.end == {A: 5}
    assert [OffsetOutOfRange] == [type(loss) for loss in plan.losses]
    assert _texts(start, plan.end) == []
    assert plan.taken == 0


def test_a_log_that_begins_behind_the_position_is_a_loss_which_counts_for_nothing() -> None:
    """Retention has passed: the limit is for what can be read, else triggers without rows would follow one another."""
    start = {A: 10}
    plan = plan_trigger(start, {A: LogRange(1000, 2000)}, most=50)

    assert plan.end == {A: 1050}
    assert (plan.taken, plan.available) == (50, 1000)
    assert "offset 10 is outside the broker's log [1000, 2000]" in str(plan.losses[0])
    assert _texts(start, plan.end) == ["orders/0 [10, 1050)"]


def test_nothing_behind_the_target_is_read() -> None:
    """availableNow must come to an end while producers go on, and with partitions that are made meanwhile."""
    target = {A: 5, B: 5}
    logs = {A: LogRange(0, 50), B: LogRange(0, 50), C: LogRange(0, 50)}
    plan = plan_trigger({A: 0, B: 7}, logs, target=target)
    without = plan_trigger({A: 0, C: 3}, logs, target=target)

    assert plan.end == {A: 5, B: 7}
    assert without.end == {A: 5, B: 0, C: 3}
    assert plan_trigger(plan.end, logs, target=target).end == plan.end


def test_a_target_that_retention_has_passed_is_reached() -> None:
    """Or availableNow would never end."""
    plan = plan_trigger({A: 0}, {A: LogRange(20, 50)}, target={A: 5})

    assert plan.end == {A: 5}
    assert plan.taken == 0


_offsets = st.integers(0, 40)
_logs = st.dictionaries(
    st.sampled_from([A, B, C]), st.tuples(_offsets, _offsets).map(lambda two: LogRange(min(two), max(two)))
)


@given(start=st.dictionaries(st.sampled_from([A, B, C]), _offsets), logs=_logs, most=st.none() | st.integers(1, 60))
@example(start={}, logs={A: LogRange(0, 1), B: LogRange(0, 1), C: LogRange(0, 4)}, most=3)
def test_triggers_come_to_the_ends_of_logs_and_read_each_offset_once(
    start: dict[TopicPartition, int], logs: dict[TopicPartition, LogRange], most: int | None
) -> None:
    """Whatever the positions, the logs and the limit: all that is there from the start on, once, then silence."""
    read: dict[TopicPartition, list[int]] = {partition: [] for partition in logs}
    begun = {one: start.get(one, log.earliest) for one, log in logs.items()}
    position = dict(start)
    for _ in range(500):
        plan = plan_trigger(position, logs, most=most)
        between = ranges_between(position, plan.end)
        if most is not None:
            assert plan.taken <= max(most, len(between))
        for one in between:
            log = logs[one.partition]
            read[one.partition] += range(max(one.start, log.earliest), one.end)
        if plan.end == position:
            break
        position = dict(plan.end)

    assert {one: log.latest for one, log in logs.items()} == position
    assert {
        one: list(range(max(begun[one], log.earliest), log.latest)) if begun[one] <= log.latest else []
        for one, log in logs.items()
    } == read


L0, L1 = (TopicPartition("orders", PartitionKey(0, BrokerId(broker))) for broker in range(2))


def test_ends_that_a_limit_puts_into_messages_of_kafka_0_7_are_told() -> None:
    """Whoever reads the log moves them. One that is not cut ends with the log, and so with a message."""
    plan = plan_trigger(
        {L0: 100, L1: 0, A: 0}, {L0: LogRange(0, 900), L1: LogRange(0, 1), A: LogRange(0, 900)}, most=50
    )

    assert plan.cuts == (OffsetRange(partition=L0, start=100, end=900),)
    assert 100 < plan.end[L0] < 900
    assert plan.end[L1] == 1
    assert plan_trigger({L0: 100}, {L0: LogRange(0, 900)}).cuts == ()


def test_a_partition_of_kafka_0_7_that_is_missing_is_away_and_keeps_its_offset() -> None:
    """It comes back with its broker. Counted as deleted, it would be read from its beginning then."""
    plan = plan_trigger({L0: 5, L1: 7}, {L0: LogRange(0, 9)})

    assert plan.end == {L0: 9, L1: 7}
    assert (plan.away, plan.losses) == ((L1,), ())
    remade = plan_trigger({L1: 7}, {}, remade=["orders"])
    assert (remade.away, len(remade.losses)) == ((), 1)
