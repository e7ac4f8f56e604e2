# SPDX-License-Identifier: Apache-2.0
"""Stories of groups that brokers coordinate: members, judge, and what happens to them.

Membership, claims, positions in Kafka, delivery and files are the real ones; brokers are those of ``coordinators``.
Topics are in ZooKeeper, as in clusters of 0.9 to 2.7. What is different from the other stories:

- **one owner**: a claim is usable only while its member belongs to the newest generation, by the coordinator's word;
- **commits** are what the coordinator has taken: within one making of a topic they never go back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

from consumerd.client.coordinator import CoordinatorFinder
from consumerd.client.group_coordinator import CoordinatorClient
from consumerd.cluster.topics import ZooKeeperTopics
from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.ports import DeliveryReports, SinkRoute
from consumerd.embedded.coordinator.exchange import GroupState
from consumerd.embedded.topics import OFFSETS_TOPIC
from consumerd.group.assignors import Strategy
from consumerd.group.classic.assignment import GroupAssignor, assign
from consumerd.group.classic.machine import ClassicSettings
from consumerd.group.classic.member import ClassicMember
from consumerd.group.classic.topics import FollowedZooKeeperTopics
from consumerd.group.classic.transitions import ClassicState
from consumerd.group.subscription import Subscription
from consumerd.model import Claim, ConsumerId, TopicPartition
from consumerd.net.pool import Purpose
from consumerd.offsets.history import ZooKeeperPartitionHistory
from consumerd.offsets.kafka import KafkaPositions
from consumerd.offsets.kafka_store import KafkaOffsetStore, MemberGeneration
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.truncations import ZooKeeperLogTruncations
from consumerd.zk.layout import BROKER_TOPICS, topic_path
from consumerd.zk.layout_modern import MODERN
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.simulation.coordinators import Coordinators, Network
from tests.support.simulation.judge import GROUP, Judge
from tests.support.simulation.members import Daemon, JudgedHooks, Setting
from tests.support.simulation.processes import Process, World
from tests.support.simulation.story import Outcome, Story, tell_story

_TIMEOUTS_S: Final = ((6.0, 15.0), (6.0, 15.0), (30.0, 6.0))
"""Session and rebalance timeouts of a story's members; the coordinator removes members by either."""
_HEARTBEAT_S: Final = 1.5
_REQUEST_S: Final = 1.5
_SETTLED_WITHIN_S: Final = 120.0
"""After the last disturbance: sessions of the dead, a rebalance that waits for one of them, and another session."""
_GONE_WITHIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.05
_MOST: Final = 4
"""Number of members at a time."""


def tell_coordinated(seed: int) -> Outcome:
    """Tell a seed's story of a group that brokers coordinate; a failure is part of the outcome."""
    return tell_story(seed, CoordinatedStory)


class CoordinatedJudge(Judge):
    """Watches one group that brokers coordinate."""

    def __init__(self, world: World, server: FakeZooKeeper, strategy: Strategy) -> None:
        super().__init__(world, server, strategy)
        self.coordinators: Coordinators
        self.shaken = False
        """The coordinator has moved, which excuses a loss of any member."""

    def _look(self, path: str) -> None:
        if path.startswith(BROKER_TOPICS + "/") and "/partitions" not in path:
            self.note(f"{path} changes")

    def look_at_all(self) -> None:
        """Check every claim at this moment."""
        for partition in self._claims:
            self.check_owner(partition)

    def check_owner(self, partition: TopicPartition) -> None:
        """At most one claim is usable, and only of a member of the newest generation."""
        usable = [
            (process, claim) for process, _, claim, _ in self._claims[partition] if not process.dead and claim.usable
        ]
        names = [process.name for process, _ in usable]
        self.require(len(usable) <= 1, f"{partition} is used by {names}")
        for process, claim in usable:
            newest = self.coordinators.generation
            self.require(
                self.coordinators.counts(claim.thread, claim.epoch),
                f"{process.name} uses {partition} in generation {claim.epoch}, the group is at {newest}",
            )

    def owns(self, process: Process, partition: TopicPartition) -> bool:
        """Tell if the partition was given to the process in the newest generation."""
        return any(
            owner is process and self.coordinators.counts(claim.thread, claim.epoch)
            for owner, _, claim, _ in self._claims[partition]
        )

    def committed(self, name: str, partition: TopicPartition, position: int) -> None:
        """The coordinator has taken a position."""
        self.note(f"{name} commits {position} of {partition}")
        found = self._server.read(topic_path(partition.topic))
        assert found is not None
        making = (partition, found[1].czxid)
        before = self._committed.get(making, 0)
        self.require(position >= before, f"{name} commits {position} of {partition} after {before}")
        self._committed[making] = position
        safe = self._safe_end(making)
        self.require(position <= safe, f"{name} commits {position} of {partition}, of which {safe} is safe")

    def drained(self, process: Process, partition: TopicPartition, consumer: ConsumerId | None) -> None:
        """A partition is drained: the protocol is eager, so nothing needs to have moved."""
        self.note(f"{process.name} drains {partition}")

    def lost(self, process: Process, partition: TopicPartition, reason: str) -> None:
        """A partition is lost: something must have happened to its member, or to the coordinator."""
        self.note(f"{process.name} loses {partition}: {reason}")
        excused = self.shaken or self.suspects[process.name].disturbed
        self.require(excused, f"{process.name} loses {partition}, though nothing happened to it: {reason}")


