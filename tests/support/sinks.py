# SPDX-License-Identifier: Apache-2.0
"""Members that land files below one path, for tests of sinks: each with a context, a clock and a sink of its own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from consumerd.errors import CoordinationError
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.line_compression import find_line_compression
from consumerd.model import Incarnation, TopicPartition
from consumerd.sinks.base import Sink, SinkContext, Start
from consumerd.sinks.chain_sink import ChainSink
from consumerd.sinks.chain_writer import ChainWriter
from consumerd.sinks.jsonl import JsonlOptions, JsonlSink
from consumerd.sinks.options import ChainOptions
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.landing_reader import Landing, read_landing
from tests.support.record_batches import build_batch, record

PARTITION = TopicPartition.modern("orders", 3)


class MemoryRoots:
    """The roots of a group, in memory. ``failure``, when set, is raised by the next call; ``before_answer`` makes it
    come after the call has taken effect.
    """

    def __init__(self) -> None:
        self.recorded: dict[tuple[str, str | None], str] = {}
        self.ends: dict[tuple[str, TopicPartition], bytes] = {}
        self.failure: CoordinationError | None = None
        self.before_answer = False

    async def find(self, sink: str, *, consumer_id: str | None) -> str | None:
        """See RootRegistry."""
        if not self.before_answer:
            self._fail()
        return self.recorded.get((sink, consumer_id))

    async def record(self, sink: str, root: str, *, consumer_id: str | None) -> str:
        """See RootRegistry."""
        if not self.before_answer:
            self._fail()
        recorded = self.recorded.setdefault((sink, consumer_id), root)
        self._fail()
        return recorded

    async def find_landed_end(self, root: str, partition: TopicPartition) -> bytes | None:
        """See RootRegistry."""
        self._fail()
        return self.ends.get((root, partition))

    async def note_landed_end(self, root: str, partition: TopicPartition, noted: bytes) -> None:
        """See RootRegistry."""
        self._fail()
        self.ends[root, partition] = noted

    def describe(self, sink: str, *, consumer_id: str | None) -> str:
        """See RootRegistry."""
        return f"/roots/{sink}/{consumer_id}"

    def _fail(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


class PublishedFiles(Hooks):
    """Notes what was published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, int, int]] = []
        self.names: list[str] = []
        self.open_files: list[int] = []

    def file_published(self, sink: str, *, name: str, records: int, size: int) -> None:
        """See Hooks."""
        self.published.append((sink, records, size))
        self.names.append(name)

    def open_files_changed(self, sink: str, count: int) -> None:
        """See Hooks."""
        self.open_files.append(count)


@dataclass(slots=True, kw_only=True)
class SinkRig:
    """Makes members of one group that share ``path``; ``kind`` is the extension of what they land."""

    kind: str
    path: Path
    clock: ManualClock
    roll_bytes: int = 1 << 20
    roll_ms: int = 1000
    buffer_bytes: int = 64 << 20
    group: str = "lake"
    cluster: str = "2-1700000000000"
    shared: bool = True
    consumer_id: str | None = None
    roots: MemoryRoots = field(default_factory=MemoryRoots)
    charged: int = 0
    hooks: PublishedFiles = field(default_factory=PublishedFiles)
    _sinks: list[Sink] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def context(self, name: str | None = None) -> SinkContext:
        """Return the context of a member."""
        return SinkContext(
            sink_name="lake",
            group=self.group,
            cluster_id=self.cluster,
            writer_id=name or f"member{next(self._numbers)}",
            now=self.clock,
            charge=self._charge,
            buffer_bytes=self.buffer_bytes,
            hooks=self.hooks,
            consumer_id=self.consumer_id,
            roots=self.roots,
        )

    def member(self, files: FileSystem | None = None, name: str | None = None) -> ChainSink:
        """Return a new member's sink."""
        sink: ChainSink
        options = ChainOptions(path=self.path, roll_bytes=self.roll_bytes, roll_ms=self.roll_ms, shared=self.shared)
        compression = find_line_compression(self.kind)
        if compression is not None:
            lines = JsonlOptions(**options.model_dump(), compression=compression)
            sink = JsonlSink(self.context(name), lines, files=files)
        else:
            from consumerd.sinks.parquet import ParquetOptions, ParquetSink

            sink = ParquetSink(self.context(name), ParquetOptions(**options.model_dump()), files=files)
        self._sinks.append(sink)
        return sink

    async def writer(
        self, position: int | None = None, *, files: FileSystem | None = None, claim: StubClaim | None = None
    ) -> ChainWriter:
        """Open the partition as a new member, and start at ``position`` or where the chain ends, or at 0."""
        writer = await self.member(files).open(claim or self.claim())
        begin = position if position is not None else writer.resume_position or 0
        await writer.start(Start(position=begin, reason="committed"))
        return writer

    def claim(self, czxid: int = 7) -> StubClaim:
        """Return a claim of the partition."""
        return StubClaim(PARTITION, incarnation=Incarnation(czxid))

    def landing(self) -> Landing:
        """Read what has landed."""
        return read_landing(self.path)

    def offsets(self) -> list[int]:
        """Read the offsets that have landed of the partition, and make sure that nothing is wrong."""
        landing = self.landing()
        assert landing.problems == []
        found = landing.partitions.get((PARTITION.topic, str(PARTITION.partition)))
        return [] if found is None else found.offsets

    async def close(self) -> None:
        """Close every member."""
        for sink in self._sinks:
            await sink.close()

    def _charge(self, difference: int) -> None:
        self.charged += difference


def run_of(start: int, end: int, size: int = 8) -> RecordBatch:
    """Return a batch with the records ``[start, end)``, whose values tell them apart."""
    return build_batch(
        PARTITION, [record(offset, b"%*d" % (size, offset), timestamp=1000 + offset) for offset in range(start, end)]
    )
