# SPDX-License-Identifier: Apache-2.0
"""A group on virtual time: members of ours and Java-like ones over one ZooKeeper in memory, watched by a judge.

The judge looks at every change of an owner node, at that very moment, and at every call of a listener. It knows:

- no claim of ours is usable for a partition whose owner node is not that claim's session's;
- a listener is told in order: claimed, drain, and lost only of what it has;
- after a clean handover the next owner begins exactly where the last one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from consumerd.aio.tasks import TaskSet
from consumerd.errors import OwnershipLost
from consumerd.group.assignors import Strategy
from consumerd.group.identity import MemberIdentity
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.registry import GroupRegistry
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import Claim, PartitionKey, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.layout import owner_path, owners_root, topic_path
from consumerd.zk.layout_modern import MODERN
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.java_member import JavaMember

GROUP = "g"


@dataclass
class Judge:
    """What is true of the group as a whole."""

    server: FakeZooKeeper
    claims: dict[TopicPartition, list[tuple[int, Claim]]] = field(default_factory=dict)
    """Every claim that may be usable, with the session it was made in."""
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    delivered: dict[TopicPartition, int] = field(default_factory=dict)
    repeated: int = 0
    tampered: set[str] = field(default_factory=set)
    """Owner nodes that the scenario itself took away: their owner cannot know before it is told."""
    violations: list[AssertionError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server.on_change = self._look

    def _look(self, path: str) -> None:
        root = owners_root(GROUP) + "/"
        topic, _, key = path.removeprefix(root).partition("/")
        if path.startswith(root) and key:
            try:
                self.check(TopicPartition(topic, PartitionKey.parse(key)))
            except AssertionError as error:  # called by the server, which is nobody's task
                self.violations.append(error)

    def check(self, partition: TopicPartition) -> None:
        """At most one claim is usable, and only by the session whose node it is."""
        path = owner_path(GROUP, partition)
        node = self.server.read(path)
        usable = [(session, claim) for session, claim in self.claims.get(partition, ()) if claim.usable]
        if path in self.tampered:
            return
        assert len(usable) <= 1, f"{partition} is used by {usable}"
        if usable:
            assert node is not None, f"{usable[0][1]} is usable without an owner node"
            assert node[1].ephemeral_owner == usable[0][0], f"{usable[0][1]} is usable, and {node[0]!r} owns it"

    def start(self, partition: TopicPartition, offset: int) -> None:
        """Somebody begins to deliver at ``offset``."""
        self.repeated += max(0, self.delivered.get(partition, 0) - offset)
        assert offset <= self.delivered.get(partition, 0), f"{partition}: {offset} skips records"

    def deliver(self, partition: TopicPartition) -> None:
        """Ten records were delivered."""
        self.delivered[partition] = self.delivered.get(partition, 0) + 10

    def commit(self, partition: TopicPartition) -> None:
        """Everything delivered is committed."""
        self.committed[partition] = self.delivered.get(partition, 0)


class SimulatedListener:
    """A listener that delivers in its mind, and whose drains take a while."""

    def __init__(self, judge: Judge, chance: random.Random, slowest_drain_s: float) -> None:
        self.held: dict[TopicPartition, Claim] = {}
        self.draining: set[TopicPartition] = set()
        self.drained: list[TopicPartition] = []
        self.lost_ones: list[TopicPartition] = []
        self.client: FakeZkClient | None = None
        self._judge = judge
        self._chance = chance
        self._slowest_drain_s = slowest_drain_s

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """Begin where the committed offset says."""
        assert self.client is not None
        for claim in claims:
            assert claim.partition not in self.held, f"{claim.partition} was claimed twice"
            self.held[claim.partition] = claim
            known = self._judge.claims.setdefault(claim.partition, [])
            known[:] = [(session, old) for session, old in known if old.usable]
            known.append((self.client.state.session_id, claim))
            self._judge.check(claim.partition)
            self._judge.start(claim.partition, self._judge.committed.get(claim.partition, 0))
            if claim.usable:
                self._judge.deliver(claim.partition)

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Commit after a while, if the claims are usable then."""
        for partition in partitions:
            assert partition in self.held, f"{partition} is drained and not held"
            assert partition not in self.draining, f"{partition} is drained twice"
        self.draining.update(partitions)
        self.drained.extend(sorted(partitions))
        await asyncio.sleep(self._chance.uniform(0, self._slowest_drain_s))
        for partition in sorted(partitions):
            claim = self.held.get(partition)
            if claim is not None and partition in self.draining:
                if claim.usable:
                    self._judge.check(partition)
                    self._judge.commit(partition)
                del self.held[partition]
                self.draining.discard(partition)

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop."""
        for partition in sorted(partitions):
            claim = self.held.pop(partition, None)
            self.draining.discard(partition)
            self.lost_ones.append(partition)
            self._judge.tampered.discard(owner_path(GROUP, partition))
            if claim is not None:
                assert not claim.usable, f"{partition} is lost, and its claim usable"
                with contextlib.suppress(OwnershipLost):
                    claim.check()
        await asyncio.sleep(self._chance.uniform(0, 0.05))


@dataclass
class SimulatedMember:
    """One of ours."""

    name: str
    client: FakeZkClient
    rebalancer: Rebalancer
    listener: SimulatedListener
    topics: dict[str, int]


class SimulatedGroup:
    """The scenario's hands. Enter it, act, and let time pass."""

    def __init__(
        self,
        seed: int,
        *,
        strategy: Strategy = Strategy.RANGE,
        settings: RebalanceSettings | None = None,
        slowest_drain_s: float = 1.0,
        latency_s: tuple[float, float] = (0.0005, 0.005),
    ) -> None:
        self.chance = random.Random(seed)
        self.server = FakeZooKeeper(seed=seed, latency_s=latency_s)
        self.judge = Judge(self.server)
        self.strategy = strategy
        self.settings = settings if settings is not None else RebalanceSettings()
        self.members: dict[str, SimulatedMember] = {}
        self.java: dict[str, JavaMember] = {}
        self.topics: dict[str, int] = {}
        self._slowest_drain_s = slowest_drain_s
        self._tasks: TaskSet[str] = TaskSet()
        self._numbers = 0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for key in self._tasks.keys:
            await self._tasks.cancel(key)
        await self._tasks.__aexit__(None, None, None)
        if self.judge.violations:
            raise self.judge.violations[0]

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    def make_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, or let it grow."""
        self.topics[topic] = partitions
        body = {"version": 1, "partitions": {str(number): [0] for number in range(partitions)}}
        self.server.put(topic_path(topic), json.dumps(body).encode())

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, with what was known of its records."""
        del self.topics[topic]
        self.server.remove(topic_path(topic))
        for partition in list(self.judge.delivered):
            if partition.topic == topic:
                del self.judge.delivered[partition]
                self.judge.committed.pop(partition, None)

    def join(
        self,
        topics: dict[str, int],
        *,
        name: str | None = None,
        subscription: Subscription | None = None,
        hooks: Hooks | None = None,
    ) -> SimulatedMember:
        """Start a member of ours."""
        self._numbers += 1
        name = name or f"m{self.chance.randrange(100):02d}{self._numbers}"
        client = self.server.client(name)
        listener = SimulatedListener(self.judge, self.chance, self._slowest_drain_s)
        listener.client = client
        rebalancer = self.make(client, subscription or Subscription.to_topics(topics), listener=listener, hooks=hooks)
        member = SimulatedMember(name, client, rebalancer, listener, topics)
        self.members[name] = member
        client.connect()
        self._tasks.start(name, rebalancer.run(), name=name)
        return member

    def make(
        self,
        client: FakeZkClient,
        subscription: Subscription,
        *,
        listener: SimulatedListener | None = None,
        hooks: Hooks | None = None,
    ) -> Rebalancer:
        """Return a member that does not run yet."""
        loop = asyncio.get_running_loop()
        return Rebalancer(
            client,
            identity=MemberIdentity(group=GROUP, host=client.name),
            subscription=subscription,
            listener=listener or SimulatedListener(self.judge, self.chance, self._slowest_drain_s),
            now=loop.time,
            wall_ms=lambda: int(loop.time() * 1000),
            random=random.Random(self.chance.random()),
            strategy=self.strategy,
            settings=self.settings,
            hooks=hooks,
            layout=MODERN,
        )

    async def leave(self, member: SimulatedMember) -> bool:
        """Let a member leave as SIGTERM makes it: drain, leave, close the session."""
        self.members.pop(member.name, None)
        done = await member.rebalancer.leave()
        await self._tasks.join(member.name)
        assert not member.listener.held
        member.client.close()
        return done

    def begin_to_leave(self, member: SimulatedMember) -> None:
        """Let a member leave while other things happen."""

        del self.members[member.name]

        async def leave() -> None:
            await self.leave(member)

        self._tasks.start(f"leave {member.name}", leave(), name=f"leave {member.name}")

    async def kill(self, member: SimulatedMember) -> None:
        """Let a member die: its claims are nobody's, its nodes go with its session."""
        del self.members[member.name]
        member.client.crash()
        await self._tasks.cancel(member.name)

    def join_java(self, topics: dict[str, int], *, name: str | None = None) -> JavaMember:
        """Start a Java-like member."""
        self._numbers += 1
        name = name or f"java{self.chance.randrange(100):02d}{self._numbers}"
        client = self.server.client(name)
        member = JavaMember(
            client,
            GROUP,
            name,
            topics,
            GroupRegistry(client, GROUP, wall_ms=lambda: 0, random=random.Random(0), layout=MODERN),
            strategy=self.strategy,
            started=self._java_started,
            load=self._java_loads,
            stopped=self._java_stopped,
        )
        self.java[name] = member
        self._tasks.start(name, member.run(), name=name)
        return member

    def _java_started(self, partition: TopicPartition, offset: int) -> None:
        self.judge.start(partition, offset)
        self.judge.deliver(partition)

    async def _java_loads(self, partition: TopicPartition) -> int:
        return self.judge.committed.get(partition, 0)

    async def _java_stopped(self, partition: TopicPartition) -> None:
        self.judge.commit(partition)

    def leave_java(self, name: str) -> JavaMember:
        """Shut a Java-like member down."""
        member = self.java.pop(name)
        member.leave()
        return member

    async def kill_java(self, name: str) -> None:
        """Let a Java-like member die."""
        member = self.java.pop(name)
        member.zk.crash()
        await self._tasks.cancel(name)

    # -- what is so in the end

    def owners(self) -> dict[TopicPartition, str]:
        """Who owns what, as ZooKeeper has it."""
        found = {}
        for topic in self.server.names(owners_root(GROUP)):
            for key in self.server.names(f"{owners_root(GROUP)}/{topic}"):
                partition = TopicPartition(topic, PartitionKey.parse(key))
                node = self.server.read(owner_path(GROUP, partition))
                assert node is not None
                found[partition] = node[0].decode()
        return found
