# SPDX-License-Identifier: Apache-2.0
"""Members of a simulated group: daemons of ours, with everything between ZooKeeper and the disk, and Java-like ones."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from consumerd.client.log_range import LogRanges
from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.ports import DeliveryReports, DeliverySettings, FeedSource, SinkRoute
from consumerd.delivery.status import PartitionStatus
from consumerd.errors import CoordinationError
from consumerd.group.assignors import Strategy
from consumerd.group.identity import MemberIdentity
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.registry import GroupRegistry
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import Claim, ConsumerId, TopicPartition
from consumerd.offsets.history import ZooKeeperPartitionHistory
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.truncations import ZooKeeperLogTruncations
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.sinks.base import PartitionWriter, Sink, SinkContext, Start
from consumerd.sinks.chain_sink import ChainSink
from consumerd.sinks.files import FileFormat
from consumerd.sinks.options import ChainOptions
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import RecordBatch
from consumerd.zk.layout import offset_path, offsets_path
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.registry_layout import RegistryLayout
from consumerd.zk.znodes import encode_offset, parse_offset
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.java_member import JavaMember
from tests.support.simulation.brokers import Brokers
from tests.support.simulation.disk import ROOT, SharedDisk, Threads
from tests.support.simulation.judge import GROUP, Judge
from tests.support.simulation.processes import Process, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all members of one story share. ``file_format`` is None for a sink that keeps nothing of its own."""

    world: World
    server: FakeZooKeeper
    judge: Judge
    brokers: Brokers
    disk: SharedDisk
    file_format: FileFormat | None
    strategy: Strategy
    rebalance: RebalanceSettings
    delivery: DeliverySettings
    roll_ms: int
    slowest_write_s: float
    shared: bool = True
    """Every member lands below one root; else each below that of its consumer id."""


class JudgedHooks(Hooks):
    """Tells the judge what a process has lost."""

    def __init__(self, judge: Judge, process: Process) -> None:
        self._judge = judge
        self._process = process

    def ownership_lost(self, partition: TopicPartition, reason: str) -> None:
        """See Hooks."""
        self._judge.lost(self._process, partition, reason)


