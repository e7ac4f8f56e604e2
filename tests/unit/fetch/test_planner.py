# SPDX-License-Identifier: Apache-2.0
"""Which partitions a request names, and for how many bytes."""

from dataclasses import dataclass, field

from consumerd.config.settings import FetchSection
from consumerd.fetch.buffer import Marks, PartitionAccount, plan_marks
from consumerd.fetch.cursor import Cursor
from consumerd.fetch.planner import USEFUL_BYTES, Agenda, FetchPlan, round_up
from consumerd.model import TopicPartition

MIB = 1 << 20
MARKS = Marks(ask=4 * MIB, high=6 * MIB, low=4 * MIB, batch=4 * MIB)


@dataclass
class Feed:
    cursor: Cursor
    account: PartitionAccount = field(default_factory=PartitionAccount)


def feeds(count: int) -> list[Feed]:
    return [Feed(Cursor(TopicPartition.modern("t", n), 10 * n, limit_bytes=64 * MIB)) for n in range(count)]


def plan(some: list[Feed], *, now: float = 0.0, response_bytes: int = 50 * MIB) -> FetchPlan:
    return agenda(some).plan(now=now, marks=MARKS, response_bytes=response_bytes)


def agenda(some: list[Feed]) -> Agenda[Feed]:
    made: Agenda[Feed] = Agenda()
    for feed in some:
        made.add(feed)
    return made


def partitions(of: FetchPlan) -> list[int]:
    return [number for _, number in of.asks]


def test_asks_for_every_partition_in_the_order_given():
    """The loop turns that order, so that each partition comes first some time."""
    some = feeds(3)
    some = [some[2], some[0], some[1]]
    made = plan(some)

    assert partitions(made) == [2, 0, 1]
    assert [ask.offset for ask in made.asks.values()] == [20, 0, 10]
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

    assert (made.asks, made.due) == ({}, 3.0)
    assert partitions(plan(some, now=3.0)) == [1]


def test_a_grown_partition_is_asked_for_what_it_needs():
    """Otherwise an oversized message never arrives."""
    some = feeds(2)
    some[0].cursor.grow(4 * MIB, 9 * MIB)
    made = plan(some)

    assert [ask.max_bytes for ask in made.asks.values()] == [9 * MIB, 4 * MIB]
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

    assert [ask.max_bytes for ask in made.asks.values()] == [MIB] * 8


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

    assert [ask.max_bytes for ask in made.asks.values()] == [30 * MIB]


def test_only_what_changed_is_looked_at_again():
    """Ten thousand quiet partitions cost a request next to nothing."""
    some = feeds(3)
    planned = agenda(some)
    first = planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)
    planned.sent(first)
    some[1].cursor.advance(11)
    some[2].account.held_bytes = 7 * MIB
    planned.touch(some[2])
    second = planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)

    assert first.news is None
    assert list(second.news or ()) == [("t", 1), ("t", 2)]
    assert [ask.offset for ask in second.asks.values()] == [0, 11]
    assert (second.total_bytes, second.full) == (8 * MIB, 1)


def test_what_was_planned_and_not_sent_is_news_still():
    """A plan is thrown away when feeds come while it waits for memory."""
    some = feeds(2)
    planned = agenda(some)
    planned.sent(planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB))
    some[0].cursor.advance(1)
    planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)
    some[1].cursor.advance(11)

    assert list(planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB).news or ()) == [("t", 0), ("t", 1)]


def test_a_suspect_goes_alone_and_all_is_news_afterwards():
    """Who breaks the connection must be found out, and the session has forgotten the others by then."""
    some = feeds(3)
    planned = agenda(some)
    planned.sent(planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB))
    some[1].cursor.suspected = True
    alone = planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)
    planned.sent(alone)
    some[1].cursor.suspected = False
    after = planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)

    assert (partitions(alone), alone.alone, alone.max_bytes) == ([1], True, 4 * MIB)
    assert (len(after.asks), after.news) == (3, None)


def test_a_removed_feed_changes_nothing_any_more():
    """Its cursor lives on in another broker's agenda, or in none."""
    some = feeds(2)
    planned = agenda(some)
    planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)
    assert some[0].cursor.round is planned.round
    assert planned.remove(some[0])
    some[0].cursor.advance(7)
    planned.touch(some[0])

    assert not planned.remove(some[0])
    assert partitions(planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)) == [1]
    assert (some[0].cursor.round, some[0].cursor.changes) == (None, None)


def test_another_feed_of_a_partition_takes_its_place():
    """It may stand elsewhere; what the old one does must not touch it."""
    some = feeds(1)
    planned = agenda(some)
    planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)
    other = Feed(Cursor(TopicPartition.modern("t", 0), 77, limit_bytes=64 * MIB))
    planned.add(other)

    assert not planned.remove(some[0])
    made = planned.plan(now=0.0, marks=MARKS, response_bytes=50 * MIB)
    assert [ask.offset for ask in made.asks.values()] == [77]
    assert planned.find(("t", 0)) is other


def test_the_number_of_partitions_is_rounded_so_that_shares_stay_the_same():
    """While thousands are claimed one by one, what each is asked for changes a few dozen times, and never by much."""
    rounded = [round_up(count) for count in range(1, 10_001)]

    assert rounded[:16] == list(range(1, 17))
    assert all(count <= one <= count * 9 / 8 for count, one in enumerate(rounded, 1))
    assert rounded == sorted(rounded)
    assert len(set(rounded)) < 100
    assert round_up(0) == 0


def test_partitions_are_asked_for_8_mib_by_default_where_the_memory_allows():
    """Large fetches are worth a factor of two; all that partitions may keep has to fit into the half of the budget."""
    default = FetchSection()
    asks = [
        plan_marks(budget, round_up(partitions), default.max_partition_bytes).ask
        for budget, partitions in ((default.memory_budget_bytes, 1), (default.memory_budget_bytes, 6))
    ]
    small = plan_marks(16 * MIB, 1, default.max_partition_bytes)
    many = plan_marks(default.memory_budget_bytes, round_up(10_000), default.max_partition_bytes)

    assert asks == [8 * MIB, 8 * MIB]
    assert 2 * MIB < small.ask < 4 * MIB
    assert small.high + small.ask <= 8 * MIB
    assert 4096 < many.ask < 8192
    assert 10_000 * (many.high + many.ask) <= default.memory_budget_bytes // 2
