# SPDX-License-Identifier: Apache-2.0
"""Where runs of records end, what their keys are, and how far the position may move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.http.outbox import Outbox, RecordRun, make_key_prefix


def fill(outbox: Outbox, start: int, end: int, *, size: int = 4, now: float = 0.0) -> None:
    """Add one record at each offset of ``[start, end)``."""
    offsets = range(start, end)
    outbox.add([b"x" * size for _ in offsets], offsets, [0] * len(offsets), [one + 1 for one in offsets], now)


def ready(outbox: Outbox) -> list[str]:
    return [run.describe() for run in outbox.next_runs(1000)]


def accept(run: RecordRun) -> None:
    run.accepted = True


def test_runs_end_by_number_of_records() -> None:
    """And not where batches do."""
    outbox = Outbox(records=5, size=1000, position=0)
    fill(outbox, 0, 3)
    fill(outbox, 3, 12)

    assert ready(outbox) == ["0-4", "5-9"]


def test_runs_end_by_bytes() -> None:
    """A line counts with its end; one that does not fit begins the next run, and one that is too long is alone."""
    outbox = Outbox(records=100, size=15, position=0)
    fill(outbox, 0, 3)
    outbox.add([b"y" * 40], [3], [0], [4], 0.0)
    fill(outbox, 4, 5)
    outbox.cut()

    assert ready(outbox) == ["0-2", "3-3", "4-4"]
    assert [run.size for run in outbox.next_runs(9)] == [15, 41, 5]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.lists(st.integers(1, 20), min_size=1, max_size=20),
    st.integers(1, 9),
    st.integers(1, 60),
)
def test_runs_do_not_depend_on_batches(sizes: list[int], cuts: list[int], records: int, size: int) -> None:
    """So a successor that begins at an acknowledged position makes the same runs and keys again."""
    whole, parts = (Outbox(records=records, size=size, position=0) for _ in range(2))
    lines = [b"x" * one for one in sizes]
    offsets = list(range(len(lines)))

    def add(outbox: Outbox, begin: int, end: int) -> None:
        rows = slice(begin, end)
        outbox.add(lines[rows], offsets[rows], [0] * len(lines[rows]), [one + 1 for one in offsets[rows]], 0.0)

    add(whole, 0, len(lines))
    begin = 0
    for count in cuts:
        add(parts, begin, begin + count)
        begin += count
    add(parts, begin, len(lines))
    again = Outbox(records=records, size=size, position=0)
    runs = whole.next_runs(1000)
    if len(runs) > 1:
        add(again, runs[1].offsets[0], len(lines))

    assert ready(whole) == ready(parts)
    assert ready(whole)[1:] == ready(again)
    assert all(len(run) <= records and (len(run) == 1 or run.size <= size) for run in runs)
    assert whole.held_bytes == parts.held_bytes


def test_position_moves_over_accepted_runs_in_order() -> None:
    """What was accepted behind one that was not may be lost in a crash, so it does not count."""
    outbox = Outbox(records=2, size=1000, position=0)
    fill(outbox, 0, 6)
    first, second, third = outbox.next_runs(3)
    accept(second)
    accept(third)
    outbox.settle()

    assert (outbox.acknowledged, outbox.next_runs(1)) == (0, [first])
    accept(first)
    outbox.settle()
    assert (outbox.acknowledged, outbox.is_empty, outbox.held_bytes) == (6, True, 0)


def test_gaps_are_acknowledged_with_the_record_before_them() -> None:
    """Offsets without a record move the position, when everything before them is safe."""
    outbox = Outbox(records=2, size=1000, position=0)
    outbox.reach(4)
    assert outbox.acknowledged == 4

    fill(outbox, 4, 5)
    outbox.reach(10)
    assert outbox.acknowledged == 4
    fill(outbox, 10, 11)
    outbox.reach(20)
    (run,) = outbox.next_runs(9)
    accept(run)
    outbox.settle()
    assert outbox.acknowledged == 20


def test_open_run_is_due_by_its_first_record() -> None:
    """Later records of it do not postpone it."""
    outbox = Outbox(records=3, size=1000, position=0)
    assert outbox.opened_at is None
    fill(outbox, 0, 1, now=5.0)
    fill(outbox, 1, 2, now=6.0)
    assert outbox.opened_at == 5.0
    fill(outbox, 2, 4, now=7.0)
    assert outbox.opened_at == 7.0
    outbox.cut()
    assert outbox.opened_at is None


def test_halves_take_the_place_of_a_run() -> None:
    """In order, with the whole's memory and end."""
    outbox = Outbox(records=3, size=1000, position=0)
    fill(outbox, 0, 6)
    outbox.reach(9)
    held = outbox.held_bytes
    outbox.halve(outbox.next_runs(2)[1])

    assert ready(outbox) == ["0-2", "3-3", "4-5"]
    assert [run.end for run in outbox.next_runs(9)] == [3, 4, 9]
    assert outbox.held_bytes == held


def test_key_names_cluster_topic_incarnation_partition_and_records() -> None:
    """A topic that was made again has other records at the same offsets, which no receiver may take for repeated."""
    partition = TopicPartition.modern("orders", 3)

    assert make_key_prefix("2-17", partition, Incarnation(7)) == "2-17/orders/7/3/"
    assert make_key_prefix("2-17", partition, Incarnation(8)) != make_key_prefix("2-17", partition, Incarnation(7))
    assert make_key_prefix("2-17", partition, Incarnation(7, 1)) != make_key_prefix("2-17", partition, Incarnation(7))


def test_key_tells_records_that_share_an_offset_apart() -> None:
    """All records of a compressed message of Kafka 0.7 have its offset."""
    outbox = Outbox(records=2, size=1000, position=0)
    outbox.add([b"a"] * 5, [40] * 5, range(5), [40, 40, 40, 40, 90], 0.0)
    outbox.cut()

    assert ready(outbox) == ["40-40.1", "40.2-40.3", "40.4-40.4"]
    assert [run.end for run in outbox.next_runs(9)] == [40, 40, 90]


def test_names_of_old_topics_are_encoded_in_keys() -> None:
    """Kafka 0.7 allows any character, and a header does not."""
    partition = TopicPartition('a "b"/é', PartitionKey(1, BrokerId(0)))

    assert make_key_prefix("c", partition, Incarnation(7)) == "c/a%20%22b%22%2F%C3%A9/7/0-1/"
