# SPDX-License-Identifier: Apache-2.0
"""One seed's story: who comes, goes, dies, is stopped and cut off, and when; and how it must end.

Every choice is drawn from the seed, so that a story can be told again exactly. It ends well when, within a bound after the
last disturbance, the owners are those of the assignor, every member says so, and everything that was produced has been
delivered and committed; and when everybody can leave then and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from consumerd import failpoints
from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.group.assignors import Member, Strategy, assign
from consumerd.group.settings import RebalanceSettings
from consumerd.group.transitions import MemberState
from consumerd.model import ConsumerId, PartitionKey, TopicPartition
from consumerd.offsets.requests import encode_request
from consumerd.offsets.store import OffsetRequest
from consumerd.sinks.jsonl import JsonlFormat
from consumerd.zk.layout import id_path, ids_path, offset_path, owner_path, owners_root, request_path, topic_path
from consumerd.zk.layout_modern import partition_path
from consumerd.zk.port import LeasePhase
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.simulation.brokers import Brokers, Log
from tests.support.simulation.disk import ListFormat, SharedDisk
from tests.support.simulation.judge import GROUP, Judge
from tests.support.simulation.members import Daemon, Java, Setting
from tests.support.simulation.processes import Process, World

SETTLED_WITHIN_S = 30.0
"""After the last disturbance: a session's end (6 s and a third more), a drain, a few tries."""
_LOOK_EVERY_S = 0.25
_WRITES: Final[tuple[failpoints.Point, ...]] = ("before_claim", "before_release", "before_register")
_NOTICED_LOOKS = 12
"""So many times in a row: who has just been given the partition may not have a position yet."""
_POKES_S = 12.0
"""A Java-like member that has given up waits for a change: it is given one this often."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a story ended: ``trace`` tells whether two runs were the same."""

    seed: int
    trace: str
    virtual_s: float
    steps: int
    story: list[str]
    failure: str | None = None


def tell(seed: int) -> Outcome:
    """Tell a seed's story; a failure is part of the outcome."""
    return tell_story(seed, Story)


