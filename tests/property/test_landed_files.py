"""Chains under random crashes: whatever dies when, files hold each record once and what was acknowledged stays."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumerd.errors import OwnershipLost, RetriableSinkError
from consumerd.model import Gap, GapReason
from consumerd.sinks.base import Start
from consumerd.sinks.chain_writer import ChainWriter
from consumerd.sinks.jsonl import JsonlSink
from consumerd.sinks.options import ChainOptions
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.faulty_files import MemoryFileSystem, PowerCut, RecordingFileSystem
from tests.support.landing_reader import read_landing
from tests.support.record_batches import build_batch, record
from tests.support.sinks import PARTITION, Clock, SinkRig

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

    def __init__(self, source: random.Random, writer: ChainWriter) -> None:
        self._random = source
        self._writer = writer
        self.position = 0
        self.acknowledged = 0

    async def start(self) -> None:
        self.position = self._writer.resume_position or 0
        await self._writer.start(Start(position=self.position, reason="committed"))

    async def step(self) -> None:
        try:
            if self.position >= LOG_END or self._random.random() < 0.3:
                self.acknowledged = await self._writer.flush()
            else:
                batch = fetch(self._random, self.position)
                self.acknowledged = await self._writer.write(batch)
                self.position = batch.next_offset
        except RetriableSinkError as error:
            if error.resume_position is not None:
                self.position = error.resume_position
        assert self.position >= self.acknowledged

    @property
    def finished(self) -> bool:
        return self.acknowledged >= LOG_END


def options(path: Path, source: random.Random) -> ChainOptions:
    return ChainOptions(path=path, roll_bytes=source.choice([200, 1000, 100_000]), roll_ms=1000)


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
        rig = SinkRig(kind="jsonl", path=Path("/landing"), clock=Clock())
        sink = JsonlSink(rig.context(f"w{source.random()}"), options(Path("/landing"), source), files=files)
        try:
            member = Member(source, await sink.open(StubClaim(PARTITION)))
            await member.start()
            while not member.finished:
                await member.step()
                acknowledged = max(acknowledged, member.acknowledged)
        except PowerCut:
            files.restore()
        finally:
            await sink.close()

    def check(*, whole: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            files.export(Path(folder))
            assert assert_landed(Path(folder) / "landing", whole=whole) >= acknowledged

    for changes in cuts:
        asyncio.run(live(changes))
        check(whole=False)
    asyncio.run(live(None))
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
        rig = SinkRig(kind=kind, path=path, clock=Clock(), roll_bytes=source.choice([200, 100_000]))
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
