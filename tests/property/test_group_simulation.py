# SPDX-License-Identifier: Apache-2.0
"""Groups on virtual time, by seed: whatever happens, one owner at a time, and in the end the assignor's owners.

``CONSUMERD_GROUP_SEEDS=A-B`` runs other seeds than the standing ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Iterator

import pytest
import structlog

from consumerd.group.assignors import Member, Strategy, assign
from consumerd.group.settings import RebalanceSettings
from consumerd.group.transitions import MemberState
from consumerd.model import ConsumerId, PartitionKey
from consumerd.zk.layout import owner_path
from tests.support.group_simulation import GROUP, SimulatedGroup, SimulatedMember
from tests.support.virtual_time import run

pytestmark = pytest.mark.records

CHUNK = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Some hundred lives have nothing to say that anybody would read."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


FIRST, LAST = (int(part) for part in os.environ.get("CONSUMERD_GROUP_SEEDS", "0-119").split("-"))


def expected_owners(group: SimulatedGroup) -> dict[str, str]:
    """Compute who should own what from those who are alive."""
    members = [
        Member(consumer=member.rebalancer.status.consumer or ConsumerId("nobody"), streams=member.topics)
        for member in group.members.values()
    ] + [Member(consumer=java.consumer, streams=java._topics) for java in group.java.values()]
    partitions = {topic: tuple(PartitionKey(n) for n in range(count)) for topic, count in group.topics.items()}
    return {str(partition): thread for partition, thread in assign(group.strategy, members, partitions).items()}


class Chaos:
    """One seed's story: who comes, goes, dies and is cut off, and when."""

    def __init__(self, group: SimulatedGroup, chance: random.Random) -> None:
        self.group = group
        self.chance = chance
        self.topics = ["t", "u"][: chance.randint(1, 2)]
        self.java_too = chance.random() < 0.5
        """Java members do not survive the deletion of a topic: a story has either."""

    def streams(self) -> dict[str, int]:
        count = self.chance.randint(1, 2)
        return dict.fromkeys(self.topics, count)

    def pick(self) -> SimulatedMember | None:
        return self.chance.choice(list(self.group.members.values())) if self.group.members else None

    async def act(self) -> None:
        group, chance, member = self.group, self.chance, self.pick()
        match chance.randrange(14):
            case 0 | 1 | 2 if len(group.members) < 4:
                group.join(self.streams())
            case 3 | 4 if member is not None:
                group.begin_to_leave(member)
                # it is not of the group any more, as far as the story goes
                await asyncio.sleep(0)
            case 5 if member is not None:
                await group.kill(member)
            case 6 | 7 if member is not None:
                member.client.cut()
                await asyncio.sleep(chance.uniform(0.1, 12))
                member.client.heal()
            case 8 if member is not None:
                member.client.expire()
            case 9:
                topic = chance.choice(self.topics)
                group.make_topic(topic, group.topics.get(topic, 0) + chance.randint(1, 3))
            case 10:
                await self.recreate(chance.choice(self.topics))
            case 11 if member is not None:
                self.tamper(member)
            case 12 if self.java_too and len(group.java) < 2:
                group.join_java(self.streams())
            case 13 if group.java:
                name = chance.choice(list(group.java))
                if chance.random() < 0.5:
                    group.leave_java(name)
                else:
                    await group.kill_java(name)
            case _:
                pass

    async def recreate(self, topic: str) -> None:
        if topic not in self.group.topics or self.java_too:
            return
        partitions = self.group.topics[topic]
        self.group.delete_topic(topic)
        await asyncio.sleep(self.chance.choice([0.0, 0.01, 0.3, 5.0]))
        self.group.make_topic(topic, partitions)

    def tamper(self, member: SimulatedMember) -> None:
        """Take an owner node, or the member's own node, away from it."""
        status = member.rebalancer.status
        if self.chance.random() < 0.3 and status.consumer is not None:
            self.group.server.remove(f"/consumers/{GROUP}/ids/{status.consumer}")
        elif status.owned:
            path = owner_path(GROUP, self.chance.choice(sorted(status.owned)))
            self.group.judge.tampered.add(path)
            self.group.server.remove(path)