class _Listener:
    """Tells the judge before it tells delivery; sorted, as in the other stories."""

    def __init__(self, daemon: CoordinatedDaemon) -> None:
        self._daemon = daemon

    async def claimed(self, claims: Sequence[Claim]) -> None:
        daemon = self._daemon
        for claim in claims:
            daemon.judge.claimed(daemon.process, claim.epoch, claim)
        await daemon.deliveries.claimed(claims)

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        daemon = self._daemon
        for partition in sorted(partitions):
            daemon.judge.drained(daemon.process, partition, None)
        if daemon.draining is not None:
            draining, daemon.draining = daemon.draining, None
            draining()
        await daemon.deliveries.drain(sorted(partitions), deadline_s)

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        await self._daemon.deliveries.lost(sorted(partitions))


class CoordinatedDaemon(Daemon):
    """One of ours in a coordinated group, in a process of its own."""

    def __init__(
        self,
        setting: Setting,
        coordinators: Coordinators,
        assignor: GroupAssignor,
        timeouts_s: tuple[float, float],
        name: str,
        topics: dict[str, int],
        chance: random.Random,
    ) -> None:
        super().__init__(setting, name, topics, chance, None)
        self.network = Network(coordinators, self.process)
        self.assignor = assignor
        self.session_s, self.rebalance_s = timeouts_s
        self.draining: Callable[[], None] | None = None
        """Called once, when a drain begins."""
        self.member: ClassicMember

    async def _live(self) -> None:
        setting, process, chance = self._setting, self.process, self._chance
        hooks = JudgedHooks(setting.judge, process)
        requests = ZooKeeperOffsetRequests(self.client, GROUP)
        generation = MemberGeneration()
        positions = KafkaPositions(
            ZooKeeperTopics(self.client, MODERN), self._find(), GROUP, request_timeout_s=_REQUEST_S, keeps_failure=False
        )
        store = KafkaOffsetStore(
            ZooKeeperTopics(self.client, MODERN),
            self._find(),
            positions,
            GROUP,
            request_timeout_s=_REQUEST_S,
            new_id=lambda: f"{chance.randrange(16**8):08x}",
            requests=requests,
            generation=generation,
        )
        self.deliveries = Deliveries(
            route=lambda _: SinkRoute(name="lake", sink=sink),
            feeds=setting.brokers,
            store=store,
            ranges=setting.brokers,
            history=ZooKeeperPartitionHistory(self.client, GROUP, layout=MODERN),
            requests=requests,
            truncations=ZooKeeperLogTruncations(self.client, GROUP, in_session=False),
            quarantine=None,
            settings=setting.delivery,
            reports=DeliveryReports(
                lost=lambda claim, error: self.member.report_lost(claim, str(error)),
                sink_closed=lambda error: setting.judge.require(False, f"a sink was closed: {error}"),
            ),
            hooks=hooks,
            now=process.time,
            random=chance.random,
        )
        self.member = ClassicMember(
            CoordinatorClient(
                self._find(Purpose.GROUP),
                self._find(),
                GROUP,
                session_timeout_s=self.session_s,
                rebalance_timeout_s=self.rebalance_s,
                request_timeout_s=_REQUEST_S,
            ),
            FollowedZooKeeperTopics(self.client, MODERN),
            group=GROUP,
            subscription=Subscription.to_topics(self.topics),
            listener=_Listener(self),
            generation=generation,
            settings=ClassicSettings(
                session_timeout_s=self.session_s,
                heartbeat_s=_HEARTBEAT_S,
                drain_timeout_s=setting.rebalance.drain_timeout_ms / 1000,
            ),
            assignor=self.assignor,
            now=process.time,
            wall_ms=lambda: int(process.time() * 1000),
            random=random.Random(chance.random()),
            hooks=hooks,
        )
        sink = self._make_sink(hooks)
        self.client.connect()
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self.deliveries.run()), group.create_task(requests.run())]
            await self.member.run()
            for task in beside:
                task.cancel()

    def _find(self, purpose: Purpose = Purpose.CONTROL) -> CoordinatorFinder:
        return CoordinatorFinder(
            self.network,
            GROUP,
            self.network.list_brokers,
            random=self._chance.random,
            patience_s=self.session_s / 2,
            request_timeout_s=_REQUEST_S,
            purpose=purpose,
        )

    def leave(self) -> None:
        """Let it leave as SIGTERM makes it."""
        self.leaving = True

        async def leave() -> None:
            if hasattr(self, "member"):
                await self.member.leave()
            await asyncio.wait([self.main])
            self.client.close()

        self.process.create_task(leave())

    def kill(self) -> None:
        """Let it die as SIGKILL makes it."""
        super().kill()
        self.network.crash()


