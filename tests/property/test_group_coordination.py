# SPDX-License-Identifier: Apache-2.0
"""Any sequence of requests, delays and failed writes: a group of the coordinator keeps its promises, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from consumerd.embedded.coordinator.exchange import GroupState
from consumerd.embedded.coordinator.member import Ticket
from consumerd.wire.errorcodes import ErrorCode
from tests.support.group_driver import BOTH, BOTH_RELUCTANT, RANGE, REBALANCE_S, SESSION_S, Driver

NAMES = st.sampled_from(["a", "b", "c", "d"])
PROTOCOLS = st.sampled_from([RANGE, BOTH, BOTH_RELUCTANT])


class AnyGroup(RuleBasedStateMachine):
    """Members that behave as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.sent: list[Ticket] = []
        self.syncs: set[Ticket] = set()
        self.unwritten = 0
        self.generation = 0
        self.born = 0

    @rule(protocols=PROTOCOLS, rebalance_s=st.sampled_from([1.0, REBALANCE_S]))
    def join(self, protocols: tuple[object, ...], rebalance_s: float) -> None:
        self.born += 1
        name = f"{'abcd'[self.born % 4]}"
        if name not in self.members():
            self.sent.append(self.driver.join(name, protocols=protocols, rebalance_s=rebalance_s))  # type: ignore[arg-type]

    @rule(name=NAMES, protocols=PROTOCOLS)
    def rejoin(self, name: str, protocols: tuple[object, ...]) -> None:
        self.sent.append(self.driver.rejoin(name, protocols))  # type: ignore[arg-type]  # hypothesis gives what it has

    @rule(protocols=PROTOCOLS)
    def everybody_rejoins(self, protocols: tuple[object, ...]) -> None:
        for name in sorted(self.members()):
            self.rejoin(name, protocols)

    @rule(name=NAMES, behind=st.sampled_from([0, 0, 0, 1]))
    def sync(self, name: str, behind: int) -> None:
        parts = {one: one.encode() for one in self.members()}
        ticket = self.driver.sync(name, self.driver.group.generation - behind, parts)
        self.sent.append(ticket)
        self.syncs.add(ticket)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.driver.leave(name)

    @rule(name=NAMES, behind=st.integers(0, 1))
    def heartbeat(self, name: str, behind: int) -> None:
        self.driver.heartbeat(name, self.driver.group.generation - behind)

    @rule(seconds=st.sampled_from([0.1, 3.0, SESSION_S]))
    def wait(self, seconds: float) -> None:
        self.driver.pass_to(self.driver.now + seconds)

    @rule(slow=st.booleans())
    def write(self, *, slow: bool) -> None:
        self.driver.stores_at_once = not slow

    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]))
    def written(self, error: ErrorCode) -> None:
        if self.driver.stores:
            self.driver.stored(error)

    def members(self) -> set[str]:
        return {one.member_id for one in self.driver.group.describe().members}

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.generation <= self.driver.group.generation
        self.generation = self.driver.group.generation

    @invariant()
    def a_group_without_members_is_empty(self) -> None:
        assert bool(self.members()) == (self.driver.group.state is not GroupState.EMPTY)

    @invariant()
    def nobody_waits_in_a_stable_or_empty_group(self) -> None:
        if self.driver.group.state in (GroupState.STABLE, GroupState.EMPTY):
            assert [one for one in self.sent if one not in self.driver.answers] == []

    @invariant()
    def nobody_waits_for_an_assignment_while_others_join(self) -> None:
        if self.driver.group.state is GroupState.PREPARING_REBALANCE:
            assert self.syncs - self.driver.answers.keys() == set()

    @invariant()
    def whoever_was_told_of_a_generation_is_told_the_same(self) -> None:
        told = [one for one in self.driver.answers.values() if hasattr(one, "leader") and one.error is ErrorCode.NONE]
        by_generation: dict[int, set[tuple[str, str]]] = {}
        for one in told:
            by_generation.setdefault(one.generation, set()).add((one.protocol, one.leader))
        assert all(len({protocol for protocol, _ in ones}) == 1 for ones in by_generation.values())

    def teardown(self) -> None:
        """Everybody falls silent: every request is answered all the same, and the group is empty in the end."""
        self.driver.stores_at_once = True
        if self.driver.stores:
            self.driver.stored(ErrorCode.NONE)
        self.driver.pass_to(self.driver.now + 3 * (REBALANCE_S + SESSION_S))
        assert [one for one in self.sent if one not in self.driver.answers] == []
        assert self.driver.group.state is GroupState.EMPTY


TestAnyGroup = AnyGroup.TestCase
TestAnyGroup.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
