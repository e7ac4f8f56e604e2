# SPDX-License-Identifier: Apache-2.0
"""An agenda that looks at changes alone comes to what one comes to that looks at everything."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from consumerd.client.fetch_session import FetchSession
from consumerd.fetch.buffer import Marks, PartitionAccount
from consumerd.fetch.cursor import Cursor, CursorState
from consumerd.fetch.planner import Agenda, Ask, FetchPlan
from consumerd.model import TopicPartition

LIMIT = 1000
numbers = st.integers(0, 5)


@dataclass(eq=False)
class Feed:
    cursor: Cursor
    account: PartitionAccount = field(default_factory=PartitionAccount)


class ChangingAgenda(RuleBasedStateMachine):
    """Partitions come, go and change; now and then a request is sent, with a session and without."""

    def __init__(self) -> None:
        super().__init__()
        self.agenda: Agenda[Feed] = Agenda()
        self.feeds: dict[int, Feed] = {}
        self.session = FetchSession(lambda: self.now)
        self.broker: dict[tuple[str, int], tuple[int, int]] = {}
        self.marks = Marks(ask=10, high=15, low=10, batch=10)
        self.now = 0.0

    @rule(number=numbers, position=st.integers(0, 3))
    def add(self, number: int, position: int) -> None:
        feed = Feed(Cursor(TopicPartition.modern("t", number), position, limit_bytes=LIMIT))
        self.feeds[number] = feed
        self.agenda.add(feed)

    @rule(number=numbers)
    def remove(self, number: int) -> None:
        if (feed := self.feeds.pop(number, None)) is not None:
            self.agenda.remove(feed)

    @rule(number=numbers, what=st.sampled_from(["confirm", "fail", "activate", "move", "close"]))
    def change(self, number: int, what: str) -> None:
        if (feed := self.feeds.get(number)) is not None:
            getattr(feed.cursor, what)()

    @rule(number=numbers, to=st.integers(0, 3), what=st.sampled_from(["seek", "advance", "park", "back_off"]))
    def go(self, number: int, to: int, what: str) -> None:
        if (feed := self.feeds.get(number)) is not None:
            getattr(feed.cursor, what)(self.now + to if what == "back_off" else to)

    @rule(number=numbers, size=st.integers(10, LIMIT))
    def grow(self, number: int, size: int) -> None:
        if (feed := self.feeds.get(number)) is not None:
            feed.cursor.grow(10, size)

    @rule(number=numbers, held=st.integers(0, 40))
    def hold(self, number: int, held: int) -> None:
        if (feed := self.feeds.get(number)) is not None:
            feed.account.held_bytes = held
            self.agenda.touch(feed)

    @rule(number=numbers, suspected=st.booleans())
    def suspect(self, number: int, suspected: bool) -> None:
        if (feed := self.feeds.get(number)) is not None:
            feed.cursor.suspected = suspected

    @rule(number=numbers)
    def put_last(self, number: int) -> None:
        self.agenda.put_last(("t", number))

    @rule(ask=st.integers(1, 20))
    def share(self, ask: int) -> None:
        self.marks = Marks(ask=ask, high=ask * 3 // 2, low=ask, batch=ask)

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds

    @rule(answered=st.booleans())
    def send(self, answered: bool) -> None:
        plan = self._plan()
        step = self.session.plan(plan.asks, plan.news)
        self.agenda.sent(plan)
        if not answered:
            self.session.unanswered()
            return
        if step.epoch == 0:
            self.broker.clear()
        for key in step.forgotten:
            del self.broker[key]
        self.broker.update({ask.cursor.key: (ask.offset, ask.max_bytes) for ask in step.asks})
        self.session.answered(7)
        assert self.broker == {key: (ask.offset, ask.max_bytes) for key, ask in plan.asks.items()}

    @invariant()
    def agrees_with_looking_at_everything(self) -> None:
        made = self._plan()
        asks: dict[tuple[str, int], Ask] = {}
        full, due = 0, None
        for feed in self.feeds.values():
            cursor = feed.cursor
            if not cursor.ready(self.now):
                if cursor.state is CursorState.BACKING_OFF:
                    due = cursor.due if due is None else min(due, cursor.due)
            elif feed.account.is_full(self.marks):
                full += 1
            else:
                size = max(self.marks.ask, cursor.grown_bytes)
                asks[cursor.key] = Ask(cursor, cursor.generation, cursor.position, size)
        suspects = {key: ask for key, ask in asks.items() if ask.cursor.suspected}
        assert (made.full, made.due, made.alone) == (full, due, bool(suspects))
        if suspects:
            assert len(made.asks) == 1
            assert made.asks.items() <= suspects.items()
        else:
            assert made.asks == asks
        assert made.total_bytes == sum(ask.max_bytes for ask in made.asks.values())
        for feed in self.feeds.values():
            assert (feed.cursor.round is self.agenda.round) == (feed.cursor.key in asks)

    def _plan(self) -> FetchPlan:
        return self.agenda.plan(now=self.now, marks=self.marks, response_bytes=100)


TestChangingAgenda = ChangingAgenda.TestCase
