# SPDX-License-Identifier: Apache-2.0
"""Stories of groups on brokers of Kafka 0.7: members, judge, and what happens to them.

Nothing of a member is left out: registration, claims, the cluster's directory, fetching, decoding, delivery, chains and
positions are the real ones. Brokers are those of ``legacy_brokers``. What is different from the other stories:

- **brokers go and come back**, with their partitions: cleanly, killed, or without power. What was not flushed may be
  lost then; no reader has seen it.
- **a broker is wiped**: it keeps its names and begins at offset 0. Its new log does not grow beyond the group's position
  before everybody has noticed, since nobody could tell then (docs/kafka-0.7.md).
- **records**: each is in the files exactly once, with the offset and index that it has in the log, in the log's order.
  A position is never inside of a message, and never beyond the end of the files.
- **truncation numbers**: what one number names is of one life of the log, and later lives have larger numbers.
- **away**: in the end, members tell exactly those partitions as away that have a position and no broker.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from consumerd.client.legacy_fetch import LegacyFetchProtocol
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.client.log_range import LogRangeReader, LogRanges
from consumerd.cluster.directory import ClusterDirectory
from consumerd.cluster.from_legacy_zookeeper import LegacyZooKeeperSource
from consumerd.cluster.topics import ZooKeeperTopics
from consumerd.daemon.away import AwayWatch
from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import FeedSource
from consumerd.delivery.status import DeliveryState
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.group.assignors import Member, Strategy, assign
from consumerd.group.identity import consumer_of
from consumerd.landing.chain import FileId, FileMetadata
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.publish import HiddenFile
from consumerd.model import BrokerId, ConsumerId, Generation, PartitionKey, TopicPartition
from consumerd.net.legacy_dialer import LegacyDialer
from consumerd.net.pool import ConnectionPool
from consumerd.offsets.group_positions import GroupPositions
from consumerd.sinks.files import FileFormat
from consumerd.sinks.jsonl import JsonlFormat
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import RecordBatch
from consumerd.zk.layout import BROKER_TOPICS, id_path, ids_path, offsets_root, topic_path
from consumerd.zk.layout_legacy import LEGACY, TopicBrokers
from consumerd.zk.port import LeasePhase
from consumerd.zk.znodes import parse_offset
from consumerd.zk.znodes_legacy import parse_partition_count, parse_registration
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.simulation.disk import ListEncoder, ListFormat
from tests.support.simulation.judge import GROUP, Chain, Judge, Making
from tests.support.simulation.legacy_brokers import LegacyBrokers, Network, SimulatedBroker, StoredLog
from tests.support.simulation.members import Daemon, Setting
from tests.support.simulation.processes import Process, World
from tests.support.simulation.story import Outcome, Story, tell_story

Place = tuple[int, int, int]
"""A record of a partition: life of the log, offset, index."""

_LOOK_EVERY_S: Final = 0.25
_FLUSH_EVERY_S: Final = 0.1
_AWAY_INTERVAL_S: Final = 3.0


def tell_legacy(seed: int) -> Outcome:
    """Tell a seed's story of a group on brokers of Kafka 0.7; a failure is part of the outcome."""
    return tell_story(seed, LegacyStory)


def read_partitions(server: FakeZooKeeper, topic: str) -> tuple[PartitionKey, ...]:
    """Return the partitions that are registered now, in the order of Java members."""
    node = server.read(topic_path(topic))
    if node is None:
        return ()
    counts = {}
    for name in server.names(topic_path(topic)):
        found = server.read(f"{topic_path(topic)}/{name}")
        assert found is not None
        counts[BrokerId(int(name))] = parse_partition_count(found[0])
    return TopicBrokers(stat=node[1], counts=counts, problems={}).partitions


class ValueEncoder(ListEncoder):
    """Writes a line of offset, index and value for each record."""

    def append(self, batch: RecordBatch) -> None:
        """See FileEncoder."""
        for one in batch.records():
            self._hidden.write(b"%d %d %s\n" % (one.offset, one.index, one.value))


