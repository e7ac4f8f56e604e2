# SPDX-License-Identifier: Apache-2.0
"""Chains under random crashes: whatever dies when, files hold each record once and what was acknowledged stays."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumerd.errors import IncarnationChanged, OwnershipLost, RetriableSinkError
from consumerd.model import Gap, GapReason, Incarnation
from consumerd.sinks.base import Start
from consumerd.sinks.chain_writer import ChainWriter
from consumerd.sinks.jsonl import JsonlOptions, JsonlSink
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.faulty_files import MemoryFileSystem, PowerCut, RecordingFileSystem
from tests.support.landing_reader import read_landing
from tests.support.record_batches import build_batch, record
from tests.support.sinks import PARTITION, SinkRig

pytestmark = pytest.mark.records

LOG_END = 60
_SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def fetch(source: random.Random, position: int) -> RecordBatch:
    """Return a batch of a log in which every seventh offset is a control record."""
    end = min(LOG_END, position + source.randint(1, 12))
    return build_batch(
        PARTITION,
        [record(offset, b"%d" % offset) for offset in range(position, end) if offset % 7],
        start=position,
        next_offset=end,
        gaps=[Gap(offset, offset + 1, GapReason.CONTROL) for offset in range(position, end) if not offset % 7],
    )


class Member:
    """A pipeline in miniature: it fetches, writes, flushes now and then, and remembers what was acknowledged."""

    def __init__(
        self,
        source: random.Random,
        writer: ChainWriter,
        fetch: Callable[[random.Random, int], RecordBatch] = fetch,
        truncation: int = 0,
    ) -> None:
        self._random = source
        self._writer = writer
        self._fetch = fetch
        self._truncation = truncation
        self.position = 0
        self.acknowledged = 0

    async def start(self, wish: Start | None = None) -> None:
        self.position = self._writer.resume_position or 0
        if wish is not None and (wish.request_id is None or wish.request_id != self._writer.request_id):
            self.position = wish.position
        plain = Start(position=self.position, reason="committed", truncation=self._truncation)
        await self._writer.start(wish or plain)

    async def step(self) -> None:
        try:
            if self.position >= LOG_END or self._random.random() < 0.3:
                self.acknowledged = await self._writer.flush()
            else:
                batch = self._fetch(self._random, self.position)
                self.acknowledged = await self._writer.write(batch)
                self.position = batch.next_offset
        except RetriableSinkError as error:
            if error.resume_position is not None:
                self.position = error.resume_position
        assert self.position >= self.acknowledged

    @property
    def finished(self) -> bool:
        return self.acknowledged >= LOG_END


def options(path: Path, source: random.Random) -> JsonlOptions:
    return JsonlOptions(path=path, roll_bytes=source.choice([200, 1000, 100_000]), roll_ms=1000)


def assert_landed(path: Path, *, whole: bool = True) -> int:
    """Return the chain's end, after checking that everything below it is there once."""
    landing = read_landing(path)
    assert landing.problems == []
    if not landing.partitions:
        return 0
    partition = landing.partitions["orders", "3"]
    assert [offset for offset in range(partition.end) if offset % 7] == partition.offsets
    if whole:
        assert partition.end == LOG_END
    return partition.end


class World:
    """A log that is truncated and made again, and the wishes that come of it and of an operator.

    A record's value says how often the log had been truncated below it.
    """

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._requests = itertools.count(1)
        self.czxid = 7
        self.cuts: list[int] = []
        self.wish: Start | None = None

    def happen(self, event: str, end: int) -> None:
        """Let something happen while nobody looks. A request gives way to the next one; a truncation that nobody has
        carried out yet is found again first.
        """
        position = self._random.randint(0, LOG_END - 1)
        if event == "remade":
            self.czxid += 1
            self.cuts = []
            self.wish = None
        elif event == "requested" and not (self.wish and self.wish.request_id is None):
            self.wish = Start(
                position=position,
                reason="request",
                new_chain=True,
                truncation=len(self.cuts),
                request_id=f"r{next(self._requests)}",
            )
        elif event == "truncated" and end and self.wish is None:
            self.cuts.append(min(position, end - 1))
            self.wish = Start(position=self.cuts[-1], reason="on_above", truncation=len(self.cuts))

    def fetch(self, source: random.Random, position: int) -> RecordBatch:
        end = min(LOG_END, position + source.randint(1, 12))
        return build_batch(
            PARTITION,
            [record(offset, self.value(offset, len(self.cuts))) for offset in range(position, end) if offset % 7],
            start=position,
            next_offset=end,
            gaps=[Gap(offset, offset + 1, GapReason.CONTROL) for offset in range(position, end) if not offset % 7],
        )

    def value(self, offset: int, truncations: int) -> bytes:
        return b"%d.%d" % (offset, sum(cut <= offset for cut in self.cuts[:truncations]))


