# SPDX-License-Identifier: Apache-2.0
"""The memory account under any sequence of calls: nothing leaks, nobody starves, the limit holds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from consumerd.fetch.buffer import Hold, Kind, Lane, MemoryBudget, Ticket, plan_marks

LIMIT = 1000
SINKS = 250
SIZES = st.integers(1, 1500)


class Accounts(RuleBasedStateMachine):
    """Takers and waiters in both lanes, sinks that charge, estimates that were wrong."""

    holds = Bundle("holds")
    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.budget = MemoryBudget(LIMIT, sink_bytes=SINKS)
        self.live: list[Hold] = []
        self.waiting: dict[Lane, list[Ticket]] = {lane: [] for lane in Lane}
        self.order: list[tuple[Lane, Ticket]] = []
        self.charged = 0
        self.surprises = 0

    def _granted(self, lane: Lane, least: int, hold: Hold) -> None:
        """Check what every grant promises; what was there before it is what is held without it."""
        before = self.budget.held_bytes - hold.size
        assert hold.size >= least
        within = self.budget.held_bytes <= LIMIT - self._left_to_sinks()
        assert within or hold.size == least
        if not within:
            others = [one for one in self.live if one._overdraft is not None and one._lane is lane and one.size]
            assert not others, "one overdraft a lane"
        assert before >= 0
        self.live.append(hold)

    def _left_to_sinks(self) -> int:
        return max(0, SINKS - self.charged)

    @rule(target=holds, lane=st.sampled_from(Lane), least=SIZES, extra=st.integers(0, 500))
    def take(self, lane: Lane, least: int, extra: int) -> Hold | None:
        waited = bool(self.waiting[lane])
        hold = self.budget.take(lane, least=least, most=least + extra)
        if hold is not None:
            assert not waited, "newcomers stand behind those that wait"
            self._granted(lane, least, hold)
        return hold

    @rule(target=tickets, lane=st.sampled_from(Lane), least=SIZES, extra=st.integers(0, 500))
    def queue(self, lane: Lane, least: int, extra: int) -> tuple[Lane, Ticket]:
        box: list[Ticket] = []

        def granted(hold: Hold) -> None:
            self._granted(lane, least, hold)
            if box:
                assert self.waiting[lane][0] is box[0], "first come, first served"
                self.waiting[lane].pop(0)
            else:
                box.append(None)  # type: ignore[arg-type]  # granted before the ticket was known

        ticket = self.budget.queue(lane, least=least, most=least + extra, granted=granted)
        if not box:
            box.append(ticket)
            self.waiting[lane].append(ticket)
        return lane, ticket

    @rule(entry=consumes(tickets))
    def cancel(self, entry: tuple[Lane, Ticket]) -> None:
        lane, ticket = entry
        self.waiting[lane] = [one for one in self.waiting[lane] if one is not ticket]
        ticket.cancel()

    @rule(hold=holds, size=SIZES)
    def resize(self, hold: Hold | None, size: int) -> None:
        if hold is not None and hold.size:
            self.surprises += max(0, size - hold.size)
            hold.resize(size)

    @rule(hold=holds, kind=st.sampled_from([Kind.FETCHED, Kind.BATCHES]), size=SIZES)
    def become(self, hold: Hold | None, kind: Kind, size: int) -> None:
        if hold is not None and hold.size:
            hold.become(kind, size)
            assert (hold.kind, hold.size) == (kind, size)

    @rule(target=holds, hold=holds, size=SIZES)
    def split(self, hold: Hold | None, size: int) -> Hold | None:
        if hold is None or not hold.size:
            return None
        self.surprises += max(0, size - hold.size)
        part = hold.split(size)
        assert part.size == size
        self.live.append(part)
        return part

    @rule(hold=consumes(holds))
    def release(self, hold: Hold | None) -> None:
        if hold is not None:
            hold.release()

    @rule(size=SIZES)
    def charge(self, size: int) -> None:
        self.charged += size
        self.budget.charge(size)

    @precondition(lambda self: self.charged)
    @rule()
    def discharge(self) -> None:
        size, self.charged = self.charged, 0
        self.budget.charge(-size)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        assert self.budget.held_bytes == self.charged + sum(hold.size for hold in self.live)
        kinds = {kind: sum(hold.size for hold in self.live if hold.kind is kind) for kind in Kind}
        kinds[Kind.SINKS] += self.charged
        assert self.budget.held_by_kind == kinds

    @invariant()
    def nobody_waits_who_could_be_served(self) -> None:
        for lane in Lane:
            if self.waiting[lane]:
                assert self.budget.under_pressure
                room = LIMIT - self._left_to_sinks() - self.budget.held_bytes
                assert room < self.waiting[lane][0].least
                assert any(hold._overdraft is not None and hold._lane is lane for hold in self.live)

    def teardown(self) -> None:
        """Whatever happened: once everybody lets go, all who waited are served, and nothing is held."""
        self.budget.charge(-self.charged)
        while any(hold.size or hold._overdraft for hold in self.live):
            for hold in list(self.live):
                hold.release()
        assert not any(self.waiting.values())
        assert self.budget.held_bytes == 0


Accounts.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAccounts = Accounts.TestCase


def test_marks_share_half_of_the_limit() -> None:
    """Whatever the numbers: all partitions that stand still together leave half of the memory to those that flow."""
    for limit in (1, 1000, 1 << 20, 1 << 28, 1 << 34):
        for partitions in (1, 2, 3, 7, 100, 5000):
            for usual in (1, 1 << 16, 1 << 22, 1 << 26):
                marks = plan_marks(limit, partitions, usual)
                assert 0 < marks.ask <= usual
                assert marks.low <= marks.high
                assert (marks.high + marks.ask) * partitions <= limit // 2 + 3 * partitions