class _JudgedListener:
    """Tells the judge before it tells delivery; sorted, for a set has another order in each process of Python's."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def claimed(self, claims: Sequence[Claim]) -> None:
        daemon = self._daemon
        for claim in claims:
            daemon.judge.claimed(daemon.process, daemon.client.state.session_id, claim)
        await daemon.deliveries.claimed(claims)

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        daemon = self._daemon
        if not daemon.leaving:
            for partition in sorted(partitions):
                daemon.judge.drained(daemon.process, partition, daemon.rebalancer.status.consumer)
        await daemon.deliveries.drain(sorted(partitions), deadline_s)

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        daemon = self._daemon
        await daemon.deliveries.lost(sorted(partitions))
        for partition in sorted(partitions):
            daemon.judge.dropped(daemon.process, partition)


class _StreamWriter:
    """See PartitionWriter: what is written is out, and acknowledged at once; nothing can be taken back."""

    resume_position = None
    request_id = None

    def __init__(self, daemon: Daemon, claim: Claim) -> None:
        self._daemon = daemon
        self._claim = claim
        self._position = 0

    async def start(self, start: Start) -> None:
        self._position = start.position

    async def write(self, batch: RecordBatch) -> int:
        self._claim.check()
        await self._daemon.threads.run(lambda: self._daemon.judge.wrote(self._daemon.process, batch))
        self._position = batch.next_offset
        return self._position

    async def flush(self) -> int:
        return self._position

    def deadline(self) -> float | None:
        return None

    async def abandon(self) -> None:
        pass


class _StreamSink:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def open(self, claim: Claim) -> PartitionWriter:
        return _StreamWriter(self._daemon, claim)

    async def close(self) -> None:
        pass


class Daemon:
    """One of ours, in a process of its own."""

    layout: RegistryLayout = MODERN

    def __init__(
        self, setting: Setting, name: str, topics: dict[str, int], chance: random.Random, consumer_id: str | None
    ) -> None:
        self.name = name
        self.topics = topics
        self.judge = setting.judge
        self.leaving = False
        self.consumer_id = consumer_id
        self.process = setting.world.process(name)
        self.client = setting.server.client(name)
        self.threads = Threads(self.process, setting.disk, chance, setting.slowest_write_s, self.kill)
        self._setting = setting
        self._chance = chance
        self.deliveries: Deliveries
        self.rebalancer: Rebalancer
        self.main = self.process.create_task(self._live())
        self.main.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._setting.world.failures.append(error)

    @asynccontextmanager
    async def _reading(self, hooks: Hooks) -> AsyncIterator[tuple[FeedSource, LogRanges]]:
        """Give the source of feeds, and that of ranges, while the block runs."""
        yield self._setting.brokers, self._setting.brokers

    async def _live(self) -> None:
        hooks = JudgedHooks(self._setting.judge, self.process)
        async with self._reading(hooks) as (feeds, ranges):
            await self._take_part(feeds, ranges, hooks)

    async def _take_part(self, feeds: FeedSource, ranges: LogRanges, hooks: Hooks) -> None:
        setting, process = self._setting, self.process
        store = ZooKeeperOffsetStore(self.client, GROUP)
        requests = ZooKeeperOffsetRequests(self.client, GROUP)
        self.deliveries = Deliveries(
            route=lambda _: SinkRoute(name="lake", sink=sink),
            feeds=feeds,
            store=store,
            ranges=ranges,
            history=ZooKeeperPartitionHistory(self.client, GROUP, layout=self.layout),
            requests=requests,
            truncations=ZooKeeperLogTruncations(self.client, GROUP),
            quarantine=None,
            settings=setting.delivery,
            reports=DeliveryReports(
                lost=lambda claim, error: self.rebalancer.report_lost(claim, str(error)),
                sink_closed=lambda error: setting.judge.require(False, f"a sink was closed: {error}"),
            ),
            hooks=hooks,
            now=process.time,
            random=self._chance.random,
        )
        self.rebalancer = Rebalancer(
            self.client,
            identity=MemberIdentity(group=GROUP, host=self.name, consumer_id=self.consumer_id),
            subscription=Subscription.to_topics(self.topics),
            listener=_JudgedListener(self),
            now=process.time,
            wall_ms=lambda: int(process.time() * 1000),
            random=random.Random(self._chance.random()),
            strategy=setting.strategy,
            settings=setting.rebalance,
            hooks=hooks,
            layout=self.layout,
        )
        sink = self._make_sink(hooks)
        self.client.connect()
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self.deliveries.run()), group.create_task(requests.run())]
            await self.rebalancer.run()
            for task in beside:
                task.cancel()

    def _make_sink(self, hooks: Hooks) -> Sink:
        setting = self._setting
        if setting.file_format is None:
            return _StreamSink(self)
        context = SinkContext(
            sink_name="lake",
            group=GROUP,
            cluster_id="1-1",
            writer_id=self.name,
            now=self.process.time,
            charge=lambda _: None,
            hooks=hooks,
            consumer_id=self.consumer_id,
        )
        path = ROOT if setting.shared else ROOT.with_name(f"{ROOT.name}-{self.consumer_id}")
        options = ChainOptions(path=path, shared=setting.shared, roll_ms=setting.roll_ms, roll_bytes=400)
        return ChainSink(context, options, setting.file_format, files=setting.disk, threads=self.threads)

    def statuses(self) -> Sequence[PartitionStatus]:
        """How its partitions stand; none before it has begun."""
        deliveries = getattr(self, "deliveries", None)
        return () if deliveries is None else deliveries.statuses

    # -- what happens to it

    def leave(self) -> None:
        """Let it leave as SIGTERM makes it: drain, leave, close the session."""
        self.leaving = True

        async def leave() -> None:
            await self.rebalancer.leave()
            await asyncio.wait([self.main])
            self.client.close()

        self.process.create_task(leave())

    def kill(self) -> None:
        """Let it die as SIGKILL makes it."""
        self.judge.note(f"{self.name} dies")
        self.process.kill()
        self.client.crash()

    def stop(self) -> None:
        """Stop it as SIGSTOP does."""
        if not self.process.dead:
            self.judge.note(f"{self.name} is stopped")
            self.judge.stopped(self.process)
            self.process.stop()
            self.client.stop()

    def proceed(self) -> None:
        """Let it go on as SIGCONT does."""
        if not self.process.dead and not self.process.running:
            self.judge.note(f"{self.name} goes on")
            self.process.proceed()
            self.client.proceed()


class Java:
    """A Java-like member: consumes without looking at its lease, commits without conditions, deletes without looking."""

    def __init__(self, setting: Setting, name: str, topics: dict[str, int], chance: random.Random) -> None:
        self.name = name
        self.topics = topics
        self.process = setting.world.process(name)
        self.client = setting.server.client(name)
        self._setting = setting
        self._chance = chance
        self._positions: dict[TopicPartition, int] = defaultdict(int)
        self.member = JavaMember(
            self.client,
            GROUP,
            name,
            topics,
            GroupRegistry(self.client, GROUP, wall_ms=lambda: 0, random=random.Random(0), layout=MODERN),
            strategy=setting.strategy,
            started=self._positions.__setitem__,
            load=self._load,
            stopped=self._commit,
        )
        self.process.create_task(self._live())

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(self._consume())
            await self.member.run()
            consuming.cancel()

    async def _consume(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.05, 0.5))
            for partition in sorted(self.member.owned):
                self._take(partition)

    def _take(self, partition: TopicPartition) -> None:
        log = self._setting.brokers.logs.get(partition)
        if log is not None and log.end > self._positions[partition]:
            self._setting.judge.consumed[partition, log.czxid].update(range(self._positions[partition], log.end))
            self._positions[partition] = log.end

    async def _load(self, partition: TopicPartition) -> int:
        found = await self.client.find(offset_path(GROUP, partition))
        return 0 if found is None else parse_offset(found[0])

    async def _commit(self, partition: TopicPartition) -> None:
        with contextlib.suppress(CoordinationError):
            await self.client.ensure_path(offsets_path(GROUP, partition.topic))
            await self.client.ensure_path(offset_path(GROUP, partition), b"0")
            await self.client.set(offset_path(GROUP, partition), encode_offset(self._positions[partition]))

    @property
    def consumer(self) -> ConsumerId:
        """Its id."""
        return self.member.consumer

    def leave(self) -> None:
        """Shut it down."""
        self.member.leave()

    def kill(self) -> None:
        """Let it die."""
        self.process.kill()
        self.client.crash()
