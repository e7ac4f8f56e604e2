# SPDX-License-Identifier: Apache-2.0
"""The demo itself: a cluster, a stream, a group disturbed twice, and the audit.

All processes are children that do not outlive it. A display shows events; the outcome is returned. No code reads the
landed files before the audit.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.aio.tasks import alongside
from consumerd.daemon.runner import find_cause
from consumerd.demo.audit import Landed, TopicAudit, audit, read_json_lines, read_parquet
from consumerd.demo.children import Child
from consumerd.demo.display import Display
from consumerd.demo.group_watch import GroupWatch
from consumerd.demo.lake import LAKE, Lake, describe_line, parse_lake
from consumerd.demo.ledger import Ledger
from consumerd.demo.members import GROUP, SESSION_TIMEOUT_MS, DemoMember, ObservedRebalance, Partition
from consumerd.demo.outlets import open_outlets
from consumerd.demo.production import Production
from consumerd.demo.stream import CLICKS, ORDERS, SERVICES, STEP_MS, TOPICS, Event, make_stream
from consumerd.telemetry.wording import counted

LEDGER_NAME: Final = "ledger.tsv"
_CLUSTER: Final = "cluster"
_START_TIMEOUT_S: Final = 60.0
_STEP_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 25.0
_JOB_TIMEOUT_S: Final = 120.0
_PARTITIONS: Final = 8
# shares of the stream: a disturbance begins when the first is acknowledged, and at most the second is sent until
# it is over. So records flow before, during and after it, on slow and fast machines
_JOIN: Final = (0.25, 0.6)
_KILL: Final = (0.5, 0.85)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The number of records, the approximate duration, and the folder for everything."""

    folder: Path
    records: int
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The landed files of one topic."""

    folder: Path
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The outcome of a demo; ``began`` is in seconds since the epoch."""

    audits: Sequence[TopicAudit]
    rebalances: Sequence[ObservedRebalance]
    files: Sequence[Files]
    lake: Lake
    ledger: Path
    began: float
    seconds: float

    @property
    def sound(self) -> bool:
        """True if the audits found nothing, and the tables hold the landed records."""
        return all(one.sound for one in self.audits) and not self.lake.findings and not self.disagreements

    @property
    def disagreements(self) -> Sequence[str]:
        """Differences between the tables and the landed records."""
        return self.lake.disagreements({one.topic: one.landed for one in self.audits})


