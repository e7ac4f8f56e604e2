# SPDX-License-Identifier: Apache-2.0
"""The memory account: lanes, overdrafts, marks."""

from consumerd.fetch.buffer import Hold, Lane, Marks, MemoryBudget, PartitionAccount, plan_marks

MIB = 1 << 20


def test_takes_what_is_wanted_while_there_is_room():
    """Without pressure nobody waits."""
    budget = MemoryBudget(100)
    hold = budget.take(Lane.REQUEST, least=10, most=60)

    assert hold is not None
    assert (hold.size, budget.held_bytes) == (60, 60)


def test_takes_less_than_wanted_when_there_is_less_room():
    """A smaller request is better than none."""
    budget = MemoryBudget(100)
    budget.charge(70)
    hold = budget.take(Lane.REQUEST, least=10, most=60)

    assert hold is not None
    assert hold.size == 30


def test_released_twice_counts_once():
    """Clean-up paths may overlap."""
    budget = MemoryBudget(100)
    hold = budget.take(Lane.BATCH, least=10, most=10)
    assert hold is not None
    hold.release()
    hold.release()

    assert budget.held_bytes == 0


def test_one_is_let_through_when_there_is_no_room_at_all():
    """Sinks that hold everything, or a batch larger than the budget, stop nobody for ever."""
    budget = MemoryBudget(100)
    budget.charge(100)
    hold = budget.take(Lane.BATCH, least=500, most=500)

    assert hold is not None
    assert budget.take(Lane.BATCH, least=1, most=1) is None


def test_lanes_overdraw_separately():
    """A request that was let through would otherwise wait for its own batch, which waits for it."""
    budget = MemoryBudget(100)
    budget.charge(100)

    assert budget.take(Lane.REQUEST, least=10, most=10) is not None
    assert budget.take(Lane.BATCH, least=10, most=10) is not None
    assert budget.take(Lane.REQUEST, least=10, most=10) is None


def test_who_leaves_the_line_lets_the_next_one_go():
    """The first in line may have waited for more than the second one wants."""
    budget = MemoryBudget(100)
    overdraft = budget.take(Lane.BATCH, least=200, most=200)
    assert overdraft is not None
    rest = overdraft.split(150)
    overdraft.release()
    rest.resize(50)
    served: list[Hold] = []
    first = budget.queue(Lane.BATCH, least=60, most=60, granted=served.append)
    budget.queue(Lane.BATCH, least=40, most=40, granted=served.append)
    assert served == []
    first.cancel()

    assert [hold.size for hold in served] == [40]


def test_an_overdraft_lasts_until_all_parts_of_it_are_released():
    """What a request brought is still beyond the limit when the request itself is over."""
    budget = MemoryBudget(100)
    budget.charge(100)
    request = budget.take(Lane.REQUEST, least=10, most=10)
    assert request is not None
    part = request.split(4)
    request.release()
    assert budget.take(Lane.REQUEST, least=1, most=1) is None
    part.release()
    assert budget.take(Lane.REQUEST, least=1, most=1) is not None


def test_waiters_are_served_in_order_and_newcomers_wait_behind_them():
    """A broker that asks again at once must not starve one that has waited."""
    budget = MemoryBudget(100)
    held = budget.take(Lane.REQUEST, least=100, most=100)
    overdraft = budget.take(Lane.REQUEST, least=1, most=1)
    assert held is not None
    assert overdraft is not None
    granted: list[tuple[str, int]] = []
    budget.queue(Lane.REQUEST, least=50, most=60, granted=lambda hold: granted.append(("first", hold.size)))
    budget.queue(Lane.REQUEST, least=10, most=60, granted=lambda hold: granted.append(("second", hold.size)))
    assert budget.take(Lane.REQUEST, least=1, most=1) is None
    held.release()

    assert granted == [("first", 60), ("second", 39)]


def test_batches_are_served_before_requests():
    """Decoding and delivering is what gives memory back."""
    budget = MemoryBudget(100)
    held = budget.take(Lane.REQUEST, least=100, most=100)
    spare = [budget.take(lane, least=1, most=1) for lane in Lane]
    assert held is not None
    assert all(spare)
    granted: list[str] = []
    budget.queue(Lane.REQUEST, least=50, most=50, granted=lambda hold: granted.append("request"))
    budget.queue(Lane.BATCH, least=90, most=90, granted=lambda hold: granted.append("batch"))
    held.release()

    assert granted == ["batch"]


def test_a_cancelled_ticket_is_never_granted():
    """Its task is gone: nobody would give the memory back."""
    budget = MemoryBudget(100)
    held = budget.take(Lane.BATCH, least=100, most=100)
    spare = budget.take(Lane.BATCH, least=1, most=1)
    assert held is not None
    assert spare is not None
    granted: list[Hold] = []
    ticket = budget.queue(Lane.BATCH, least=10, most=10, granted=granted.append)
    ticket.cancel()
    ticket.cancel()
    held.release()

    assert granted == []
    assert budget.held_bytes == 1


