"""Which partitions a request names, and for how many bytes."""

from dataclasses import dataclass, field

from consumerd.fetch.buffer import Marks, PartitionAccount
from consumerd.fetch.cursor import Cursor
from consumerd.fetch.planner import USEFUL_BYTES, FetchPlan, plan_fetch
from consumerd.model import TopicPartition

MIB = 1 << 20
MARKS = Marks(ask=4 * MIB, high=6 * MIB, low=4 * MIB)


@dataclass
class Feed:
    cursor: Cursor
    account: PartitionAccount = field(default_factory=PartitionAccount)


def feeds(count: int) -> list[Feed]:
    return [Feed(Cursor(TopicPartition.modern("t", n), 10 * n, limit_bytes=64 * MIB)) for n in range(count)]


def plan(some: list[Feed], *, now: float = 0.0, response_bytes: int = 50 * MIB) -> FetchPlan:
    return plan_fetch(some, now=now, marks=MARKS, response_bytes=response_bytes)


def partitions(of: FetchPlan) -> list[int]:
    return [ask.cursor.key[1] for ask in of.asks]


def test_asks_for_every_partition_in_the_order_given():
    """The loop turns that order, so that each partition comes first some time."""
    some = feeds(3)
    some = [some[2], some[0], some[1]]
    made = plan(some)

    assert partitions(made) == [2, 0, 1]
    assert [ask.offset for ask in made.asks] == [20, 0, 10]
    assert made.max_bytes == 12 * MIB


def test_leaves_out_full_partitions_and_counts_them():
    """A partition that nobody consumes does not hold up the others; that it was left out shortens the wait."""
    some = feeds(3)
    some[1].account.held_bytes = 7 * MIB
    made = plan(some)

    assert partitions(made) == [0, 2]
    assert made.full == 1


def test_leaves_out_partitions_that_back_off_and_says_when_the_first_is_due():
    """The loop sleeps until then when there is nothing else to do."""
    some = feeds(3)
    some[0].cursor.back_off(5.0)
    some[1].cursor.back_off(3.0)
    some[2].cursor.fail()
    made = plan(some)

    assert (made.asks, made.due) == ((), 3.0)
    assert partitions(plan(some, now=3.0)) == [1]


def test_a_grown_partition_is_asked_for_what_it_needs():
    """Otherwise an oversized message never arrives."""
    some = feeds(2)
    some[0].cursor.grow(4 * MIB, 9 * MIB)
    made = plan(some)

    assert [ask.max_bytes for ask in made.asks] == [9 * MIB, 4 * MIB]
    assert made.least_bytes == 9 * MIB


def test_a_response_is_planned_for_no_more_than_its_share():
    """One broker must not reserve the memory of the others."""
    made = plan(feeds(100), response_bytes=16 * MIB)

    assert made.max_bytes == 16 * MIB


def test_a_bounded_response_names_all_partitions_whatever_was_granted():
    """From version 3 on the broker fills the response in order and stops at the limit."""
    made = plan(feeds(100)).fit(MIB, bounded=True)

    assert len(made.asks) == 100
    assert made.max_bytes == MIB


def test_an_unbounded_response_shares_what_was_granted_evenly():
    """Before version 3 the response can be as large as the sum of what was asked for."""
    made = plan(feeds(8)).fit(8 * MIB, bounded=False)

    assert [ask.max_bytes for ask in made.asks] == [MIB] * 8


def test_partitions_for_which_too_little_is_left_wait_for_their_turn():
    """A hundred requests of a few bytes each would bring nothing."""
    made = plan(feeds(100)).fit(4 * USEFUL_BYTES, bounded=False)

    assert partitions(made) == [0, 1, 2, 3]
    assert (made.cut, made.full) == (96, 0)


def test_the_first_partition_is_always_asked_for():
    """What was granted is at least what it needs."""
    some = feeds(3)
    some[0].cursor.grow(4 * MIB, 30 * MIB)
    made = plan(some)
    made = made.fit(made.least_bytes, bounded=False)

    assert [ask.max_bytes for ask in made.asks] == [30 * MIB]