class ValueFormat(ListFormat):
    """See FileFormat: as the lists of other stories, with values."""

    def open(
        self, files: FileSystem, *, partition: TopicPartition, folder: Path, position: int, file_id: FileId
    ) -> tuple[HiddenFile, ListEncoder]:
        """See FileFormat."""
        hidden, _ = super().open(files, partition=partition, folder=folder, position=position, file_id=file_id)
        return hidden, ValueEncoder(hidden)


def _read_values(data: bytes, extension: str) -> Iterator[tuple[int, int, bytes]]:
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        if extension == "jsonl":
            fields = json.loads(line)
            yield fields["offset"], fields["index"], fields["value"].encode()
        else:
            offset, index, value = line.split(b" ", 2)
            yield int(offset), int(index), value


class LegacyJudge(Judge):
    """Watches one group on brokers of Kafka 0.7."""

    def __init__(self, world: World, server: FakeZooKeeper, strategy: Strategy) -> None:
        super().__init__(world, server, strategy)
        self.stored: dict[TopicPartition, StoredLog] = {}
        self.keeps_files = True
        self._had: dict[TopicPartition, Counter[Place]] = {}
        """How often each record is in the files, or was delivered."""
        self._lives: dict[Making, dict[int, int]] = {}
        """The life of the log that each truncation number stands for."""
        self._streamed: dict[TopicPartition, tuple[int, int]] = {}
        """How far a sink without files has come: in which life of the log, and the position."""

    def _plan(self) -> Mapping[TopicPartition, ConsumerId]:
        members = []
        for name in self._server.names(ids_path(GROUP)):
            found = self._server.read(id_path(GROUP, ConsumerId(name)))
            assert found is not None
            members.append(Member(consumer=ConsumerId(name), streams=parse_registration(found[0]).subscription))
        partitions = {topic: read_partitions(self._server, topic) for topic in self._server.names(BROKER_TOPICS)}
        assigned = assign(self.strategy, members, partitions)
        return {partition: consumer_of(thread) for partition, thread in assigned.items()}

    # -- records

    def wrote(self, process: Process, batch: RecordBatch) -> None:
        """A sink without files took a batch for good."""
        self.note(f"{process.name} delivers {batch.partition} [{batch.start}, {batch.next_offset})")
        self._check_deliverer(process, batch.partition, "delivers")
        records = [(one.offset, one.index, one.value or b"") for one in batch.records()]
        life = self._take(f"what {process.name} delivers", batch.partition, (batch.start, batch.next_offset), records)
        if life is not None:
            reached = self._streamed.get(batch.partition, (life, 0))
            self._streamed[batch.partition] = max(reached, (life, batch.next_offset))

    def _judge_records(self, path: Path, partition: TopicPartition, chain: Chain, metadata: FileMetadata) -> None:
        records = list(_read_values(self.disk.read(path), self.format.extension))
        self.require(not metadata.gaps, f"{path} has the gaps {metadata.gaps}")
        life = self._take(str(path), partition, (metadata.position, metadata.next_offset), records)
        if life is not None:
            lives = self._lives.setdefault((partition, chain.czxid), {})
            known = lives.setdefault(chain.truncation, life)
            self.require(known == life, f"{path} is of life {life}, truncation {chain.truncation} of life {known}")
            in_order = [one for _, one in sorted(lives.items())]
            self.require(in_order == sorted(set(in_order)), f"{path}: truncations are of the lives {in_order}")

    def _take(
        self, what: str, partition: TopicPartition, span: tuple[int, int], records: Sequence[tuple[int, int, bytes]]
    ) -> int | None:
        """Compare records with the log's, and count them; return their life, None without records."""
        log, (start, end) = self.stored[partition], span
        if not records:
            self.require(start == end, f"{what} has no record in [{start}, {end}) of {partition}")
            return None
        life = int(records[0][2].split(b" ")[1])
        expected = [(one.offset, one.index, one.value) for one in log.list_between(life, start, end)]
        self.require(list(records) == expected, f"{what}: {partition} has other records in [{start}, {end})")
        self.require(log.has_boundary(life, end), f"{what} ends at {end} of {partition}, inside of a message")
        had = self._had.setdefault(partition, Counter())
        had.update((life, offset, index) for offset, index, _ in records)
        again = [place for place, count in had.items() if count > 1]
        self.require(
            not again or not self.keeps_files or bool(self.wishes[partition]), f"{what}: {again} are there twice"
        )
        return life

    def _check_commit(self, partition: TopicPartition, data: bytes) -> None:
        super()._check_commit(partition, data)
        log, position = self.stored[partition], parse_offset(data)
        is_boundary = any(log.has_boundary(life, position) for life in range(log.life + 1))
        self.require(is_boundary, f"{position} of {partition} is committed, inside of a message")

    def _safe_end(self, making: Making) -> int:
        partition, _ = making
        return self.newest_end(partition) if self.keeps_files else self._streamed.get(partition, (0, 0))[1]

    def find_missing(self) -> dict[str, list[int]]:
        """Return what is in the logs of registered partitions, and was never delivered."""
        missing = {}
        for partition, log in self.stored.items():
            if partition.partition not in read_partitions(self._server, partition.topic):
                continue
            had = self._had.get(partition, Counter[Place]())
            rest = [one.offset for one in log.list_visible() if (log.life, one.offset, one.index) not in had]
            if rest:
                missing[str(partition)] = rest
        return missing