class CoordinatedStory(Story):
    """A story of a group that brokers coordinate."""

    judge: CoordinatedJudge

    def __init__(self, seed: int, world: World) -> None:
        super().__init__(seed, world)
        self.java_too = self.with_wishes = self.with_elections = self.recreates = self.configured = False
        self.assignor = self.chance.choice(list(GroupAssignor))
        self.timeouts_s = self.chance.choice(_TIMEOUTS_S)
        self.coordinators = self.judge.coordinators = Coordinators(
            world,
            self.chance,
            latency_s=self.chance.choice([(0.0001, 0.0005), (0.001, 0.03), (0.0, 0.15)]),
            knows=lambda topic: self.server.read(topic_path(topic)) is not None,
            committed=self.judge.committed,
            changed=self.judge.look_at_all,
        )
        self.server.put(topic_path(OFFSETS_TOPIC), b'{"version":1,"partitions":{"0":[1]}}')

    def make_judge(self) -> CoordinatedJudge:
        """See Story."""
        return CoordinatedJudge(self.world, self.server, self.strategy)

    async def run(self) -> None:
        """See Story."""
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self.coordinators.serve()), group.create_task(self.watch())]
            await super().run()
            for task in beside:
                task.cancel()

    async def watch(self) -> None:
        """Let the judge look, now and then."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.judge.look_at_all()

    def join(self) -> None:
        """See Story."""
        self.numbers += 1
        name = f"m{self.chance.randrange(100):02d}{self.numbers}"
        self.judge.note(f"{name} joins")
        daemon = CoordinatedDaemon(
            self.setting, self.coordinators, self.assignor, self.timeouts_s, name, self.streams(), self.chance
        )
        self.daemons[name] = daemon
        self.everybody.append(daemon)

    async def act(self) -> None:
        """See Story."""
        chance, daemon = self.chance, self.pick()
        match chance.randrange(26):
            case 0 | 1 | 2 if len(self.daemons) < _MOST:
                self.join()
            case 3 | 4 if daemon is not None:
                self.leave(daemon)
            case 5 | 6 if daemon is not None:
                self.bury(daemon)
                daemon.process.after(chance.randrange(60), daemon.kill)
                await self.sure_to_die(daemon)
            case 7 if daemon is not None:
                self.bury(daemon)
                self.disk.deadly[daemon.process] = chance.randrange(12)
                await self.sure_to_die(daemon)
            case 8 | 9 | 10 | 11 if isinstance(daemon, CoordinatedDaemon):
                await self.cut(daemon)
            case 12 | 13 if daemon is not None:
                daemon.stop()
                await self.go_on(daemon)
            case 14 | 15 if daemon is not None:
                daemon.process.after(chance.randrange(60), daemon.stop)
                await asyncio.sleep(chance.random())
                await self.go_on(daemon)
            case 16 | 17:
                topic = chance.choice(self.names)
                self.make_topic(topic, self.topics[topic] + chance.randint(1, 2))
            case 18 | 19 | 20:
                self.move()
            case 21 | 22 if isinstance(daemon, CoordinatedDaemon):
                await self.stop_in_a_heartbeat(daemon)
            case 23 | 24 if isinstance(daemon, CoordinatedDaemon):
                await self.stop_in_a_drain(daemon)
            case _:
                pass

    async def cut(self, daemon: CoordinatedDaemon) -> None:
        """Cut a member off from the brokers for a while."""
        self.judge.suspects[daemon.name].disturbed = True
        self.judge.note(f"{daemon.name} is cut off")
        daemon.network.cut()
        await asyncio.sleep(self.chance.choice([0.5, 4.0, 12.0, 25.0]) * self.chance.random())
        daemon.network.heal()

    async def stop_in_a_heartbeat(self, daemon: CoordinatedDaemon) -> None:
        """Stop a member that has just sent a heartbeat, so that it reads the answer long after."""
        daemon.network.beaten = daemon.stop
        await self.go_on_late(daemon)
        daemon.network.beaten = None

    async def stop_in_a_drain(self, daemon: CoordinatedDaemon) -> None:
        """Stop a member that has just begun to drain, so that the coordinator waits for it in vain."""
        daemon.draining = daemon.stop
        if len(self.daemons) < _MOST:
            self.join()
        await self.go_on_late(daemon)
        daemon.draining = None

    async def go_on_late(self, daemon: CoordinatedDaemon) -> None:
        """Let a member go on after one of the timeouts, or before."""
        await asyncio.sleep(self.chance.choice([3.0, 9.0, 16.0]) * self.chance.uniform(0.8, 1.2))
        daemon.proceed()

    def move(self) -> None:
        """Move the coordinator."""
        self.judge.shaken = True
        away_s, loading_s = self.chance.choice([0.0, 0.3, 3.0, 9.0]), self.chance.choice([0.0, 0.1, 2.0])
        self.judge.note(f"the coordinator moves, {away_s} s without one, {loading_s} s of loading")
        self.coordinators.move(away_s=away_s * self.chance.random(), loading_s=loading_s)

    # -- how it ends

    async def come_to_rest(self) -> None:
        """See Story."""
        self.judge.note("no more disturbance")
        if not self.daemons:
            self.join()
        for daemon in self.everybody:
            daemon.process.countdown = None
            daemon.proceed()
            if isinstance(daemon, CoordinatedDaemon):
                daemon.network.beaten = daemon.draining = None
                daemon.network.heal()
        await self.within(_SETTLED_WITHIN_S, self.find_unrest)

    def find_unrest(self) -> str | None:
        """See Story."""
        owned: dict[TopicPartition, str] = {}
        for daemon in self.daemons.values():
            assert isinstance(daemon, CoordinatedDaemon)
            if not hasattr(daemon, "member"):
                return f"{daemon.name} has not begun"
            status = daemon.member.status
            if status.state is not ClassicState.STABLE or not status.ready:
                return f"{daemon.name} is {status.state}: {status.unready_reason}"
            if status.epoch != self.coordinators.generation:
                return f"{daemon.name} is of generation {status.epoch}, the group of {self.coordinators.generation}"
            if {one.partition for one in daemon.deliveries.statuses} != set(status.owned):
                return f"{daemon.name} delivers {daemon.deliveries.statuses}"
            owned |= dict.fromkeys(status.owned, status.consumer or "")
        expected = self.expected_assignment()
        if owned != expected:
            return f"owners are {owned}, expected {expected}"
        if missing := self.judge.find_missing():
            return f"not delivered: {missing}"
        for partition, log in self.brokers.logs.items():
            if (committed := self.coordinators.find_position(partition)) != log.end:
                return f"{partition}: committed {committed}, produced {log.end}"
        return None

    def expected_assignment(self) -> dict[TopicPartition, str]:
        """Return each partition's member, by the assignor."""
        members = {
            daemon.member.status.consumer or "": list(daemon.topics)
            for daemon in self.daemons.values()
            if isinstance(daemon, CoordinatedDaemon)
        }
        assigned = assign(self.assignor, members, self.topics)
        return {partition: member for member, partitions in assigned.items() for partition in partitions}

    async def go_home(self) -> None:
        """See Story."""
        everybody = list(self.daemons.values())
        for daemon in everybody:
            self.leave(daemon)
        await self.within(_GONE_WITHIN_S, lambda: self.find_remains(everybody))

    def find_remains(self, everybody: list[Daemon]) -> str | None:
        """See Story."""
        left = [daemon.name for daemon in everybody if not daemon.main.done()]
        group = self.coordinators.describe()
        if left or group is None or group.state is not GroupState.EMPTY:
            return f"{left} have not left, the group is {group}"
        return None
