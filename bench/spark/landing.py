# SPDX-License-Identifier: Apache-2.0
"""Landing zones for the benchmarks: real files of many rows, and many file names."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bench.sinks import make_batch, shifted
from consumerd.config.job import JobSettings
from consumerd.landing.chain import FileMetadata
from consumerd.model import TopicPartition
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.parquet import ParquetOptions, ParquetSink
from consumerd.spark import audit
from consumerd.spark.job import Silent
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.landing_zone import rewrite_parquet
from tests.support.record_batches import build_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "bench"
PARTITIONS: Final = 4
FILES: Final = 20
"""Number of files of each partition."""
AGAIN: Final = 0.1
"""Share of partition 0 that lands a second time, in a second chain."""
_NAMES_IN_CHAIN: Final = 5000
_PIECE: Final = 10_000


def land(root: Path, payload: str, rows: int) -> tuple[int, int]:
    """Land about ``rows`` records as consumerd does, some of them twice.

    Args:
        root: folder of the landing zone.
        payload: kind of values as in ``bench.sinks``: ``repeated`` or ``random``.
        rows: number of records, without those that land twice.

    Returns the number of different records in the files, and the number of rows.
    """
    batch = make_batch(payload, 100)
    in_each = rows // PARTITIONS
    for number in range(PARTITIONS):
        asyncio.run(_land(root, number, 0, in_each, batch))
    again = int(in_each * AGAIN)
    asyncio.run(_land(root, 0, in_each // 2, in_each // 2 + again, batch, request="again"))
    os.sync()
    return in_each * PARTITIONS, in_each * PARTITIONS + again


async def _land(root: Path, number: int, start: int, end: int, batch: RecordBatch, request: str | None = None) -> None:
    partition = TopicPartition.modern(TOPIC, number)
    batch = replace(batch, partition=partition)
    sink = ParquetSink(_context(), ParquetOptions(path=root))
    writer = await sink.open(StubClaim(partition))
    await writer.start(Start(position=start, reason="committed", new_chain=request is not None, request_id=request))
    size = -(-(end - start) // (FILES if request is None else 2))
    for first in range(start, end, size):
        for part in _batches(batch, first, min(first + size, end)):
            await writer.write(part)
        await writer.flush()
    await sink.close()


def _batches(batch: RecordBatch, start: int, end: int) -> Iterator[RecordBatch]:
    """Yield the batch's records again and again, with the offsets ``[start, end)``."""
    heads: dict[int, RecordBatch] = {}
    for position in range(start, end, _PIECE):
        size = min(_PIECE, end - position)
        if size not in heads:
            heads[size] = _head(batch, size)
        yield shifted(heads[size], position)


def _head(batch: RecordBatch, size: int) -> RecordBatch:
    return build_batch(batch.partition, itertools.islice(batch.records(), size))


def name(root: Path, files: int) -> None:
    """Create a landing zone of ``files`` file names.

    The first and the last file of each chain hold the records that their names promise. All other names are hard links
    to the first file, because an audit of names does not open them.
    """
    head = _head(make_batch("repeated", 100), 1)
    for number in range(-(-files // _NAMES_IN_CHAIN)):
        asyncio.run(_land(root, number, 0, 1, head))
        [first] = root.glob(f"topic={TOPIC}/partition={number}/chain=1/*.parquet")
        last = min(_NAMES_IN_CHAIN, files - number * _NAMES_IN_CHAIN) - 1
        for position in range(1, last):
            (first.parent / f"{position:020d}.parquet").hardlink_to(first)
        if last:
            path = first.parent / f"{last:020d}.parquet"
            shutil.copy(first, path)
            _move(path, last)


def _move(path: Path, position: int) -> None:
    """Rewrite a file of one record as if it held the record at ``position``."""

    def change(table: pa.Table) -> pa.Table:
        for column, offset in (("offset", position), ("next_offset", position + 1)):
            place = table.schema.get_field_index(column)
            table = table.set_column(place, table.schema.field(column), [pa.array([offset], pa.int64())])
        return table

    def describe(metadata: FileMetadata) -> FileMetadata:
        return replace(
            metadata, position=position, next_offset=position + 1, first_offset=position, last_offset=position
        )

    rewrite_parquet(path, change, describe)


def _context() -> SinkContext:
    return SinkContext(
        sink_name="bench",
        group="bench",
        cluster_id="1-1",
        writer_id=f"bench-{time.monotonic_ns()}",
        now=time.monotonic,
        charge=lambda _: None,
    )


def audit_names(root: Path) -> int:
    """Run the job ``audit`` on names alone; return the number of files that it counts.

    Raises ValueError if it has findings.
    """
    settings = JobSettings.model_validate({"pipeline": {"landing": {"roots": [root]}, "audit": {"footers": False}}})
    summary = audit.run(_no_session, settings, Silent())
    if summary.findings:
        raise ValueError(f"a zone that is sound has findings: {summary.findings[:3]}")
    return int(str(summary.numbers["files"]))


def _no_session() -> SparkSession:
    raise AssertionError("names need no Spark")