class LegacyDaemon(Daemon):
    """One of ours on brokers of Kafka 0.7, in a process of its own."""

    layout = LEGACY

    def __init__(
        self,
        setting: Setting,
        brokers: LegacyBrokers,
        fetch: FetchSettings,
        name: str,
        topics: dict[str, int],
        chance: random.Random,
        consumer_id: str | None,
    ) -> None:
        super().__init__(setting, name, topics, chance, consumer_id)
        self.network = Network(brokers, self.process)
        self._fetch = fetch
        self.away: AwayWatch

    @asynccontextmanager
    async def _reading(self, hooks: Hooks) -> AsyncIterator[tuple[FeedSource, LogRanges]]:
        now, chance = self.process.time, self._chance.random
        directory = ClusterDirectory(
            self.client, LegacyZooKeeperSource(self.client), None, now=now, random=chance, layout=LEGACY
        )
        directory.follow(self.topics)
        positions = GroupPositions(self.client, GROUP, topics=ZooKeeperTopics(self.client, LEGACY))
        self.away = AwayWatch(
            directory.views,
            lambda: self.topics,
            positions,
            generation=Generation.LEGACY,
            hooks=hooks,
            interval_s=_AWAY_INTERVAL_S,
        )
        async with ConnectionPool(LegacyDialer(self.network, now=now), now=now, random=chance) as pool:
            ranges = LogRangeReader(
                pool,
                directory,
                random=chance,
                timeout_s=5.0,
                lookup=LegacyOffsetLookup(pool, request_timeout_s=self._fetch.request_timeout_s),
            )
            fetcher = Fetcher(
                settings=self._fetch,
                budget=MemoryBudget(1 << 20),
                leaders=directory,
                protocol=LegacyFetchProtocol(pool),
                log_ranges=ranges,
                hooks=hooks,
                now=now,
                random=chance,
            )
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.run()) for one in (directory, fetcher, self.away)]
                yield fetcher, ranges
                for task in tasks:
                    task.cancel()


