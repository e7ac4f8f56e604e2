# SPDX-License-Identifier: Apache-2.0
"""A landing zone with real files: landed by consumerd's own sinks, chain by chain, and then damaged at will.

    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 1000, files=4)
    zone.land("orders", 0, 1000, 1500, gaps=[Gap(1200, 1210, GapReason.COMPACTION)])
    zone.land("orders", 0, 1600, 1700)                                    # [1500, 1600) is a gap "consumed elsewhere"
    zone.land("orders", 0, 500, 800, request="again")                     # an operator's request: chain 2, overlaps chain 1
    zone.land("orders", 0, 700, 900, truncated=True)                      # chain 3, of the next incarnation, <czxid>.1
    zone.land("orders", 0, 0, 50, czxid=9)                                # the topic made again
    other = zone.replica("b"); other.land("orders", 0, 900, 1100)         # a second root of the same zone (shared: false)
    assert rows == zone.expected                                          # identity -> record, each once, all roots together

Two records of one identity are the same record, as in a broker's log, whichever chain or root they land in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from consumerd.landing.chain import META_FOLDER, ChainRecord, FileMetadata, partition_folder
from consumerd.landing.line_compression import find_line_compression, open_lines
from consumerd.landing.metadata import FOOTER_KEY
from consumerd.model import Gap, Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.chain_sink import ChainSink
from consumerd.sinks.jsonl import JsonlOptions, JsonlSink
from consumerd.sinks.options import ChainOptions
from consumerd.sinks.parquet import ParquetOptions, ParquetSink
from consumerd.wire.records import Record
from tests.support.claims import StubClaim
from tests.support.record_batches import build_batch, record

Kind = Literal["parquet", "jsonl", "jsonl.gz", "jsonl.zst"]

FIRST_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z: the timestamp of the record at offset 0, unless a test says otherwise."""


class Identity(NamedTuple):
    """What makes two rows the same record."""

    topic: str
    incarnation: str
    partition: str
    offset: int
    index: int  # type: ignore[assignment] # of a tuple of names nobody asks for a place


RecordMaker = Callable[[TopicPartition, Incarnation, int], Record]
"""``(partition, incarnation, offset)`` to the record that the log has there."""