async def tell(seed: int) -> None:
    chance = random.Random(seed)
    strategy = chance.choice(list(Strategy))
    settings = RebalanceSettings(drain_timeout_ms=chance.choice([300, 3000]), reconcile_ms=chance.choice([2000, 5000]))
    slowest = chance.choice([0.0, 0.2, 1.0, settings.drain_timeout_s + 1.0])
    latency = chance.choice([(0.0001, 0.0005), (0.001, 0.03), (0.0, 0.15)])
    async with SimulatedGroup(
        seed, strategy=strategy, settings=settings, slowest_drain_s=slowest, latency_s=latency
    ) as group:
        chaos = Chaos(group, chance)
        for topic in chaos.topics:
            group.make_topic(topic, chance.randint(1, 6))
        group.join(chaos.streams())
        async with asyncio.TaskGroup() as acts:
            for _ in range(chance.randint(3, 14)):
                acts.create_task(chaos.act())
                await asyncio.sleep(chance.choice([0.0, 0.05, 0.5, 3.0]) * chance.random() * 2)
        await come_to_rest(group)
        check_rest(group)
        for member in list(group.members.values()):
            assert await group.leave(member)
        ours = [owner for owner in group.owners().values() if "java" not in owner]
        assert ours == []


async def come_to_rest(group: SimulatedGroup) -> None:
    """Let sessions of the dead end, retries run out, and everybody read everything once more."""
    for member in group.members.values():
        member.client.heal()
    await asyncio.sleep(30)
    # a Java member that gave up in between waits for a change: give it one
    group.server.put(f"/consumers/{GROUP}/ids/{GROUP}_passer-by", b'{"version":1,"subscription":{},"pattern":"static"}')
    await asyncio.sleep(1)
    group.server.remove(f"/consumers/{GROUP}/ids/{GROUP}_passer-by")
    await asyncio.sleep(25)


def check_rest(group: SimulatedGroup) -> None:
    assert all(java.settled for java in group.java.values())
    owners = {str(partition): thread for partition, thread in group.owners().items()}
    assert expected_owners(group) == owners
    for member in group.members.values():
        status = member.rebalancer.status
        assert status.state is MemberState.FOLLOWING, member.name
        assert status.ready, (member.name, status.unready_reason)
        assert set(status.owned) == set(status.desired) == set(member.listener.held), member.name
        assert not status.moving
        assert not status.disagreements, status.disagreements
        assert all(claim.usable for claim in member.listener.held.values())


@pytest.mark.parametrize("first", range(FIRST, LAST + 1, CHUNK))
def test_a_group_in_chaos_has_one_owner_at_a_time_and_ends_with_the_owners_of_the_assignor(first: int) -> None:
    """Promise 3, over joins, departures, deaths, partitions of the network, expiry and tampering."""
    for seed in range(first, min(first + CHUNK, LAST + 1)):
        began = time.monotonic()
        try:
            run(tell(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}, after {time.monotonic() - began:.1f} s")
            raise


async def tell_of_clean_handovers(seed: int) -> None:
    chance = random.Random(seed)
    settings = RebalanceSettings()
    # patience is for one change: where drains are slow, changes must not come on top of each other
    slowest, apart = chance.choice([(0.3, 0.0), (settings.drain_timeout_s, 6.5)])
    async with SimulatedGroup(
        seed, strategy=chance.choice(list(Strategy)), settings=settings, slowest_drain_s=slowest
    ) as group:
        group.make_topic("t", 12)
        group.make_topic("u", 5)
        streams = {"t": 2, "u": 2}
        everybody = []
        for _ in range(8):
            match chance.randrange(4):
                case 0 if len(group.members) < 4:
                    group.join(streams)
                case 1 if len(group.java) < 2:
                    everybody.append(group.join_java(streams))
                case 2 if group.members:
                    group.begin_to_leave(chance.choice(list(group.members.values())))
                case 3 if group.java:
                    group.leave_java(chance.choice(list(group.java)))
                case _:
                    pass
            await asyncio.sleep(apart + chance.uniform(0.0, 6.0))
        await asyncio.sleep(15)
        check_rest(group)
        assert [java.gave_up for java in everybody] == [0] * len(everybody)
        assert group.judge.repeated == 0


@pytest.mark.parametrize("first", range(FIRST, LAST + 1, CHUNK))
def test_clean_handovers_beside_java_members_repeat_nothing_and_never_exhaust_their_patience(first: int) -> None:
    """A Java member tries at 0, 2, 4 and 6 s and then gives up; it reads the committed offset before it claims."""
    for seed in range(first, min(first + CHUNK // 2, LAST + 1)):
        try:
            run(tell_of_clean_handovers(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