class LegacyStory(Story):
    """A story of a group on brokers of Kafka 0.7."""

    judge: LegacyJudge
    settled_within_s = 180.0
    """With small fetches, each of which is a file on a slow disk, members may be far behind the log's end."""

    def __init__(self, seed: int, world: World) -> None:
        super().__init__(seed, world)
        self.java_too = self.with_wishes = self.with_elections = self.recreates = False
        self.own = own = random.Random(f"legacy of {seed}")
        self.strategy = self.judge.strategy = Strategy.RANGE
        kind: FileFormat | None = own.choice([ValueFormat(), ValueFormat(), JsonlFormat(), None])
        if kind is not None:
            self.judge.format = kind
        self.judge.keeps_files = kind is not None
        self.setting = replace(
            self.setting,
            strategy=Strategy.RANGE,
            file_format=kind,
            delivery=replace(self.setting.delivery, offsets=OffsetPolicy(on_above=own.choice(["earliest", "stop"]))),
        )
        self.fetch = FetchSettings(
            max_partition_bytes=own.choice([60, 300, 1 << 20]), max_wait_ms=own.choice([50, 400]), request_timeout_s=1.5
        )
        self.legacy = LegacyBrokers(
            world,
            self.server,
            own,
            stored=self.judge.stored,
            topics=self.names,
            created=self._note_log,
            latency_s=own.choice([(0.0001, 0.0005), (0.001, 0.03), (0.0, 0.1)]),
        )
        self.settling: set[SimulatedBroker] = set()
        """Brokers that were wiped, and have partitions of which not everybody knows it yet."""

    def make_judge(self) -> LegacyJudge:
        """See Story."""
        return LegacyJudge(self.world, self.server, self.strategy)

    def _note_log(self, partition: TopicPartition, log: StoredLog) -> None:
        self.brokers.logs[partition] = log
        self.judge.logs[partition, log.czxid] = log

    async def run(self) -> None:
        """See Story."""
        for broker in self.legacy.brokers.values():
            broker.start()
        for topic in self.names[: self.own.randint(0, 2)]:
            self.make_topic(topic, 1)
        async with asyncio.TaskGroup() as group:
            operator = group.create_task(self.operate())
            await super().run()
            operator.cancel()

    async def disturb(self) -> None:
        """See Story: the logs have time to grow in between."""
        await super().disturb()
        if not self.daemons:
            self.join()
        await asyncio.sleep(self.own.uniform(2.0, 8.0))
        await super().disturb()

    def beside(self) -> list[Coroutine[None, None, None]]:
        """See Story."""
        return [self.produce(), self.flush(), self.wipe()]

    def make_topic(self, topic: str, partitions: int) -> None:
        """Let a topic appear on a broker, or on one more."""
        self.topics[topic] = partitions
        hosts = [one for one in self.list_steady() if not one.logs.has_topic(topic)]
        if hosts:
            broker = self.own.choice(hosts)
            self.judge.note(f"{topic} appears on broker {broker.id}")
            number = self.own.randrange(broker.counts.get(topic))
            self.legacy.produce(broker.logs.key(topic, number), 1)

    def list_steady(self) -> list[SimulatedBroker]:
        """Return the brokers that are there, and whose logs may grow."""
        return [one for one in self.legacy.list_up() if one not in self.settling]

    async def produce(self) -> None:
        """See Story."""
        while True:
            await asyncio.sleep(self.own.uniform(0.02, 0.5))
            partitions = [
                one.logs.key(topic, number)
                for one in self.list_steady()
                for topic in sorted(one.logs.topics())
                for number in range(one.counts.get(topic))
            ]
            if partitions:
                self.legacy.produce(self.own.choice(partitions), self.own.randint(1, 3))

    async def flush(self) -> None:
        """Flush logs as brokers do."""
        while True:
            await asyncio.sleep(_FLUSH_EVERY_S)
            self.legacy.flush_due()

    async def operate(self) -> None:
        """Say where stopped partitions go on: at the start of the new log."""
        while True:
            await asyncio.sleep(self.own.uniform(0.2, 2.0))
            for daemon in list(self.daemons.values()):
                for one in () if daemon.process.dead else daemon.statuses():
                    if one.state is DeliveryState.STOPPED and self.find_request(one.partition) is None:
                        is_wiped = bool(self.judge.stored[one.partition].cuts)
                        self.judge.require(is_wiped, f"{one.partition} is stopped: {one.reason}")
                        self.wish(one.partition, 0)

    # -- what happens

    def join(self) -> None:
        """See Story."""
        self.numbers += 1
        name = f"m{self.chance.randrange(100):02d}{self.numbers}"
        free = sorted({"a", "b", "c", "d"} - {daemon.consumer_id for daemon in self.daemons.values()})
        self.judge.note(f"{name} joins")
        self.daemons[name] = LegacyDaemon(
            self.setting,
            self.legacy,
            self.fetch,
            name,
            self.streams(),
            self.chance,
            free[0] if self.configured else None,
        )
        self.everybody.append(self.daemons[name])

    async def act(self) -> None:
        """See Story."""
        daemon = self.pick()
        match self.own.randrange(10):
            case 0 | 1 | 2 if steady := self.list_steady():
                broker = self.own.choice(steady)
                self.take_away(broker)
                await asyncio.sleep(self.own.choice([0.2, 2.0, 9.0]) * self.own.uniform(0.5, 1.0))
                if not broker.is_up:
                    self.bring_back(broker)
            case 3 if isinstance(daemon, LegacyDaemon):
                self.judge.note(f"{daemon.name} does not reach the brokers")
                daemon.network.cut()
                await asyncio.sleep(self.own.uniform(0.2, 4.0))
                daemon.network.heal()
            case 4:
                self.make_topic(self.own.choice(self.names), 1)
            case _:
                await super().act()

    def take_away(self, broker: SimulatedBroker) -> None:
        """Stop or kill a broker."""
        how = self.own.choice(["stops", "is killed", "loses power"])
        self.judge.note(f"broker {broker.id} {how}")
        if how == "stops":
            broker.stop()
        else:
            broker.kill(with_power=how == "loses power")

    def bring_back(self, broker: SimulatedBroker) -> None:
        """Start a broker that is away."""
        self.judge.note(f"broker {broker.id} comes back")
        broker.start()

    async def wipe(self) -> None:
        """Let brokers lose their logs, and grow again once nobody holds a position in the old ones."""
        for _ in range(self.own.randint(0, 3)):
            await asyncio.sleep(self.own.uniform(0.5, 4.0))
            steady = self.list_steady()
            if not steady:
                continue
            broker = self.own.choice(steady)
            self.settling.add(broker)
            self.take_away(broker)
            await asyncio.sleep(self.own.choice([0.2, 2.0, 9.0]) * self.own.uniform(0.5, 1.0))
            self.judge.note(f"broker {broker.id} is wiped")
            broker.wipe()
            self.bring_back(broker)
            known = sorted(one for one in self.judge.stored if one.partition.broker == broker.id)
            for partition in known:
                if self.own.random() < 0.7:
                    await asyncio.sleep(self.own.uniform(0.0, 1.0))
                    self.legacy.produce(partition, 3, below=self.find_landed(partition))
            for partition in known:
                await self.until_noticed(partition)
            self.judge.note(f"broker {broker.id} is known to be wiped")
            self.settling.remove(broker)

    def find_furthest(self, partition: TopicPartition) -> float:
        """See Story; nobody knows what a member has fetched that is stopped, or waits for ZooKeeper or its disk."""
        for daemon in self.everybody:
            if not daemon.process.dead and daemon.main.done() is False:
                is_fresh = daemon.client.state.phase is LeasePhase.FRESH and daemon.client.state.connected
                if not daemon.process.running or not is_fresh:
                    return math.inf
        return super().find_furthest(partition)

    # -- how it ends

    async def come_to_rest(self) -> None:
        """See Story."""
        for broker in self.legacy.brokers.values():
            has_wish = any(self.find_request(one) is not None for one in self.judge.stored)
            if not broker.is_up and (has_wish or self.own.random() < 0.7):
                self.bring_back(broker)
        self.legacy.flush_all()
        for daemon in self.everybody:
            if isinstance(daemon, LegacyDaemon):
                daemon.network.heal()
        await super().come_to_rest()

    def expected_owners(self) -> dict[str, str]:
        """See Story."""
        members = [
            Member(consumer=daemon.rebalancer.status.consumer or ConsumerId("nobody"), streams=daemon.topics)
            for daemon in self.daemons.values()
        ]
        partitions = {topic: read_partitions(self.server, topic) for topic in self.names}
        return {str(partition): thread for partition, thread in assign(self.strategy, members, partitions).items()}

    def is_there(self, partition: TopicPartition) -> bool:
        """See Story."""
        return partition.partition in read_partitions(self.server, partition.topic)

    def find_unrest(self) -> str | None:
        """See Story."""
        away = {
            f"{topic}/{key}"
            for topic in self.server.names(offsets_root(GROUP))
            for key in self.server.names(f"{offsets_root(GROUP)}/{topic}")
            if PartitionKey.parse(key) not in read_partitions(self.server, topic)
        }
        for daemon in self.daemons.values():
            if isinstance(daemon, LegacyDaemon) and hasattr(daemon, "away"):
                told = {one for status in daemon.away.status for one in status.partitions}
                if told != away:
                    return f"{daemon.name} tells {sorted(told)} as away, expected {sorted(away)}"
        return super().find_unrest()