def make_record(partition: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    """Return a record that says where it is from: one second after the one before, ten keys, each 50th value a tombstone."""
    value = None if offset % 50 == 49 else f"{partition}@{incarnation}:{offset}".encode()
    return record(offset, value, key=b"k%d" % (offset % 10), timestamp=FIRST_MS + offset * 1000)


@dataclass(slots=True)
class LandingZone:
    """One root, and the ledger that it shares with its replicas: ``expected`` holds each landed identity's record."""

    path: Path
    kind: Kind = "parquet"
    group: str = "lake"
    cluster: str = "2-1700000000000"
    make: RecordMaker = make_record
    expected: dict[Identity, Record] = field(default_factory=dict)
    truncations: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    """How often each log has lost its end, by partition and ``czxid``: what the group knows."""

    def replica(self, name: str) -> LandingZone:
        """Return another root beside this one, of the same cluster and group, that fills the same ledger."""
        beside = self.path.with_name(f"{self.path.name}-{name}")
        return LandingZone(beside, self.kind, self.group, self.cluster, self.make, self.expected, self.truncations)

    def land(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        files: int = 1,
        gaps: Sequence[Gap] = (),
        czxid: int = 7,
        request: str | None = None,
        truncated: bool = False,
        reason: str = "committed",
    ) -> list[Path]:
        """Land the records ``[start, end)``, those in ``gaps`` left out, in that many files; return the files published.

        Goes on in the newest chain, with what lies between its end and ``start`` as a gap (of ``reason``, where that is
        a GapReason, else "consumed elsewhere"). A ``request``, a truncation (``truncated``) or another ``czxid`` begins
        the next chain. For tests without a running loop.
        """
        place = TopicPartition.modern(topic, partition)
        known = max(self.truncations.get((place, czxid), 0), self._newest_incarnation(place, czxid).truncation)
        self.truncations[place, czxid] = known + truncated
        begin = Start(
            position=start,
            reason=reason if not truncated else "on_above" if request is None else "request",
            new_chain=request is not None,
            truncation=known + truncated,
            request_id=request,
        )
        before = set(self.files(topic, partition))
        asyncio.run(self._land(place, begin, _cut(start, end, files), gaps, czxid))
        return [path for path in self.files(topic, partition) if path not in before]

    async def _land(
        self, place: TopicPartition, begin: Start, parts: Sequence[range], gaps: Sequence[Gap], czxid: int
    ) -> None:
        sink = self._sink()
        try:
            writer = await sink.open(StubClaim(place, incarnation=Incarnation(czxid)))
            await writer.start(begin)
            incarnation = self._newest_incarnation(place, czxid)
            for part in parts:
                cut = [Gap(max(part.start, gap.start), min(part.stop, gap.end), gap.reason) for gap in gaps]
                inside = [gap for gap in cut if gap.start < gap.end]
                missing = {offset for gap in inside for offset in range(gap.start, gap.end)}
                records = [self.make(place, incarnation, offset) for offset in part if offset not in missing]
                batch = build_batch(place, records, start=part.start, next_offset=part.stop, gaps=inside)
                await writer.write(batch)
                await writer.flush()
                for one in records:
                    key = Identity(place.topic, str(incarnation), str(place.partition), one.offset, one.index)
                    self.expected[key] = one
        finally:
            await sink.close()

    def _sink(self) -> ChainSink:
        options = ChainOptions(path=self.path)
        context = SinkContext(
            sink_name="lake",
            group=self.group,
            cluster_id=self.cluster,
            writer_id=f"member-{time.monotonic_ns()}",
            now=time.monotonic,
            charge=lambda _: None,
        )
        compression = find_line_compression(self.kind)
        if compression is not None:
            return JsonlSink(context, JsonlOptions(path=self.path, compression=compression))
        return ParquetSink(context, ParquetOptions(**options.model_dump()))

    def _newest_incarnation(self, place: TopicPartition, czxid: int) -> Incarnation:
        """Return the latest of a topic's making among the partition's chains here."""
        records = self.home(place.topic, place.partition.number).glob("chain=*/_chain.json")
        incarnations = (ChainRecord.parse(record.read_bytes()).incarnation for record in records)
        return max((one for one in incarnations if one.czxid == czxid), default=Incarnation(czxid))

    # -- what there is

    def home(self, topic: str, partition: int) -> Path:
        """Return a partition's folder."""
        return self.path.joinpath(*partition_folder(TopicPartition(topic, PartitionKey(partition))))

    def chain(self, topic: str, partition: int, number: int = 1) -> Path:
        """Return a chain's folder."""
        return self.home(topic, partition) / f"chain={number}"

    def files(self, topic: str, partition: int, number: int | None = None) -> list[Path]:
        """List a partition's data files, seals included, of one chain or all, by chain and position."""
        found = self.home(topic, partition).glob(f"chain={number or '*'}/[0-9]*.{self.kind}")
        return sorted(found, key=lambda path: (int(path.parent.name.removeprefix("chain=")), path.name))

    # -- damage

    def forget(self, path: Path) -> None:
        """Take the records of a file out of the ledger, for a test that is going to damage or remove it."""
        topic, partition = (part.partition("=")[2] for part in path.parts[-4:-2])
        incarnation = str(ChainRecord.parse((path.parent / "_chain.json").read_bytes()).incarnation)
        for row in _offsets(path):
            self.expected.pop(Identity(topic, incarnation, partition, *row), None)


def _cut(start: int, end: int, files: int) -> list[range]:
    size = end - start
    return [range(start + size * place // files, start + size * (place + 1) // files) for place in range(files)]


def _offsets(path: Path) -> Iterable[tuple[int, int]]:
    if path.suffix == ".parquet":
        table = pq.read_table(path, columns=["offset", "index"], partitioning=None)
        return list(zip(table["offset"].to_pylist(), table["index"].to_pylist(), strict=True))
    with path.open("rb") as file:
        lines = open_lines(file, path.name.partition(".")[2]).read().splitlines()
    return [(line["offset"], line["index"]) for line in map(json.loads, lines)]


def truncate_file(path: Path, size: int | None = None) -> None:
    """Cut a file's end off, half of it by default, as a copy that was interrupted."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 if size is None else size])


def flip_bytes(path: Path, at: int = 64, count: int = 32) -> None:
    """Change bytes in the middle of a file, as a bad disk."""
    data = bytearray(path.read_bytes())
    for place in range(at, min(at + count, len(data))):
        data[place] ^= 0xFF
    path.write_bytes(data)


def rewrite_parquet(
    path: Path,
    change: Callable[[pa.Table], pa.Table] = lambda table: table,
    describe: Callable[[FileMetadata], FileMetadata] = lambda metadata: metadata,
) -> None:
    """Write a Parquet file anew with other rows, or with other metadata: a file that contradicts itself."""
    table = pq.read_table(path, partitioning=None)
    metadata = FileMetadata.parse((pq.read_metadata(path).metadata or {})[FOOTER_KEY])
    changed = change(table)
    with pq.ParquetWriter(path, changed.schema.remove_metadata()) as writer:
        writer.write_table(changed.replace_schema_metadata(None))
        writer.add_key_value_metadata({FOOTER_KEY: describe(metadata).encode()})


def rewrite_lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Write a file of JSON lines anew and make its metadata match it again: only the content is wrong then."""
    [meta] = (path.parent / META_FOLDER).glob(f"{path.stem}.*.json")
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    fields = json.loads(meta.read_bytes())
    data = path.read_bytes()
    fields |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "modified_ns": path.stat().st_mtime_ns}
    meta.write_bytes(json.dumps(fields).encode())