class Demo:
    """One run. The folder must exist."""

    def __init__(self, settings: DemoSettings, display: Display, now: Callable[[], float]) -> None:
        self._settings = settings
        self._display = display
        self._now = now
        self._ledger = Ledger()
        self._totals: dict[str, int] = {}
        self._members: list[DemoMember] = []
        self._patience_s = _STEP_TIMEOUT_S + 2 * settings.seconds
        self._partitions: list[Partition] = [(topic, number) for topic in TOPICS for number in range(_PARTITIONS)]

    async def run(self) -> DemoOutcome:
        """Run everything. Raises ConfigError, ChildFailed, AuditFailed, and a producer's errors.

        No process is left in any case. The caller keeps or removes the folder.
        """
        began, began_at = time.time(), self._now()
        try:
            await self._fill()
        except BaseExceptionGroup as failures:
            raise find_cause(failures) from None
        shutil.rmtree(self._settings.folder / _CLUSTER, ignore_errors=True)
        self._display.say("audit: the producer's ledger against the files, read with pyarrow and json")
        audits = await asyncio.to_thread(self._audit)
        lake = await self._fill_lake(self._members[0].config)
        return DemoOutcome(
            audits=audits,
            lake=lake,
            rebalances=sorted(
                itertools.chain.from_iterable(member.rebalances() for member in self._members),
                key=lambda one: one.ended,
            ),
            files=tuple(_count_files(self._settings.folder / kind) for kind in ("parquet", "jsonl")),
            ledger=self._settings.folder / LEDGER_NAME,
            began=began,
            seconds=self._now() - began_at,
        )

    async def _fill(self) -> None:
        """Produce, disturb and land; return when every process has ended in order."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(_make_cluster(settings.folder))
            events = await asyncio.to_thread(_make_events, settings)
            self._totals = _count_events(events)
            bootstrap, zookeeper = [
                (await cluster.read_line(_START_TIMEOUT_S)).partition(" ")[2] for _ in ("bootstrap", "zookeeper")
            ]
            self._display.say(
                f"ZooKeeper on {zookeeper}, a broker on {bootstrap}, topics {ORDERS} and {CLICKS} with "
                f"{counted(_PARTITIONS, 'partition')} each"
            )
            watch = GroupWatch(cluster, lambda: self._show(watch))
            outlets = await stack.enter_async_context(open_outlets(bootstrap))
            production = Production(
                events, outlets, self._ledger, per_second=settings.records / settings.seconds, now=self._now
            )
            async with alongside(watch.run(), name="watch the group"), asyncio.TaskGroup() as tasks:
                producing = tasks.create_task(production.run(), name="produce")
                self._display.say(
                    "four services produce: "
                    + ", ".join(f"{service.name} with {service.codec}" for service in SERVICES)
                )
                await self._disturb(stack, watch, production, zookeeper)
                await asyncio.wait([producing])
                self._display.say(f"{len(self._ledger):,} records are acknowledged")
                await watch.wait(lambda: _all_landed(watch, self._ledger), "everything landed", self._patience_s)
                self._display.say("all of them have landed; the group ends in order")
                living = [member for member in self._members if member.running]
                await map_bounded(living, lambda member: member.stop(_STOP_TIMEOUT_S))
            await cluster.stop(_STOP_TIMEOUT_S)
            self._show(watch)

    async def _disturb(self, stack: AsyncExitStack, watch: GroupWatch, production: Production, zookeeper: str) -> None:
        """Start two members and then a third, and kill one."""
        production.allow(_JOIN[1])
        first, second = [await self._start(stack, watch, zookeeper) for _ in range(2)]
        await watch.wait(lambda: first.find_url() is not None, f"{first.name} serves its status page", _STEP_TIMEOUT_S)
        self._display.say(f"status page of {first.name}, while this runs: {first.find_url()}/")
        await self._wait_shared(watch, [first, second])
        self._display.say(f"{first.name} and {second.name} share {len(self._partitions)} partitions of group {GROUP}")

        await self._wait_produced(watch, _JOIN[0])
        before = {member: watch.owned_by(member) for member in (first, second)}
        third = await self._start(stack, watch, zookeeper)
        await self._wait_shared(watch, [first, second, third])
        stayed = sum(len(watch.owned_by(member) & owned) for member, owned in before.items())
        self._display.say(
            f"{third.name} has joined and owns {len(watch.owned_by(third))}; {stayed} of {len(self._partitions)} "
            "stayed where they were"
        )

        production.allow(_KILL[1])
        await self._wait_produced(watch, _KILL[0])
        held = watch.owned_by(second)
        await second.kill()
        killed_at = self._now()
        self._display.say(f"{second.name} was killed (SIGKILL); it owned {counted(len(held), 'partition')}")
        await self._wait_shared(watch, [first, third])
        self._display.say(
            f"{first.name} and {third.name} have inherited them {self._now() - killed_at:.1f} s later (a session lasts "
            f"{SESSION_TIMEOUT_MS / 1000:.0f} s)"
        )
        production.allow(1)

    async def _fill_lake(self, config: Path) -> Lake:
        """Run the pipeline's jobs on the landed files. Raises ChildFailed."""
        self._display.say("the data pipeline on Spark: audit, bronze, silver")
        lines: list[str] = []
        async with Child(LAKE, str(config), folder=self._settings.folder, module="consumerd.demo.lake") as child:
            while (line := await child.find_line(_JOB_TIMEOUT_S)) is not None:
                lines.append(line)
                self._display.say(describe_line(line))
            lake = parse_lake(lines, config)
            if not lake.complete:
                raise child.fail("ended before it was done")
        return lake

    async def _start(self, stack: AsyncExitStack, watch: GroupWatch, zookeeper: str) -> DemoMember:
        member = DemoMember(f"worker-{len(self._members) + 1}", zookeeper=zookeeper, folder=self._settings.folder)
        member.write_settings()
        await stack.enter_async_context(member)
        self._members.append(member)
        watch.add(member)
        return member

    async def _wait_produced(self, watch: GroupWatch, share: float) -> None:
        wanted = share * self._settings.records
        await watch.wait(
            lambda: len(self._ledger) >= wanted, f"{wanted:.0f} records are acknowledged", self._patience_s
        )

    async def _wait_shared(self, watch: GroupWatch, members: Sequence[DemoMember]) -> None:
        names = ", ".join(member.name for member in members)
        await watch.wait(
            lambda: watch.share(members, self._partitions), f"{names} own every partition once", _STEP_TIMEOUT_S
        )

    def _show(self, watch: GroupWatch) -> None:
        produced, orders, clicks = "produced", f"{ORDERS} in Parquet", f"{CLICKS} in JSON lines"
        self._display.show(
            {produced: len(self._ledger), orders: watch.landed_of(ORDERS), clicks: watch.landed_of(CLICKS)},
            {produced: self._settings.records, orders: self._totals[ORDERS], clicks: self._totals[CLICKS]},
        )

    def _audit(self) -> tuple[TopicAudit, ...]:
        folder = self._settings.folder
        self._ledger.write(folder / LEDGER_NAME)
        landed: Iterator[Landed] = itertools.chain(read_parquet(folder / "parquet"), read_json_lines(folder / "jsonl"))
        return audit(self._ledger.digests, landed)


def _make_cluster(folder: Path) -> Child:
    topics = [word for topic in TOPICS for word in ("--topic", f"{topic}:{_PARTITIONS}")]
    return Child(_CLUSTER, "broker", "--directory", str(folder / _CLUSTER), *topics, folder=folder)


def _make_events(settings: DemoSettings) -> list[Event]:
    # the last event has the present time: all are produced in a burst, and later times would look like negative lag
    start_ms = round(time.time() * 1000) - settings.records * STEP_MS
    return list(make_stream(Random(settings.seed), count=settings.records, start_ms=start_ms))


def _count_events(events: Sequence[Event]) -> dict[str, int]:
    return {topic: sum(event.topic == topic for event in events) for topic in TOPICS}


def _all_landed(watch: GroupWatch, ledger: Ledger) -> bool:
    return all(watch.landed.get(partition, 0) >= end for partition, end in ledger.ends.items())


def _count_files(folder: Path) -> Files:
    sizes = [path.stat().st_size for path in folder.rglob(f"*.{folder.name}")]
    return Files(folder=folder, count=len(sizes), size_bytes=sum(sizes))
