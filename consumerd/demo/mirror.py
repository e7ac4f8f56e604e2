# SPDX-License-Identifier: Apache-2.0
"""The demo of a mirror: a cluster is copied, and a group moves.

Producers write to the old cluster all the time. Two mirrors copy it, one of which is killed and replaced. A group
reads the old cluster, and is stopped in the middle. ``consumerd migrate cutover`` moves it, and it reads the rest from
the new cluster.

In the end, what the group has landed from both clusters is compared with the producers' ledger: partition by partition,
each record once and in order. So it went on with the very record that it would have read next.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumerd.aio.parallel import map_bounded
from consumerd.aio.tasks import alongside, find_cause
from consumerd.demo.audit import Landed, read_json_lines
from consumerd.demo.brokers import ModernBrokers, make_target, remove_logs
from consumerd.demo.children import Child
from consumerd.demo.display import Display
from consumerd.demo.group_watch import GroupWatch
from consumerd.demo.ledger import RecordPlace
from consumerd.demo.members import SESSION_TIMEOUT_MS, DemoDaemon
from consumerd.demo.production import Production
from consumerd.demo.show import LEDGER_NAME, DemoSettings, make_events
from consumerd.demo.stream import TOPICS
from consumerd.model import TopicPartition
from consumerd.telemetry.wording import counted

MIRROR_GROUP: Final = "demo-mirror"
SHOP_GROUP: Final = "shop"
OLD: Final = "from-old"
NEW: Final = "from-new"
"""Folders of what the group has read from each cluster."""

_STEP_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 25.0
_ROLL_MS: Final = 1000
_FLUSH_MS: Final = 500
# shares of the stream: a step begins when the first is acknowledged, and at most the second is sent until it is over
_KILL: Final = (0.3, 0.5)
_STOP: Final = (0.6, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOutcome:
    """Outcome of the demo.

    Attributes:
        produced: Number of records that the old cluster has acknowledged.
        old: Number of records that the group has landed from the old cluster.
        new: Number of records that it has landed from the new one.
        findings: Lines about records that are missing, doubled, changed or out of order; empty without any.
        folder: Folder with files and logs.
    """

    produced: int
    old: int
    new: int
    findings: Sequence[str]
    folder: Path
    seconds: float

    @property
    def sound(self) -> bool:
        """True if the group has landed each record once and in order."""
        return not self.findings and self.old + self.new == self.produced


class MirrorDemo:
    """One run of the demo of a mirror. Its folder must exist."""

    def __init__(self, settings: DemoSettings, display: Display, now: Callable[[], float]) -> None:
        self._settings = settings
        self._display = display
        self._now = now
        self._folder = settings.folder
        self._old = ModernBrokers(settings.folder)
        self._new = make_target("new-cluster", settings.folder)
        self._mirrors: list[DemoDaemon] = []
        self._patience_s = _STEP_TIMEOUT_S + 2 * settings.seconds

    async def run(self) -> MirrorOutcome:
        """Run the demo; return its outcome. Raises ChildFailed, and errors of the producers."""
        began = self._now()
        try:
            await self._run()
        except BaseExceptionGroup as failures:
            raise find_cause(failures) from None
        outcome = await asyncio.to_thread(self._audit, began)
        remove_logs(self._folder)
        return outcome

    async def _run(self) -> None:
        settings, ledger = self._settings, self._old.ledger
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._old)
            await stack.enter_async_context(self._new)
            await self._new.start()
            self._display.say(f"the old cluster: {self._old.describe()}")
            self._display.say(f"the new cluster: a broker on {self._new.bootstrap}, without ZooKeeper, and empty")
            events = await asyncio.to_thread(make_events, settings, self._old)
            mirrored = GroupWatch(self._check, self._folder, lambda: self._show(mirrored))
            shop = GroupWatch(self._check, self._folder, lambda: None)
            async with self._old.open_producers() as producers:
                production = Production(
                    events, producers, ledger, per_second=settings.records / settings.seconds, now=self._now
                )
                async with (
                    alongside(mirrored.run(), name="watch the mirrors"),
                    alongside(shop.run(), name="watch the group"),
                    asyncio.TaskGroup() as tasks,
                ):
                    producing = tasks.create_task(production.run(), name="produce")
                    await self._disturb(stack, mirrored, shop, production)
                    await asyncio.wait([producing])
                    self._display.say(f"{len(ledger):,} records are acknowledged; the producers end")
                    await self._wait_mirrored(mirrored)
                    await self._cut_over(stack)
                    await self._go_on(stack, shop)
                    running = [one for one in self._mirrors if one.running]
                    await map_bounded(running, lambda one: one.stop(_STOP_TIMEOUT_S))
            await self._new.stop(_STOP_TIMEOUT_S)
            await self._old.stop(_STOP_TIMEOUT_S)

    # -- steps

    async def _disturb(
        self, stack: AsyncExitStack, mirrored: GroupWatch, shop: GroupWatch, production: Production
    ) -> None:
        """Start mirrors and the group, kill a mirror, and stop the group in the middle."""
        production.allow(_KILL[1])
        first, second = [await self._start_mirror(stack, mirrored) for _ in range(2)]
        reader = await self._start(stack, shop, self._make_shop("shop-old", OLD))
        await mirrored.wait(
            lambda: mirrored.share([first, second], self._old.partitions), "both mirrors share", _STEP_TIMEOUT_S
        )
        self._display.say(f"{first.name} and {second.name} copy {counted(len(self._old.partitions), 'partition')}")
        self._display.say(f"status page of {first.name}, while this runs: {first.find_url()}/")

        await self._wait_produced(mirrored, _KILL[0])
        await second.kill()
        third = await self._start_mirror(stack, mirrored)
        await mirrored.wait(
            lambda: mirrored.share([first, third], self._old.partitions), "the mirrors share again", _STEP_TIMEOUT_S
        )
        self._display.say(f"{second.name} was killed (SIGKILL); {third.name} has taken over")

        production.allow(_STOP[1])
        await self._wait_produced(mirrored, _STOP[0])
        await shop.wait(lambda: sum(shop.landed.values()) > 0, f"group {SHOP_GROUP} has read records", self._patience_s)
        await reader.stop(_STOP_TIMEOUT_S)
        self._display.say(f"group {SHOP_GROUP} has stopped reading the old cluster; the producers go on")
        production.allow(1)

    async def _wait_mirrored(self, mirrored: GroupWatch) -> None:
        ends = self._old.ledger.ends
        await mirrored.wait(
            lambda: all(mirrored.landed.get(one, 0) >= end for one, end in ends.items()),
            "everything is mirrored",
            self._patience_s,
        )
        self._display.say("all of them are in the new cluster")

    async def _cut_over(self, stack: AsyncExitStack) -> None:
        """Move the group with ``consumerd migrate cutover``. Raises ChildFailed."""
        options = ("--zookeeper", self._old.zookeeper, "--target", self._new.bootstrap, "--mirror-group", MIRROR_GROUP)
        child = Child("cutover", "migrate", "cutover", *options, "--group", SHOP_GROUP, folder=self._folder)
        await stack.enter_async_context(child)
        self._display.say(f"consumerd migrate cutover --group {SHOP_GROUP}")
        while (line := await child.find_line(_STEP_TIMEOUT_S)) is not None:
            self._display.say(f"  {line}")
        if child.process.returncode:
            raise child.fail("did not move the group")
        await child.kill()

    async def _go_on(self, stack: AsyncExitStack, shop: GroupWatch) -> None:
        """Start the group in the new cluster, and stop it when it has read everything."""
        member = await self._start(stack, shop, self._make_shop("shop-new", NEW))
        await shop.wait(
            lambda: shop.share([member], self._old.partitions) and shop.find_behind(member) == 0,
            f"group {SHOP_GROUP} has read the rest",
            self._patience_s,
        )
        await member.stop(_STOP_TIMEOUT_S)
        self._display.say(f"group {SHOP_GROUP} has read the rest from the new cluster")

    # -- processes

    async def _start_mirror(self, stack: AsyncExitStack, watch: GroupWatch) -> DemoDaemon:
        name = f"mirror-{len(self._mirrors) + 1}"
        mirror = DemoDaemon(name, "mirror", self._mirror_settings(), folder=self._folder)
        self._mirrors.append(mirror)
        return await self._start(stack, watch, mirror)

    def _make_shop(self, name: str, folder: str) -> DemoDaemon:
        return DemoDaemon(name, "run", self._shop_settings(folder), folder=self._folder)

    async def _start(self, stack: AsyncExitStack, watch: GroupWatch, daemon: DemoDaemon) -> DemoDaemon:
        daemon.write_settings()
        await stack.enter_async_context(daemon)
        watch.add(daemon)
        return daemon

    def _mirror_settings(self) -> dict[str, Any]:
        return {
            "cluster": {"zookeeper": self._old.zookeeper},
            "group": {"id": MIRROR_GROUP, "session_timeout_ms": SESSION_TIMEOUT_MS},
            "subscriptions": [{"topics": list(TOPICS), "sink": "new"}],
            "sinks": {"new": {"type": "kafka", "bootstrap": self._new.bootstrap, "flush_ms": _FLUSH_MS}},
            **_COMMON,
        }

    def _shop_settings(self, folder: str) -> dict[str, Any]:
        place: dict[str, Any] = {"cluster": {"zookeeper": self._old.zookeeper}, "group": {"id": SHOP_GROUP}}
        if folder == NEW:
            place = {
                "cluster": {"bootstrap": self._new.bootstrap},
                "group": {"id": SHOP_GROUP, "membership": "kafka"},
                "offsets": {"storage": "kafka", "dual_commit": False},
            }
        return {
            **_COMMON,
            **place,
            "subscriptions": [{"topics": list(TOPICS), "sink": "files"}],
            "sinks": {"files": {"type": "jsonl", "path": str(self._folder / folder), "roll_ms": _ROLL_MS}},
            "fetch": {"max_wait_ms": 250, "isolation": "read_committed"},
        }

    def _check(self) -> None:
        self._old.check()
        self._new.check()

    # -- progress and audit

    async def _wait_produced(self, watch: GroupWatch, share: float) -> None:
        wanted, ledger = share * self._settings.records, self._old.ledger
        await watch.wait(lambda: len(ledger) >= wanted, f"{wanted:.0f} records are acknowledged", self._patience_s)

    def _show(self, mirrored: GroupWatch) -> None:
        ledger = self._old.ledger
        done = {"produced": len(ledger), "mirrored": sum(mirrored.landed.values())}
        self._display.show(done, dict.fromkeys(done, self._settings.records))

    def _audit(self, began: float) -> MirrorOutcome:
        ledger = self._old.ledger
        ledger.write(self._folder / LEDGER_NAME)
        old, new = (list(read_json_lines(self._folder / name)) for name in (OLD, NEW))
        return MirrorOutcome(
            produced=len(ledger),
            old=len(old),
            new=len(new),
            findings=find_faults(ledger.digests, old, new),
            folder=self._folder,
            seconds=self._now() - began,
        )


_COMMON: Final[Mapping[str, Any]] = {
    "offsets": {"commit_interval_ms": 1000},
    "fetch": {"max_wait_ms": 250},
    "http": {"listen": "127.0.0.1:0"},
    "log": {"format": "json"},
}


def find_faults(ledger: Mapping[RecordPlace, bytes], old: Iterable[Landed], new: Iterable[Landed]) -> list[str]:
    """Return lines about partitions whose landed records differ from the ledger.

    Args:
        ledger: Digest of each record that the old cluster has acknowledged.
        old: Records that the group has landed from the old cluster.
        new: Records that it has landed from the new one. They have other offsets, and come after those of the old one.
    """
    wanted = _list_digests(ledger.items())
    found = defaultdict(list, _list_digests((one.place, one.digest) for one in old))
    for partition, digests in _list_digests((one.place, one.digest) for one in new).items():
        found[partition] = [*found[partition], *digests]
    lines = []
    for partition in sorted({*wanted, *found}):
        expected, actual = wanted.get(partition, []), found[partition]
        if expected != actual:
            pairs = itertools.zip_longest(expected, actual)
            number = next(number for number, (one, other) in enumerate(pairs) if one != other)
            lines.append(
                f"{partition}: {counted(len(expected), 'record')} produced, {len(actual)} landed; the first that "
                f"differs is number {number}"
            )
    return lines


def _list_digests(records: Iterable[tuple[RecordPlace, bytes]]) -> dict[TopicPartition, list[bytes]]:
    """Return the digests of each partition in the order of offsets."""
    grouped: defaultdict[TopicPartition, list[tuple[int, bytes]]] = defaultdict(list)
    for place, digest in records:
        assert place.offset is not None, "brokers of 0.8 and later tell offsets"
        grouped[TopicPartition(place.topic, place.partition)].append((place.offset, digest))
    return {partition: [digest for _, digest in sorted(found)] for partition, found in grouped.items()}
