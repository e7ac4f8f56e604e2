# SPDX-License-Identifier: Apache-2.0
"""The demo itself: a cluster, a stream, a group that is disturbed, and the audit.

On Kafka 0.7, a broker is stopped for a while, too: its partitions go away and come back with it. All processes are
children that do not outlive it. A display shows events; the outcome is returned. No code reads the landed files before
the audit.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.aio.tasks import alongside, find_cause
from consumerd.demo.audit import Landed, TopicAudit, read_json_lines, read_parquet
from consumerd.demo.brokers import BrokerProcess, DemoBrokers, make_brokers, remove_logs
from consumerd.demo.children import Child
from consumerd.demo.display import Display
from consumerd.demo.group_watch import GroupWatch
from consumerd.demo.lake import LAKE, Lake, describe_line, parse_lake
from consumerd.demo.members import GROUP, SESSION_TIMEOUT_MS, DemoMember, ObservedRebalance
from consumerd.demo.production import Production
from consumerd.demo.stream import CLICKS, ORDERS, STEP_MS, Event, make_stream
from consumerd.model import Generation, TopicPartition
from consumerd.telemetry.wording import counted

LEDGER_NAME: Final = "ledger.tsv"
_STEP_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 25.0
_JOB_TIMEOUT_S: Final = 120.0
# shares of the stream: a disturbance begins when the first is acknowledged, and at most the second is sent until
# it is over. So records flow before, during and after it, on slow and fast machines
_JOIN: Final = (0.25, 0.6)
_KILL: Final = (0.5, 0.85)
_RESTART: Final = (0.9, 0.97)
"""Shares of the stream around the restart of a broker.