def _run_until_power_cut(life: Coroutine[object, object, None]) -> None:
    """Run a life. What its threads did for nobody in particular ends with the machine too, and is no news."""

    def hear(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if not isinstance(context.get("exception"), PowerCut):
            loop.default_exception_handler(context)

    async def live() -> None:
        asyncio.get_running_loop().set_exception_handler(hear)
        await life

    asyncio.run(live())


@_SETTINGS
@given(
    st.integers(0, 2**32),
    st.lists(
        st.tuples(st.sampled_from(["quiet", "remade", "requested", "truncated"]), st.integers(1, 120)), max_size=8
    ),
)
def test_power_cuts_while_chains_are_sealed_and_begun_lose_and_repeat_nothing(seed: int, lives: list[tuple[str, int]]):
    """A wish is carried out by whoever comes after the one that died over it; in each chain every record is there once."""
    source = random.Random(seed)
    files, world = MemoryFileSystem(source), World(source)
    acknowledged = end = 0

    async def live(changes: int | None) -> None:
        nonlocal acknowledged
        files.changes_left = changes
        rig = SinkRig(kind="jsonl", path=Path("/landing"), clock=ManualClock())
        sink = JsonlSink(rig.context(f"w{source.random()}"), options(Path("/landing"), source), files=files)
        try:
            claim = StubClaim(PARTITION, incarnation=Incarnation(world.czxid))
            member = Member(source, await sink.open(claim), world.fetch, len(world.cuts))
            await member.start(world.wish)
            # here the first commit takes the wish away
            world.wish, acknowledged = None, member.position
            while not member.finished:
                await member.step()
                acknowledged = max(acknowledged, member.acknowledged)
        except PowerCut:
            pass
        finally:
            await sink.close()  # its threads die with the machine, too
            files.restore()

    def check() -> int:
        with tempfile.TemporaryDirectory() as folder:
            files.export(Path(folder))
            landing = read_landing(Path(folder) / "landing")
        assert landing.problems == []
        if not landing.partitions:
            return 0
        chains = landing.partitions["orders", "3"].chains
        for chain in chains:
            landed = [record for file in chain.files for record in file.records]
            assert [offset for offset in range(chain.origin, chain.end) if offset % 7] == [
                record.offset for record in landed
            ]
            if chain.incarnation[0] == world.czxid:
                truncations = chain.incarnation[1]
                assert all(record.value == world.value(record.offset, truncations) for record in landed)
        if chains[-1].incarnation[0] != world.czxid:
            return 0
        if world.wish is None:
            assert chains[-1].end >= acknowledged
        return chains[-1].end

    for event, changes in lives:
        world.happen(event, end)
        if event == "remade":
            acknowledged = 0
        _run_until_power_cut(live(changes))
        end = check()
    _run_until_power_cut(live(None))
    assert check() == LOG_END


@_SETTINGS
@given(st.integers(0, 2**32), st.lists(st.integers(1, 90), max_size=8))
def test_power_cuts_lose_and_repeat_nothing(seed: int, cuts: list[int]):
    """Members die with the machine, at any change of the disk; what had not been synced is there or not."""
    source = random.Random(seed)
    files = MemoryFileSystem(source)
    acknowledged = 0

    async def live(changes: int | None) -> None:
        nonlocal acknowledged
        files.changes_left = changes
        rig = SinkRig(kind="jsonl", path=Path("/landing"), clock=ManualClock())
        sink = JsonlSink(rig.context(f"w{source.random()}"), options(Path("/landing"), source), files=files)
        try:
            member = Member(source, await sink.open(StubClaim(PARTITION)))
            await member.start()
            while not member.finished:
                await member.step()
                acknowledged = max(acknowledged, member.acknowledged)
        except PowerCut:
            pass
        finally:
            await sink.close()  # its threads die with the machine, too
            files.restore()

    def check(*, whole: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            files.export(Path(folder))
            assert assert_landed(Path(folder) / "landing", whole=whole) >= acknowledged

    for changes in cuts:
        _run_until_power_cut(live(changes))
        check(whole=False)
    _run_until_power_cut(live(None))
    check(whole=True)


@_SETTINGS
@given(st.integers(0, 2**32), st.sampled_from(["jsonl", "parquet"]))
def test_members_that_both_believe_to_own_a_partition_never_overlap(seed: int, kind: str):
    """Leases fail when clocks or processes stall; the names of the files do not."""
    source = random.Random(seed)

    def fail_sometimes(operation: str, name: str) -> None:
        if operation != "unlink" and source.random() < 0.02:
            raise OSError(5, "I/O error")

    async def scenario(path: Path) -> None:
        rig = SinkRig(kind=kind, path=path, clock=ManualClock(), roll_bytes=source.choice([200, 100_000]))
        members: list[Member] = []
        finished = False
        while not finished:
            if not members or (len(members) < 3 and source.random() < 0.1):
                with contextlib.suppress(RetriableSinkError):
                    claim = StubClaim(PARTITION)
                    member = Member(source, await rig.member(RecordingFileSystem(fail_sometimes)).open(claim))
                    await member.start()
                    members.append(member)
            elif source.random() < 0.03:
                members.remove(source.choice(members))
            else:
                member = source.choice(members)
                with contextlib.suppress(OwnershipLost):
                    await member.step()
                finished = member.finished
        await rig.close()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "landing"
        asyncio.run(scenario(path))
        assert_landed(path)


@settings(_SETTINGS, max_examples=12)
@given(st.integers(0, 2**32), st.sampled_from(["jsonl", "parquet"]))
def test_chains_that_several_members_seal_and_begin_stay_chains(seed: int, kind: str):
    """All believe to own the partition, each with wishes of its own; late writers find every chain but the last one closed."""
    source = random.Random(seed)
    world = World(source)

    def fail_sometimes(operation: str, name: str) -> None:
        if operation != "unlink" and source.random() < 0.02:
            raise OSError(5, "I/O error")

    async def join(rig: SinkRig) -> Member | None:
        end = rig.landing().partitions["orders", "3"].end if rig.landing().partitions else 0
        world.happen(source.choice(["quiet", "quiet", "remade", "requested", "truncated"]), end)
        try:
            claim = StubClaim(PARTITION, incarnation=Incarnation(world.czxid))
            writer = await rig.member(RecordingFileSystem(fail_sometimes)).open(claim)
            member = Member(source, writer, truncation=len(world.cuts))
            await member.start(world.wish)
        except (RetriableSinkError, IncarnationChanged):
            return None
        world.wish = None
        return member

    async def scenario(path: Path) -> None:
        rig = SinkRig(kind=kind, path=path, clock=ManualClock(), roll_bytes=source.choice([200, 100_000]))
        members: list[Member] = []
        joined = 0
        while joined < 6 or not any(member.finished for member in members):
            if not members or (joined < 10 and len(members) < 4 and source.random() < 0.2):
                joined += 1
                if member := await join(rig):
                    members.append(member)
                continue
            member = source.choice(members)
            try:
                await member.step()
            except (OwnershipLost, IncarnationChanged):
                members.remove(member)
            if members and source.random() < 0.02:
                members.remove(source.choice(members))
        await rig.close()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "landing"
        asyncio.run(scenario(path))
        landing = read_landing(path)
        assert landing.problems == []
        for chain in landing.partitions["orders", "3"].chains:
            landed = [record.offset for file in chain.files for record in file.records]
            assert landed == [offset for offset in range(chain.origin, chain.end) if offset % 7]