def test_nothing_is_granted_while_estimates_were_too_low():
    """A batch that came out larger than reserved is worked off before more is taken on."""
    budget = MemoryBudget(100)
    batch = budget.take(Lane.BATCH, least=10, most=10)
    assert batch is not None
    batch.resize(300)
    first = budget.take(Lane.BATCH, least=1, most=1)  # the one that is always let through
    assert budget.held_bytes == 301
    assert budget.take(Lane.BATCH, least=1, most=1) is None
    assert first is not None


def test_a_part_larger_than_the_rest_is_charged_in_full():
    """A broker may send a whole message although less was asked for."""
    budget = MemoryBudget(100)
    request = budget.take(Lane.REQUEST, least=10, most=10)
    assert request is not None
    part = request.split(40)
    assert (part.size, request.size, budget.held_bytes) == (40, 0, 40)
    request.release()
    part.release()
    assert budget.held_bytes == 0


def test_a_grant_may_give_memory_back_at_once():
    """A waiter whose partition is gone returns what it was granted from within the call."""
    budget = MemoryBudget(100)
    held = budget.take(Lane.BATCH, least=100, most=100)
    spare = budget.take(Lane.BATCH, least=1, most=1)
    assert held is not None
    assert spare is not None
    granted: list[str] = []

    def refuse(hold: Hold) -> None:
        granted.append("refused")
        hold.release()

    budget.queue(Lane.BATCH, least=100, most=100, granted=refuse)
    budget.queue(Lane.BATCH, least=100, most=100, granted=lambda hold: granted.append("taken"))
    spare.release()
    held.release()

    assert granted == ["refused", "taken"]


def test_pressure_is_when_somebody_waits():
    """Sinks flush early then."""
    budget = MemoryBudget(10)
    budget.take(Lane.BATCH, least=10, most=10)
    budget.take(Lane.BATCH, least=10, most=10)
    assert not budget.under_pressure
    budget.queue(Lane.BATCH, least=1, most=1, granted=lambda hold: None)
    assert budget.under_pressure


def test_few_partitions_have_room_for_two_whole_fetches():
    """One is consumed while the next one waits: that is what keeps a single partition busy."""
    marks = plan_marks(256 * MIB, 1, 4 * MIB)

    assert marks == Marks(ask=4 * MIB, high=6 * MIB, low=4 * MIB + MIB // 2, batch=4 * MIB)


def test_all_partitions_together_keep_half_of_the_limit_and_a_third_in_batches():
    """What waits is given up where others need it, batches that are at a sink are not: they leave two thirds."""
    for limit in (64 * MIB, 128 * MIB, 256 * MIB):
        for count in (1, 2, 8, 10, 24, 42, 43, 100, 200, 1000, 100_000):
            marks = plan_marks(limit, count, 4 * MIB)
            assert marks.out * count <= limit // 3
            assert (marks.high + marks.ask) * count <= limit // 2 + count * 3


def test_what_is_compressed_becomes_smaller_batches_where_there_are_many_partitions():
    """All of them have one at a time."""
    counts = (0, 1, 4, 5, 8, 42, 200)
    batches = [plan_marks(256 * MIB, count, 4 * MIB).batch for count in counts]

    assert batches == [4 * MIB, 4 * MIB, 4 * MIB, 256 * MIB // 80, 2 * MIB, 2 * MIB, 256 * MIB // 600]


def test_where_memory_is_scarce_no_more_waits_than_has_to():
    """As where half of the default is set aside for Arrow: what is resident must stay within what is promised."""
    assert plan_marks(128 * MIB, 1, 8 * MIB) == Marks(ask=8 * MIB, high=12 * MIB, low=8 * MIB, batch=MIB)


def test_a_partition_is_full_above_the_high_mark_until_it_falls_to_the_low_one():
    """Without the distance between them a partition would enter and leave every other request."""
    marks = Marks(ask=4, high=6, low=4, batch=4)
    account = PartitionAccount()
    seen = []
    for held in (4, 6, 7, 5, 4, 6):
        account.held_bytes = held
        seen.append(account.is_full(marks))

    assert seen == [False, False, True, True, False, False]


def test_what_is_at_the_sink_counts_beyond_a_batch_and_leaves_the_partition_out_until_it_is_given_back():
    """Compressed units may give many times what they take; a sink that hangs has them for as long as it hangs."""
    marks = Marks(ask=4, high=6, low=4, batch=5)
    account = PartitionAccount()
    account.held_bytes, account.lent_bytes = 4, 5
    assert not account.is_full(marks)
    account.lent_bytes = 8
    assert account.is_full(marks)
    assert account.full, "what the gauge of held-up sinks is made from"
    assert not account.has_emptied(marks)
    account.lent_bytes = 5
    assert account.has_emptied(marks)
    assert not account.is_full(marks)
    assert not account.full