def tell_story(seed: int, make: Callable[[int, World], Story]) -> Outcome:
    """Tell a seed's story of some kind."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    world = World()
    story = make(seed, world)
    failure = None
    try:
        with _enabled(story.traps):
            world.run(story.run())
    except AssertionError as error:
        failure = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the story's failure
        failure = _describe(error)
    judge = story.judge
    return Outcome(seed, judge.trace, story.ended_at or world.now, world.steps, judge.story, failure)


def _describe(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" ({place.tb_frame.f_code.co_filename}:{place.tb_lineno})" if place is not None else ""
    return f"{type(error).__name__}: {error}{where}"


class _Traps:
    """What is to happen to a process when it next reaches a fail point."""

    def __init__(self) -> None:
        self._acts: dict[tuple[str, failpoints.Point], Callable[[], None]] = {}

    def set(self, process: Process, point: failpoints.Point, act: Callable[[], None]) -> None:
        """Let something happen, once."""
        self._acts[process.name, point] = act

    def clear(self) -> None:
        """Let nothing happen any more."""
        self._acts.clear()

    def reach(self, point: failpoints.Point) -> None:
        """See failpoints."""
        process = asyncio.get_running_loop()
        assert isinstance(process, Process)
        act = self._acts.pop((process.name, point), None)
        if act is not None:
            act()


@contextmanager
def _enabled(traps: _Traps) -> Iterator[None]:
    before = {name: getattr(failpoints, name) for name in ("ENABLED", "reach")}
    vars(failpoints).update(ENABLED=True, reach=traps.reach)
    try:
        yield
    finally:
        vars(failpoints).update(before)


class Story:
    """One seed's story, to be told once."""

    settled_within_s = SETTLED_WITHIN_S

    def __init__(self, seed: int, world: World) -> None:
        self.chance = chance = random.Random(seed)
        self.world = world
        self.strategy = chance.choice(list(Strategy))
        latency = chance.choice([(0.0001, 0.0005), (0.001, 0.03), (0.0, 0.15)])
        self.server = FakeZooKeeper(seed=seed, latency_s=latency, repeats=chance.choice([0.0, 0.2]), loop=world.main)
        self.judge = self.make_judge()
        self.elections = random.Random(f"elections of {seed}")
        """Draws of its own, so that stories without elections are told as they were before there were any."""
        self.brokers = Brokers(chance, (0.001, 0.05))
        self.disk = SharedDisk(chance, self.judge.linked)
        kind = chance.choice([ListFormat(), ListFormat(), ListFormat(), JsonlFormat(), None])
        self.judge.disk = self.disk
        if kind is not None:
            self.judge.format = kind
        self.setting = Setting(
            world=world,
            server=self.server,
            judge=self.judge,
            brokers=self.brokers,
            disk=self.disk,
            file_format=kind,
            strategy=self.strategy,
            rebalance=RebalanceSettings(
                drain_timeout_ms=chance.choice([300, 3000]), reconcile_ms=chance.choice([2000, 5000])
            ),
            delivery=DeliverySettings(
                offsets=OffsetPolicy(on_above=self.elections.choice(["earliest", "nearest"])),
                commit_interval_ms=chance.choice([200, 1000, 3000]),
                recheck_ms=2000,
                retry_maximum_ms=1000,
            ),
            roll_ms=chance.choice([100, 1000]),
            slowest_write_s=chance.choice([0.001, 0.02, 0.3]),
        )
        self.traps = _Traps()
        self.topics: dict[str, int] = {}
        self.daemons: dict[str, Daemon] = {}
        self.everybody: list[Daemon] = []
        """Those that leave or die besides."""
        self.java: dict[str, Java] = {}
        self.names = ["t", "u"][: chance.randint(1, 2)]
        self.java_too = chance.random() < 0.3
        """Java-like members do not survive the deletion of a topic: a story has either."""
        self.with_wishes = not self.java_too and chance.random() < 0.3
        """What an operator asks for is about the topic as it is: such a story deletes none."""
        self.configured = chance.random() < 0.3
        self.with_elections = not self.java_too and not self.with_wishes and self.elections.random() < 0.3
        """A log that loses its end is about the topic as it is, too."""
        self.recreates = not (self.java_too or self.with_wishes or self.with_elections)
        self.numbers = 0
        self.ended_at = 0.0

    def make_judge(self) -> Judge:
        """Return the judge of this kind of story."""
        return Judge(self.world, self.server, self.strategy)

    async def run(self) -> None:
        for topic in self.names:
            self.make_topic(topic, self.chance.randint(1, 4))
        for _ in range(self.chance.randint(1, 3)):
            self.join()
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(one) for one in self.beside()]
            await asyncio.sleep(self.chance.choice([0.0, 1.0, 2.0]))
            await self.disturb()
            for task in beside:
                task.cancel()
        await self.come_to_rest()
        await self.go_home()
        self.ended_at = self.world.now

    # -- what happens

    def beside(self) -> list[Coroutine[None, None, None]]:
        """Return what goes on until the last disturbance."""
        return [self.produce(), self.elect()] if self.with_elections else [self.produce()]

    async def disturb(self) -> None:
        """Let a few things happen, some of them at the same time."""
        async with asyncio.TaskGroup() as acts:
            for _ in range(self.chance.randint(2, 8)):
                acts.create_task(self.act())
                await asyncio.sleep(self.chance.choice([0.0, 0.02, 0.3, 2.0]) * self.chance.random() * 2)

    async def produce(self) -> None:
        while True:
            await asyncio.sleep(self.chance.uniform(0.02, 0.6))
            if self.brokers.logs:
                log = self.brokers.logs[self.chance.choice(sorted(self.brokers.logs))]
                if not log.frozen:
                    log.append(self.chance.randint(1, 6))

    def pick(self) -> Daemon | None:
        there = [daemon for daemon in self.daemons.values() if not daemon.process.dead]
        return self.chance.choice(there) if there else None

    async def act(self) -> None:
        chance, daemon = self.chance, self.pick()
        match chance.randrange(32):
            case 0 | 1 | 2 if len(self.daemons) < 4:
                self.join()
            case 3 | 4 if daemon is not None:
                self.leave(daemon)
            case 5 if daemon is not None:
                self.bury(daemon)
                daemon.kill()
            case 6 if daemon is not None:
                self.bury(daemon)
                daemon.process.after(chance.randrange(60), daemon.kill)
                await self.sure_to_die(daemon)
            case 7 if daemon is not None:
                self.bury(daemon)
                self.disk.deadly[daemon.process] = chance.randrange(12)
                await self.sure_to_die(daemon)
            case 8 | 9 if daemon is not None:
                self.judge.suspects[daemon.name].disturbed = True
                self.judge.note(f"{daemon.name} is cut off")
                daemon.client.cut()
                await asyncio.sleep(chance.choice([0.0, 0.2, 3.0, 12.0]) * chance.random())
                daemon.client.heal()
            case 10 if daemon is not None:
                await self.silence(daemon)
            case 11 if daemon is not None:
                self.judge.stopped(daemon.process)  # no lease foresees this, as none foresees a stop
                daemon.client.expire()
            case 12 | 13 if daemon is not None:
                daemon.stop()
                await self.go_on(daemon)
            case 14 | 15 if daemon is not None:
                daemon.process.after(chance.randrange(60), daemon.stop)
                await asyncio.sleep(chance.random())
                await self.go_on(daemon)
            case 16:
                topic = chance.choice(self.names)
                if topic in self.topics:
                    self.make_topic(topic, self.topics[topic] + chance.randint(1, 2))
            case 17 | 30 | 31:
                await self.recreate(chance.choice(self.names))
            case 18 if daemon is not None:
                self.tamper(daemon)
            case 19 | 20 if self.java_too and len(self.java) < 2:
                self.join_java()
            case 21 if self.java:
                java = self.java.pop(chance.choice(sorted(self.java)))
                java.kill() if chance.random() < 0.5 else java.leave()
            case 22 | 23 if self.with_wishes:
                self.wish(chance.choice(sorted(self.brokers.logs)))
            case 24 | 25 if daemon is not None:
                point: failpoints.Point = chance.choice(["before_commit", "before_commit", *_WRITES])
                self.traps.set(daemon.process, point, lambda: self.hold_up(daemon))
            case 26 | 27 if daemon is not None:
                self.judge.stopped(daemon.process)
                daemon.client.news_late_s = chance.uniform(0.1, 2.0)
                daemon.client.expire()
            case 28 | 29 if daemon is not None:
                await self.rob(daemon)
            case _:
                pass

    async def elect(self) -> None:
        """Let logs lose their ends, and grow again once nobody holds a position behind them."""
        for _ in range(self.elections.randint(1, 3)):
            await asyncio.sleep(self.elections.uniform(0.5, 4.0))
            if not self.brokers.logs:
                continue
            partition = self.elections.choice(sorted(self.brokers.logs))
            log = self.brokers.logs[partition]
            if log.frozen or not log.end or self.find_request(partition) is not None:
                continue
            end = self.elections.randrange(log.end)
            self.judge.note(f"{partition} loses [{end}, {log.end})")
            log.frozen = True
            log.truncate(end)
            await self.until_noticed(partition)
            log.append(self.elections.choice([0, 3, 20]))
            log.frozen = False

    async def until_noticed(self, partition: TopicPartition) -> None:
        """Wait until nobody has, and nothing says, a position behind the end."""
        log, quiet = self.brokers.logs[partition], 0
        while quiet < _NOTICED_LOOKS and self.brokers.logs.get(partition) is log:
            await asyncio.sleep(_LOOK_EVERY_S)
            quiet = quiet + 1 if self.find_furthest(partition) <= log.end else 0

    def find_furthest(self, partition: TopicPartition) -> float:
        """Return the largest position that anybody has, or that anything says."""
        positions = [self.find_landed(partition), self.find_request(partition) or 0]
        positions += [
            one.position or 0
            for daemon in self.everybody
            if not daemon.process.dead
            for one in daemon.statuses()
            if one.partition == partition
        ]
        return max(positions)

    def find_landed(self, partition: TopicPartition) -> int:
        """Return the larger of the committed position and the end of the newest chain, from which a new owner begins."""
        node = self.server.read(offset_path(GROUP, partition))
        return max(0 if node is None else int(node[0]), self.judge.newest_end(partition))

    def find_request(self, partition: TopicPartition) -> int | None:
        """Return the position of an open request; one from before the topic was made again counts no more."""
        found, log = self.server.read(request_path(GROUP, partition)), self.brokers.logs.get(partition)
        if found is None or log is None or found[1].mzxid < log.czxid:
            return None
        position = json.loads(found[0])["position"]
        assert isinstance(position, int)
        return position

    def wish(self, partition: TopicPartition, position: int | None = None) -> None:
        """Ask, as an operator, that a partition go on elsewhere."""
        path = request_path(GROUP, partition)
        if self.find_request(partition) is not None:
            return
        if position is None:
            position = self.chance.randint(0, self.brokers.logs[partition].end)
        self.numbers += 1
        request = OffsetRequest(
            id=f"wish{self.numbers}",
            partition=partition,
            position=position,
            new_chain=self.chance.random() < 0.5,
            author="operator",
            created_ms=0,
            version=0,
        )
        self.judge.wishes[partition].add(position)
        self.server.put(path, encode_request(request))

    def join(self) -> None:
        self.numbers += 1
        name = f"m{self.chance.randrange(100):02d}{self.numbers}"
        free = sorted({"a", "b", "c", "d"} - {daemon.consumer_id for daemon in self.daemons.values()})
        consumer_id = free[0] if self.configured else None
        self.judge.note(f"{name} joins")
        self.daemons[name] = Daemon(self.setting, name, self.streams(), self.chance, consumer_id)
        self.everybody.append(self.daemons[name])

    def join_java(self) -> None:
        self.numbers += 1
        name = f"java{self.chance.randrange(100):02d}{self.numbers}"
        self.judge.note(f"{name} joins")
        self.java[name] = Java(self.setting, name, self.streams(), self.chance)

    def streams(self) -> dict[str, int]:
        return dict.fromkeys(self.names, self.chance.randint(1, 2))

    def leave(self, daemon: Daemon) -> None:
        self.judge.note(f"{daemon.name} leaves")
        self.bury(daemon)
        daemon.leave()

    def bury(self, daemon: Daemon) -> None:
        """It is not of the group any more, as far as the end of the story goes."""
        self.judge.suspects[daemon.name].disturbed = True
        del self.daemons[daemon.name]

    async def sure_to_die(self, daemon: Daemon) -> None:
        await asyncio.sleep(3)
        if not daemon.process.dead:
            daemon.kill()

    async def silence(self, daemon: Daemon) -> None:
        self.judge.suspects[daemon.name].disturbed = True
        self.judge.note(f"{daemon.name} hears nothing any more")
        daemon.client.silence()
        await asyncio.sleep(self.chance.uniform(0.5, 4.0))
        daemon.client.cut()
        await asyncio.sleep(self.chance.choice([0.0, 0.5, 8.0]) * self.chance.random())
        daemon.client.heal()

    def hold_up(self, daemon: Daemon) -> None:
        """Stop it before it sends what it has just decided to send, until its session is over and the connection gone."""
        self.judge.note(f"{daemon.name} is held up")
        self.judge.stopped(daemon.process)
        daemon.client.lose_session()
        self.world.main.call_later(self.chance.uniform(0.0, 1.9), daemon.client.heal)

    async def rob(self, daemon: Daemon) -> None:
        """Take an owner node away from it while it knows that its lease has run out: nothing of this may be used again."""
        self.judge.suspects[daemon.name].disturbed = True
        daemon.client.cut(heard_ago_s=0.0)
        await asyncio.sleep(self.chance.uniform(4.1, 4.9))
        status = daemon.rebalancer.status
        if status.state is MemberState.SUSPENDED and daemon.client.state.phase is LeasePhase.SUSPENDED and status.owned:
            partition = self.chance.choice(sorted(status.owned))
            if self.judge.owns(daemon.process, partition):
                self.judge.note(f"{daemon.name} is robbed of {partition}")
                self.server.remove(owner_path(GROUP, partition))
        await asyncio.sleep(self.chance.uniform(0.0, 1.0))
        daemon.client.heal()

    async def go_on(self, daemon: Daemon) -> None:
        await asyncio.sleep(self.chance.choice([0.2, 3.0, 12.0]) * (0.2 + self.chance.random()))
        if daemon.name in self.daemons or daemon.leaving:  # else it is to die yet
            daemon.process.countdown = None
        daemon.proceed()

    def make_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, or let it grow."""
        known = self.topics.get(topic, 0)
        self.topics[topic] = partitions
        body = {"version": 1, "partitions": {str(number): [0] for number in range(partitions)}}
        self.server.put(topic_path(topic), json.dumps(body).encode())
        node = self.server.read(topic_path(topic))
        assert node is not None
        for number in range(known, partitions):
            partition = TopicPartition.modern(topic, number)
            self.server.put(partition_path(partition))
            log = self.brokers.logs[partition] = Log(node[1].czxid)
            log.append(self.chance.choice([0, 0, 9]))
            self.judge.logs[partition, node[1].czxid] = log

    async def recreate(self, topic: str) -> None:
        """Delete a topic and make it again, perhaps with more records than it had and behind somebody's back."""
        if topic not in self.topics or not self.recreates:
            return
        partitions = self.topics.pop(topic)
        self.judge.remade.add(topic)
        blind = self.pick() if self.chance.random() < 0.7 else None
        if blind is not None:
            self.judge.suspects[blind.name].disturbed = True
            blind.client.cut(heard_ago_s=0.0)
        ends = {}
        for number in range(partitions):
            partition = TopicPartition.modern(topic, number)
            ends[partition] = self.brokers.logs[partition].end
            self.brokers.remove(partition)
        self.server.remove(topic_path(topic))
        gone_s = 0.35 if blind is not None else self.chance.choice([0.35, 1.0, 5.0])
        await asyncio.sleep(gone_s)  # longer than a round trip: see offsets.zookeeper
        self.make_topic(topic, partitions)
        if blind is not None or self.chance.random() < 0.5:
            for partition, end in ends.items():
                self.brokers.logs[partition].append(end + 1)
        if blind is not None:
            await asyncio.sleep(self.chance.uniform(0.5, 2.0))
            blind.client.heal()

    def tamper(self, daemon: Daemon) -> None:
        """Take an owner node, or the member's own node, away from it."""
        status = daemon.rebalancer.status
        if self.chance.random() < 0.3 and status.consumer is not None:
            self.judge.suspects[daemon.name].disturbed = True
            self.server.remove(id_path(GROUP, status.consumer))
        elif status.owned:
            partition = self.chance.choice(sorted(status.owned))
            if self.judge.owns(daemon.process, partition):
                path = owner_path(GROUP, partition)
                self.judge.tampered[path] = daemon.name
                self.judge.suspects[daemon.name].disturbed = True
                self.server.remove(path)

    # -- how it ends

    async def come_to_rest(self) -> None:
        """Let sessions of the dead end, retries run out, and everybody read everything."""
        self.judge.note("no more disturbance")
        self.traps.clear()
        for daemon in self.daemons.values():
            daemon.process.countdown = None
            daemon.client.news_late_s = 0.0
            daemon.proceed()
            daemon.client.heal()
        await self.within(self.settled_within_s, self.find_unrest)

    async def within(self, seconds: float, find_problem: Callable[[], str | None]) -> None:
        begun = poked = self.world.now
        while (problem := find_problem()) is not None:
            assert self.world.now - begun < seconds, f"not settled {seconds} s after the last disturbance: {problem}"
            if self.java and self.world.now - poked > _POKES_S:
                poked = self.world.now
                self.poke()
            await asyncio.sleep(_LOOK_EVERY_S)

    def poke(self) -> None:
        path = f"{ids_path(GROUP)}/{GROUP}_passer-by"
        self.server.put(path, b'{"version":1,"subscription":{},"pattern":"static"}')
        self.server.remove(path)

    def find_unrest(self) -> str | None:
        """Say what is not as it should be in the end."""
        owners = {
            str(partition): node[0].decode()
            for partition in self.partitions()
            if (node := self.server.read(owner_path(GROUP, partition))) is not None
        }
        expected = self.expected_owners()
        if owners != expected:
            return f"owners are {owners}, expected {expected}"
        for daemon in self.daemons.values():
            status = daemon.rebalancer.status
            if status.state is not MemberState.FOLLOWING or not status.ready:
                return f"{daemon.name} is {status.state}: {status.unready_reason}"
            if set(status.owned) != set(status.desired) or status.moving:
                return f"{daemon.name} owns {status.owned}, wants {status.desired}"
            if {one.partition for one in daemon.deliveries.statuses} != set(status.owned):
                return f"{daemon.name} delivers {daemon.deliveries.statuses}"
        if self.java and not all(java.member.settled for java in self.java.values()):
            return "a Java member has not settled"
        open_wishes = [str(p) for p in self.brokers.logs if self.find_request(p) is not None and self.is_there(p)]
        if open_wishes and self.daemons:
            return f"nobody carries out what was asked for of {open_wishes}"
        missing = self.judge.find_missing() if self.daemons or self.java else None
        if missing:
            delivering = [
                f"{daemon.name}: {one.partition} {one.state.value} at {one.position}, {one.reason}"
                for daemon in self.daemons.values()
                for one in daemon.deliveries.statuses
                if str(one.partition) in missing
            ]
            return f"not delivered: {missing} by {delivering}"
        return self.find_uncommitted([p for p, thread in owners.items() if not thread.startswith(f"{GROUP}_java")])

    def is_there(self, partition: TopicPartition) -> bool:
        """Return True if a partition can be owned now."""
        return partition in self.brokers.logs

    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, PartitionKey.parse(key))
            for topic in self.server.names(owners_root(GROUP))
            for key in self.server.names(f"{owners_root(GROUP)}/{topic}")
        ]

    def expected_owners(self) -> dict[str, str]:
        members = [
            Member(consumer=daemon.rebalancer.status.consumer or ConsumerId("nobody"), streams=daemon.topics)
            for daemon in self.daemons.values()
        ] + [Member(consumer=java.consumer, streams=java.topics) for java in self.java.values()]
        partitions = {topic: tuple(PartitionKey(n) for n in range(count)) for topic, count in self.topics.items()}
        return {str(partition): thread for partition, thread in assign(self.strategy, members, partitions).items()}

    async def go_home(self) -> None:
        """Let everybody of ours leave; nothing may be left open."""
        everybody = list(self.daemons.values())
        for daemon in everybody:
            self.leave(daemon)
        for java in self.java.values():
            java.leave()
        self.java.clear()
        await self.within(15.0, lambda: self.find_remains(everybody))

    def find_remains(self, everybody: list[Daemon]) -> str | None:
        left = [daemon.name for daemon in everybody if not daemon.main.done()]
        owned = [str(p) for p in self.partitions() if self.server.read(owner_path(GROUP, p)) is not None]
        return f"{left} have not left, {owned} are owned" if left or owned else None

    def find_uncommitted(self, owned: list[str]) -> str | None:
        """Say what of ours is delivered and not committed."""
        for partition, log in self.brokers.logs.items():
            node = self.server.read(offset_path(GROUP, partition))
            committed = "0" if node is None else node[0].decode()
            if str(partition) in owned and committed != str(log.end):
                return f"{partition}: committed {committed}, produced {log.end}"
        return None