Up to the first, all is acknowledged before the broker is stopped: so no outcome is in doubt, and no record is sent
twice. When the second is acknowledged less :data:`_LEEWAY`, the broker is started again.
"""
_LEEWAY: Final = 0.03
"""Share of the records that may wait for the stopped broker, since a producer has not heard yet that it is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings of the demo.

    ``folder`` is for logs, data and landed files. ``records`` is the number of events to produce, ``seconds`` the
    approximate duration, ``seed`` that of the random events, ``generation`` that of the brokers.
    """

    folder: Path
    records: int
    seconds: float
    seed: int
    generation: Generation = Generation.MODERN
    is_secured: bool = False
    """True for brokers with SASL and ACLs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Folder, number and bytes of the landed files of one topic."""

    folder: Path
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """Outcome of a demo: audits, rebalances, files and tables.

    ``began`` is in seconds since the Unix epoch; ``seconds`` is the duration. ``ledger`` is the path of the ledger.
    """

    audits: Sequence[TopicAudit]
    rebalances: Sequence[ObservedRebalance]
    files: Sequence[Files]
    lake: Lake
    ledger: Path
    began: float
    seconds: float
    refusals: Sequence[str] = ()
    """What a secured broker has refused; empty without SASL."""

    @property
    def sound(self) -> bool:
        """True if the audits found nothing, and the tables hold the landed records."""
        return all(one.sound for one in self.audits) and not self.lake.findings and not self.disagreements

    @property
    def disagreements(self) -> Sequence[str]:
        """Lines about differences between the tables and the landed records; empty without any."""
        return self.lake.disagreements({one.topic: one.landed for one in self.audits})


class Demo:
    """One run of the demo. Its folder must exist."""

    def __init__(self, settings: DemoSettings, display: Display, now: Callable[[], float]) -> None:
        self._settings = settings
        self._display = display
        self._now = now
        self._brokers = make_brokers(settings.generation, settings.folder, is_secured=settings.is_secured)
        self._ledger = self._brokers.ledger
        self._totals: dict[str, int] = {}
        self._members: list[DemoMember] = []
        self._refusals: Sequence[str] = ()
        self._patience_s = _STEP_TIMEOUT_S + 2 * settings.seconds
        self._partitions = self._brokers.partitions

    async def run(self) -> DemoOutcome:
        """Run the whole demo; return the outcome.

        Raises ConfigError, ChildFailed, AuditFailed, and a producer's errors. No process is left in any case. The
        caller keeps or removes the folder.
        """
        began, began_at = time.time(), self._now()
        try:
            await self._fill()
        except BaseExceptionGroup as failures:
            raise find_cause(failures) from None
        remove_logs(self._settings.folder)
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
            refusals=self._refusals,
        )

    async def _fill(self) -> None:
        """Produce, disturb and land; return when every process has ended in order."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            brokers = await stack.enter_async_context(self._brokers)
            events = await asyncio.to_thread(make_events, settings, brokers)
            self._totals = Counter(event.topic for event in events)
            self._display.say(brokers.describe())
            watch = GroupWatch(brokers.check, settings.folder, lambda: self._show(watch))
            async with brokers.open_producers() as producers:
                production = Production(
                    events, producers, self._ledger, per_second=settings.records / settings.seconds, now=self._now
                )
                async with alongside(watch.run(), name="watch the group"), asyncio.TaskGroup() as tasks:
                    producing = tasks.create_task(production.run(), name="produce")
                    self._display.say(
                        "four services produce: "
                        + ", ".join(f"{service.name} with {service.codec}" for service in brokers.services)
                    )
                    await self._disturb(stack, watch, production)
                    await asyncio.wait([producing])
                    self._display.say(f"{len(self._ledger):,} records are acknowledged")
                    ends = await brokers.read_ends()
                    self._refusals = await brokers.try_out()
                    await watch.wait(
                        lambda: all(watch.landed.get(one, 0) >= end for one, end in ends.items()),
                        "everything landed",
                        self._patience_s,
                    )
                    self._display.say("all of them have landed; the group ends in order")
                    living = [member for member in self._members if member.running]
                    await map_bounded(living, lambda member: member.stop(_STOP_TIMEOUT_S))
            await brokers.stop(_STOP_TIMEOUT_S)
            self._show(watch)

    async def _disturb(self, stack: AsyncExitStack, watch: GroupWatch, production: Production) -> None:
        """Start two members and then a third, kill one, and restart a broker.

        The broker is one that alone has its partitions, if there is one.
        """
        production.allow(_JOIN[1])
        first, second = [await self._start(stack, watch) for _ in range(2)]
        await watch.wait(lambda: first.find_url() is not None, f"{first.name} serves its status page", _STEP_TIMEOUT_S)
        self._display.say(f"status page of {first.name}, while this runs: {first.find_url()}/")
        await self._wait_shared(watch, [first, second])
        self._display.say(f"{first.name} and {second.name} share {len(self._partitions)} partitions of group {GROUP}")

        await self._wait_produced(watch, _JOIN[0])
        before = {member: watch.owned_by(member) for member in (first, second)}
        third = await self._start(stack, watch)
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
        if (broker := self._brokers.restless) is not None:
            await self._restart(broker, watch, production, [first, third])
        production.allow(1)

    async def _restart(
        self, broker: BrokerProcess, watch: GroupWatch, production: Production, members: Sequence[DemoMember]
    ) -> None:
        """Stop a broker, produce while it is away, and start it again."""
        production.allow(_RESTART[0])
        await self._wait_produced(watch, _RESTART[0])
        await broker.stop(_STOP_TIMEOUT_S)
        others = [partition for partition in self._partitions if partition not in broker.partitions]
        await self._wait_shared(watch, members, others)
        self._display.say(
            f"{broker.name} was stopped, and its {counted(len(broker.partitions), 'partition')} are away with it: the "
            f"group has {len(others)}"
        )

        production.allow(_RESTART[1])
        await self._wait_produced(watch, _RESTART[1] - _LEEWAY)
        await broker.start(self._brokers.zookeeper)
        await self._wait_shared(watch, members)
        self._display.say(f"{broker.name} is back with its partitions, and the group goes on where it was in them")

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

    async def _start(self, stack: AsyncExitStack, watch: GroupWatch) -> DemoMember:
        name, zookeeper = f"worker-{len(self._members) + 1}", self._brokers.zookeeper
        member = DemoMember(name, zookeeper=zookeeper, folder=self._settings.folder, sasl=self._brokers.sasl_settings)
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

    async def _wait_shared(
        self, watch: GroupWatch, members: Sequence[DemoMember], partitions: Sequence[TopicPartition] | None = None
    ) -> None:
        """Wait until the members share the partitions: all, or those given."""
        names = ", ".join(member.name for member in members)
        shared = self._partitions if partitions is None else partitions
        await watch.wait(lambda: watch.share(members, shared), f"{names} own every partition once", _STEP_TIMEOUT_S)

    def _show(self, watch: GroupWatch) -> None:
        progress = {"produced": (len(self._ledger), self._settings.records)}
        for topic, files in ((ORDERS, "Parquet"), (CLICKS, "JSON lines")):
            progress[f"{topic} in {files}{self._brokers.unit}"] = self._brokers.measure(
                topic, self._totals[topic], watch
            )
        self._display.show(
            {name: done for name, (done, _) in progress.items()}, {name: total for name, (_, total) in progress.items()}
        )

    def _audit(self) -> Sequence[TopicAudit]:
        folder = self._settings.folder
        self._ledger.write(folder / LEDGER_NAME)
        landed: Iterator[Landed] = itertools.chain(read_parquet(folder / "parquet"), read_json_lines(folder / "jsonl"))
        return self._brokers.audit(landed)


def make_events(settings: DemoSettings, brokers: DemoBrokers) -> list[Event]:
    """Return the events that a demo produces."""
    # the last event has the present time: all are produced in a burst, and later times would look like negative lag
    start_ms = round(time.time() * 1000) - settings.records * STEP_MS
    stream = make_stream(
        Random(settings.seed),
        count=settings.records,
        start_ms=start_ms,
        services=brokers.services,
        tombstones=brokers.has_tombstones,
    )
    return list(stream)


def _count_files(folder: Path) -> Files:
    sizes = [path.stat().st_size for path in folder.rglob(f"*.{folder.name}")]
    return Files(folder=folder, count=len(sizes), size_bytes=sum(sizes))
