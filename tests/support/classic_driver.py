# SPDX-License-Identifier: Apache-2.0
"""Drives a machine by hand: tells it events, and finds the effects."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

from consumerd.group import events as ev
from consumerd.group.classic import events as cl
from consumerd.group.classic.machine import ClassicMachine, ClassicSettings
from consumerd.model import Incarnation, TopicPartition

E = TypeVar("E")
P, Q, R = (TopicPartition.modern("t", number) for number in range(3))
CZXID: Final = Incarnation(5)
SETTINGS: Final = ClassicSettings(session_timeout_s=12.0, heartbeat_s=3.0, drain_timeout_s=4.0)
REBALANCE_TIMEOUT_S: Final = 60.0
JOIN_PAUSE_S: Final = 0.1
"""The first delay after a failed join, with a random number of 0."""


class Driver:
    """Answers one machine.

    Args:
        random: All of its random numbers.
        rebalance_timeout_s: Time for which the coordinator waits for the member in a rebalance, in seconds.
    """

    def __init__(
        self,
        settings: ClassicSettings = SETTINGS,
        *,
        random: float = 0.0,
        rebalance_timeout_s: float = REBALANCE_TIMEOUT_S,
    ) -> None:
        self.machine = ClassicMachine(settings, lambda: random)
        self._rebalance_timeout_s = rebalance_timeout_s
        self.now = 0.0
        self.effects: list[cl.Effect] = []
        self.drain = 0
        """Serial of the newest drain."""

    def tell(self, event: cl.Event) -> list[cl.Effect]:
        """Tell an event now."""
        self.effects = self.machine.handle(event, self.now)
        if (drain := self.find(ev.Drain)) is not None:
            self.drain = drain.serial
        return self.effects

    def wait(self, seconds: float) -> list[cl.Effect]:
        """Let time pass."""
        self.now += seconds
        return self.tell(ev.Tick())

    def find(self, kind: type[E]) -> E | None:
        """Return the effect of this kind, if the last event had one."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        assert len(found) <= 1, found
        return found[0] if found else None

    def get(self, kind: type[E]) -> E:
        """Return the effect of this kind."""
        found = self.find(kind)
        assert found is not None, f"no {kind.__name__} in {self.effects}"
        return found

    # -- the usual way

    def join(self, generation: int = 1, member_id: str = "me", *, leader: bool = False) -> None:
        """Answer JoinGroup."""
        if not self.effects:
            self.tell(ev.Tick())
        answer = joined(self.get(cl.JoinGroup).serial, generation, member_id, leader=leader)
        self.tell(replace(answer, rebalance_timeout_s=self._rebalance_timeout_s))

    def sync(self, *partitions: TopicPartition) -> None:
        """Answer SyncGroup, which was sent now."""
        self.tell(
            cl.GroupSynced(serial=self.get(cl.SyncGroup).serial, sent_at=self.now, partitions=frozenset(partitions))
        )

    def identify(self) -> None:
        """Tell the incarnations of all that were asked for."""
        asked = self.get(cl.Identify)
        self.tell(cl.Identified(serial=asked.serial, incarnations=dict.fromkeys(asked.partitions, CZXID)))

    def own(self, *partitions: TopicPartition, generation: int = 1) -> None:
        """Join, and own these partitions."""
        self.join(generation)
        self.sync(*partitions)
        self.identify()
        assert self.get(cl.StartAssigned).incarnations.keys() == set(partitions)

    def heartbeat(self, refusal: cl.Refusal | None = None, *, took_s: float = 0.0) -> None:
        """Wait for the next heartbeat, and answer it ``took_s`` seconds after it was sent."""
        deadline = self.machine.deadline
        assert deadline is not None
        self.wait(max(deadline - self.now, 0.0))
        self.answer_heartbeat(refusal, took_s=took_s)

    def answer_heartbeat(self, refusal: cl.Refusal | None = None, *, took_s: float = 0.0) -> None:
        """Answer the heartbeat that the last event has sent."""
        serial, sent_at = self.get(cl.Heartbeat).serial, self.now
        self.now += took_s
        self.tell(cl.HeartbeatEnded(serial=serial, sent_at=sent_at, refusal=refusal, reason=refusal_reason(refusal)))

    def end_drain(self) -> None:
        """Report the end of the newest drain."""
        self.tell(ev.DrainEnded(self.drain))


def joined(serial: int, generation: int = 1, member_id: str = "me", *, leader: bool = False) -> cl.GroupJoined:
    """Return the answer to a JoinGroup."""
    members = {member_id: b"sub"} if leader else {}
    return cl.GroupJoined(
        serial=serial,
        generation=generation,
        member_id=member_id,
        protocol="range",
        leader=leader,
        members=members,
        rebalance_timeout_s=REBALANCE_TIMEOUT_S,
    )


def refusal_reason(refusal: cl.Refusal | None) -> str:
    """Return the text with which a driver refuses."""
    return "" if refusal is None else f"refused: {refusal.value}"
