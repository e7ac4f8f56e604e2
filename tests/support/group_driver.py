# SPDX-License-Identifier: Apache-2.0
"""Drives one group of the coordinator by hand: requests, answers by ticket, and a clock that the test moves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from consumerd.embedded.coordinator.exchange import (
    Effect,
    GroupState,
    Join,
    Joined,
    JoinResult,
    Store,
    Synced,
    SyncResult,
)
from consumerd.embedded.coordinator.group import CoordinatedGroup
from consumerd.embedded.coordinator.member import Protocol, Ticket
from consumerd.wire.errorcodes import ErrorCode

RANGE = (Protocol("range", b"sub-range"),)
BOTH = (Protocol("range", b"sub-range"), Protocol("roundrobin", b"sub-rr"))
BOTH_RELUCTANT = (Protocol("roundrobin", b"sub-rr"), Protocol("range", b"sub-range"))
SESSION_S, REBALANCE_S = 10.0, 60.0


class Driver:
    """Drives a group as the coordinator does, and keeps the answers by ticket."""

    def __init__(self, group: CoordinatedGroup | None = None, *, initial_delay_s: float = 0.0) -> None:
        self.group = group or CoordinatedGroup("g", initial_delay_s=initial_delay_s)
        self.now = 0.0
        self.answers: dict[Ticket, JoinResult | SyncResult] = {}
        self.stores: list[Store] = []
        self.stores_at_once = True
        self._tickets = itertools.count(1)

    def do(self, effects: Sequence[Effect]) -> None:
        """Take what the group wants done."""
        for effect in effects:
            match effect:
                case Joined(ticket, answer) | Synced(ticket, answer):
                    assert ticket not in self.answers, "each ticket is answered once"
                    self.answers[ticket] = answer
                case Store():
                    self.stores.append(effect)
                    if self.stores_at_once:
                        self.stored(ErrorCode.NONE)

    def stored(self, error: ErrorCode) -> None:
        """Say what became of the newest record."""
        store = self.stores[-1]
        self.do(self.group.stored(store.group.generation, store.assignment, error, self.now))

    def join(
        self,
        name: str,
        *,
        new: bool = True,
        protocols: tuple[Protocol, ...] = RANGE,
        protocol_type: str = "consumer",
        rebalance_s: float = REBALANCE_S,
    ) -> Ticket:
        """Send a JoinGroup, of a new member that is given this name."""
        ticket = Ticket(next(self._tickets))
        request = Join(
            ticket=ticket,
            member_id="" if new else name,
            new_member_id=name,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=int(SESSION_S * 1000),
            rebalance_timeout_ms=int(rebalance_s * 1000),
            protocol_type=protocol_type,
            protocols=protocols,
        )
        self.do(self.group.join(request, self.now))
        return ticket

    def rejoin(self, name: str, protocols: tuple[Protocol, ...] = RANGE) -> Ticket:
        """Send a JoinGroup of a member that has its id already."""
        return self.join(name, new=False, protocols=protocols)

    def sync(self, name: str, generation: int, assignment: Mapping[str, bytes] | None = None) -> Ticket:
        """Send a SyncGroup."""
        ticket = Ticket(next(self._tickets))
        self.do(self.group.sync(ticket, name, generation, assignment or {}, self.now))
        return ticket

    def leave(self, name: str) -> ErrorCode:
        """Send a LeaveGroup."""
        error, effects = self.group.leave(name, self.now)
        self.do(effects)
        return error

    def heartbeat(self, name: str, generation: int) -> ErrorCode:
        """Send a Heartbeat."""
        return self.group.heartbeat(name, generation, self.now)

    def pass_to(self, when: float) -> None:
        """Let time pass, waking the group when it asks for it."""
        while (deadline := self.group.deadline) <= when:
            self.now = deadline
            self.do(self.group.expire(self.now))
            assert self.group.deadline > self.now, "what was due is done"
        self.now = when

    def joined(self, ticket: Ticket) -> JoinResult:
        """Return the answer to a JoinGroup."""
        answer = self.answers[ticket]
        assert isinstance(answer, JoinResult)
        return answer

    def synced(self, ticket: Ticket) -> SyncResult:
        """Return the answer to a SyncGroup."""
        answer = self.answers[ticket]
        assert isinstance(answer, SyncResult)
        return answer


def stable(*names: str, protocols: tuple[Protocol, ...] = RANGE) -> Driver:
    """Return a group with these members, stable; the first one leads, generation is the number of members."""
    driver = Driver()
    for count, name in enumerate(names, start=1):
        driver.join(name, protocols=protocols)
        for other in names[: count - 1]:
            driver.rejoin(other, protocols)
        for follower in names[1:count]:
            driver.sync(follower, count)
        driver.sync(names[0], count, {one: one.encode() for one in names[:count]})
    assert driver.group.state is GroupState.STABLE
    return driver
