"""Throughput of each sink over batches in memory: ``python -m bench.sinks [--seconds S] [--value-bytes N] [SINK...]``.

One partition, one writer: what a sink costs in front of which fetching and decoding take their part. Rates are of
records as they are written, files published included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from array import array
from pathlib import Path

from consumerd.model import TopicPartition
from consumerd.sinks.base import PartitionWriter, Sink, SinkContext, Start
from consumerd.sinks.registry import load_sink
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.record_batches import build_batch, record

PARTITION = TopicPartition.modern("bench", 0)
BATCH_RECORDS = 8192


def payloads(kind: str, size: int) -> list[bytes]:
    """Return the values of one batch: one repeated, or random JSON documents."""
    if kind == "repeated":
        return [b"x" * size] * BATCH_RECORDS
    source = random.Random(1)
    filler = max(1, (size - 60) // 2)
    return [
        json.dumps({"id": row, "amount": source.random(), "name": source.randbytes(filler).hex()}).encode()
        for row in range(BATCH_RECORDS)
    ]


def shifted(batch: RecordBatch, start: int) -> RecordBatch:
    """Return the same records from ``start`` on."""
    return RecordBatch(
        partition=batch.partition,
        start=start,
        next_offset=start + len(batch),
        buffer=batch.buffer,
        offsets=array("q", range(start, start + len(batch))),
        timestamps=batch.timestamps,
        timestamp_types=batch.timestamp_types,
        key_starts=batch.key_starts,
        key_ends=batch.key_ends,
        value_starts=batch.value_starts,
        value_ends=batch.value_ends,
        size_bytes=batch.size_bytes,
    )


def make_sink(kind: str, path: Path) -> Sink:
    """Make a sink with its defaults."""
    context = SinkContext(
        sink_name="bench",
        group="bench",
        cluster_id="1-1",
        writer_id="bench",
        now=time.monotonic,
        charge=lambda _: None,
    )
    factory = load_sink(kind)
    if kind == "stdout":
        from consumerd.sinks.stdout import StdoutSink

        descriptor = os.open(os.devnull, os.O_WRONLY)
        return StdoutSink(context, StdoutSink.Options(), descriptor=descriptor)
    return factory(context, factory.Options.model_validate({} if kind == "null" else {"path": path}))


async def write_for(writer: PartitionWriter, batch: RecordBatch, seconds: float) -> tuple[int, float]:
    """Write for ``seconds`` and return how many records landed, and in what time."""
    await writer.start(Start(position=0, reason="earliest"))
    position, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        await writer.write(shifted(batch, position))
        position += len(batch)
    await writer.flush()
    return position, time.perf_counter() - start


async def measure(kind: str, payload: str, size: int, seconds: float) -> None:
    """Measure one sink with one kind of payload, and print a line."""
    rows = [record(row, value, timestamp=1_700_000_000_000 + row) for row, value in enumerate(payloads(payload, size))]
    batch = build_batch(PARTITION, rows)
    with tempfile.TemporaryDirectory() as folder:
        sink = make_sink(kind, Path(folder))
        count, spent = await write_for(await sink.open(StubClaim(PARTITION)), batch, seconds)
        await sink.close()
        landed = sum(found.stat().st_size for found in Path(folder).rglob("*") if found.is_file())
    megabytes = count * batch.size_bytes / len(batch) / spent / 1e6
    print(
        f"{kind:8} {payload:9} {count / spent:12,.0f} records/s {megabytes:8,.0f} MB/s, {landed / count:6.1f} bytes landed a record"
    )


def main() -> None:
    """Measure each sink with each kind of payload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sinks", nargs="*", default=["null", "parquet", "jsonl", "stdout"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--value-bytes", type=int, default=100)
    arguments = parser.parse_args()
    for payload in ("repeated", "random"):
        for kind in arguments.sinks:
            asyncio.run(measure(kind, payload, arguments.value_bytes, arguments.seconds))


if __name__ == "__main__":
    main()
