# SPDX-License-Identifier: Apache-2.0
"""Throughput of each sink, with batches from memory.

Usage: ``python -m bench.sinks [--rounds N] [--value-bytes N...] [SINK...]``.

One partition and one writer, without fetching and decoding. Batches have 4 MB, the size in which they are fetched.
Rates are in records written per second; publishing and syncing files is included. Each sink is measured with and
without the native kernel, in turns; the figures are medians of the rounds.

The name of a sink may hold Parquet's compression codec and level (``parquet:snappy``, ``parquet:zstd:3``). ``--steps``
instead prints the time that each step of Parquet takes for a record, on one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.machine import describe_machine
from bench.payloads import documents
from consumerd.model import TopicPartition
from consumerd.sinks.base import PartitionWriter, Sink, SinkContext, Start
from consumerd.sinks.registry import load_sink
from consumerd.wire import kernel
from consumerd.wire.columns import extend_steps
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.pure import without_kernel
from tests.support.record_batches import build_batch, record

PARTITION: Final = TopicPartition.modern("bench", 0)
BATCH_BYTES: Final = 4 << 20
SINKS: Final = ("parquet", "parquet:zstd:-7", "parquet:snappy", "parquet:none", "jsonl", "stdout")


def payloads(kind: str, size: int) -> list[bytes]:
    """Return the values of one batch: one value repeated, or random JSON documents.

    Documents have 100 to 400 bytes. If ``size`` is above 400, several are joined to values of about ``size`` bytes.
    """
    if kind == "repeated":
        return [b"x" * size] * (BATCH_BYTES // size)
    if size <= 400:
        return list(documents(BATCH_BYTES // 250))
    source = random.Random(1)
    pool = list(documents(2000))
    return [b"[%b]" % b",".join(source.choices(pool, k=size // 250)) for _ in range(BATCH_BYTES // size)]


def make_batch(kind: str, size: int) -> RecordBatch:
    """Return a batch of the values of :func:`payloads`, without keys."""
    rows = [record(row, value, timestamp=1_700_000_000_000 + row) for row, value in enumerate(payloads(kind, size))]
    return build_batch(PARTITION, rows)


def shifted(batch: RecordBatch, start: int) -> RecordBatch:
    """Return the same records with offsets from ``start`` on."""
    offsets = array("q")
    extend_steps(offsets, start, 1, len(batch))
    return replace(batch, start=start, next_offset=start + len(batch), offsets=offsets)


def make_sink(kind: str, path: Path) -> Sink:
    """Create a sink with its default options, and the compression that ``kind`` names."""
    context = SinkContext(
        sink_name="bench",
        group="bench",
        cluster_id="1-1",
        writer_id="bench",
        now=time.monotonic,
        charge=lambda _: None,
    )
    name, *codec = kind.split(":")
    factory = load_sink(name)
    if name == "stdout":
        from consumerd.sinks.stdout import StdoutSink

        return StdoutSink(context, StdoutSink.Options(), descriptor=os.open(os.devnull, os.O_WRONLY))
    options = (
        {} if name == "null" else {"path": path, **dict(zip(("compression", "compression_level"), codec, strict=False))}
    )
    return factory(context, factory.Options.model_validate(options))


async def write_for(writer: PartitionWriter, batch: RecordBatch, seconds: float) -> tuple[int, float]:
    """Write for ``seconds``; return the number of records that landed, and the seconds taken."""
    await writer.start(Start(position=0, reason="earliest"))
    position, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        await writer.write(shifted(batch, position))
        position += len(batch)
    await writer.flush()
    return position, time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Reading:
    """Rate and cost of a sink.

    Attributes:
        rate: records per second of wall time.
        cpu_ns: CPU time of a record, over all threads.
        landed_bytes: bytes on disk of a record.
    """

    rate: float
    cpu_ns: float
    landed_bytes: float


async def measure(kind: str, batch: RecordBatch, seconds: float) -> Reading:
    """Measure one sink, writing the same batch again and again."""
    with tempfile.TemporaryDirectory() as folder:
        sink = make_sink(kind, Path(folder))
        writer = await sink.open(StubClaim(PARTITION))
        worked = time.process_time()
        count, spent = await write_for(writer, batch, seconds)
        worked = time.process_time() - worked
        await sink.close()
        landed = sum(found.stat().st_size for found in Path(folder).rglob("*") if found.is_file())
    return Reading(rate=count / spent, cpu_ns=worked / count * 1e9, landed_bytes=landed / count)


def compare(kind: str, batch: RecordBatch, seconds: float, rounds: int) -> dict[str, Reading]:
    """Measure a sink with and without the native kernel, in turns.

    Returns the median readings, as ``kernel`` and ``pure``; without ``kernel`` if the native kernel is not available.
    """
    readings: dict[str, list[Reading]] = {"kernel": [], "pure": []}
    for _ in range(rounds):
        if kernel.gather is not None and kernel.lines is not None:
            readings["kernel"].append(asyncio.run(measure(kind, batch, seconds)))
        with without_kernel():
            readings["pure"].append(asyncio.run(measure(kind, batch, seconds)))
    return {
        way: Reading(*(statistics.median(getattr(r, name) for r in taken) for name in Reading.__slots__))
        for way, taken in readings.items()
        if taken
    }


class Nowhere:
    """Binary file that keeps nothing."""

    closed = False

    def __init__(self) -> None:
        self._size = 0

    def write(self, data: memoryview) -> int:
        """Count the bytes and discard them."""
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def show_steps(payload: str, size: int) -> None:
    """Print the time of each Parquet step for a record, on one thread, without disk."""
    import pyarrow as pa

    from consumerd.sinks.parquet import ROW_GROUP_BYTES, ParquetCodec, make_writer
    from consumerd.wire.arrow import SCHEMA

    batch = make_batch(payload, size)
    print(f"  to Arrow, kernel: {_time(batch.to_arrow) / len(batch):8.1f} ns a record")
    with without_kernel():
        print(f"  to Arrow, pure:   {_time(batch.to_arrow) / len(batch):8.1f}")
    arrow = batch.to_arrow()
    table = pa.Table.from_batches([arrow] * -(-ROW_GROUP_BYTES // arrow.nbytes))
    for codec in (ParquetCodec("none"), ParquetCodec("snappy"), ParquetCodec("zstd", -7), ParquetCodec("zstd", 1)):
        for columns in (SCHEMA.names, *([name] for name in SCHEMA.names if codec.level == 1)):
            some = table.select(columns)
            writer = make_writer(Nowhere(), table, codec, schema=some.schema)
            spent = _time(partial(writer.write_table, some, row_group_size=len(some)))
            what = "a row group" if len(columns) > 1 else f"  of which {columns[0]}"
            print(f"  {what}, {codec.compression} {codec.level or ''}: {spent / len(table):8.1f}")


def _time(work: Callable[[], object]) -> float:
    """Return the shortest time of five calls, in ns."""
    times = []
    for _ in range(5):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return min(times)


def main() -> None:
    """Measure each sink with each kind of payload, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sinks", nargs="*", default=SINKS)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--value-bytes", type=int, nargs="+", default=[100])
    parser.add_argument("--steps", action="store_true")
    arguments = parser.parse_args()
    print(f"{describe_machine()}; kernel: {kernel.describe()}")
    for size, payload in itertools.product(arguments.value_bytes, ("repeated", "random")):
        if arguments.steps:
            print(f"{payload}, {size} bytes")
            show_steps(payload, size)
            continue
        batch = make_batch(payload, size)
        value_bytes = sum(batch.value_ends) / len(batch) - sum(batch.value_starts) / len(batch)
        for kind in arguments.sinks:
            for way, reading in compare(kind, batch, arguments.seconds, arguments.rounds).items():
                print(
                    f"{kind:15} {payload:9} {value_bytes:8,.0f} bytes {way:7} {reading.rate:12,.0f} records/s "
                    f"{reading.rate * value_bytes / 1e6:8,.0f} MB/s {reading.cpu_ns:9,.0f} ns of processors "
                    f"{reading.landed_bytes:9,.1f} bytes landed a record",
                    flush=True,
                )


if __name__ == "__main__":
    main()
