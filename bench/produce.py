# SPDX-License-Identifier: Apache-2.0
"""Producing, side by side with aiokafka's producer: ``python -m bench.produce [--records N] [--rounds N] [--release R]``.

Values of 100 bytes into one topic of several partitions on a real broker, acknowledged (acks 1), with the same size of batches
and no lingering, in one process, the two beginning a round by turns. Both buffer each record and wait for all acknowledgements at the end. Two readings
a round: records a second by the clock, and by this process's CPU time, which the broker on the same cores disturbs less. The
best round counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer

from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.telemetry.logs import configure_logging
from consumerd.wire.compression import Codec
from tests.support.kafka import RELEASES, Cluster

T = TypeVar("T")

TOPIC = "bench-produce"
PARTITIONS = 4
VALUE_BYTES = 100

Run = Callable[[str, list[bytes], str, int], Coroutine[Any, Any, None]]


def payloads(count: int) -> list[bytes]:
    """Return values that compress as text does."""
    source = random.Random(7)
    words = [source.randbytes(3).hex() for _ in range(500)]
    values = []
    for _ in range(count):
        text = " ".join(source.choices(words, k=15))
        values.append(text[:VALUE_BYTES].encode())
    return values


async def run_ours(bootstrap: str, values: list[bytes], codec: str, batch_bytes: int) -> None:
    """Send all, and wait for their acknowledgements."""
    settings = ProducerSettings(acks=1, codec=Codec[codec.upper()], batch_bytes=batch_bytes)
    async with open_producer(bootstrap, settings=settings) as producer:
        deliveries = [await producer.enqueue(TOPIC, value) for value in values]
        await producer.flush()
    for delivery in deliveries:
        delivery.result()


async def run_aiokafka(bootstrap: str, values: list[bytes], codec: str, batch_bytes: int) -> None:
    """The same with the peer."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks=1,
        compression_type=None if codec == "none" else codec,
        max_batch_size=batch_bytes,
    )
    await producer.start()
    try:
        deliveries = [await producer.send(TOPIC, value) for value in values]
        await producer.flush()
    finally:
        await producer.stop()
    for delivery in deliveries:
        delivery.result()


def measure(run: Run, bootstrap: str, values: list[bytes], codec: str, batch_bytes: int) -> tuple[float, float]:
    """Return thousands of records a second by the clock and by CPU time."""
    gc.collect()
    cpu, wall = time.process_time(), time.monotonic()
    asyncio.run(run(bootstrap, values, codec, batch_bytes))
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    return len(values) / wall / 1000, len(values) / cpu / 1000


def in_turn(contestants: Sequence[T], turn: int) -> list[T]:
    """Return contestants in the order of a round: whoever runs second finds the broker and the page cache busier."""
    first = turn % len(contestants)
    return [*contestants[first:], *contestants[:first]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--release", choices=RELEASES, default="1.1.1")
    parser.add_argument("--batch-bytes", type=int, nargs="+", default=[16384, 65536])
    parser.add_argument("--codecs", nargs="+", default=["none", "lz4"])
    args = parser.parse_args()
    configure_logging("warning")
    values = payloads(args.records)
    sys.stdout.write("best of the rounds, thousand records a second: by the clock, (by CPU time)\n")
    with Cluster(args.release, brisk=False) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, retention_bytes="100000000")
        for run in (run_ours, run_aiokafka):
            measure(run, cluster.bootstrap, values[:20_000], "none", 16384)  # warm-up
        for batch_bytes in args.batch_bytes:
            for codec in args.codecs:
                readings: dict[str, list[tuple[float, float]]] = {"consumerd": [], "aiokafka": []}
                for turn in range(args.rounds):
                    for name, run in in_turn((("consumerd", run_ours), ("aiokafka", run_aiokafka)), turn):
                        readings[name].append(measure(run, cluster.bootstrap, values, codec, batch_bytes))
                best = {name: [max(column) for column in zip(*rows, strict=True)] for name, rows in readings.items()}
                ratios = [
                    [
                        ours[at] / theirs[at]
                        for ours, theirs in zip(readings["consumerd"], readings["aiokafka"], strict=True)
                    ]
                    for at in (0, 1)
                ]
                shown = ", ".join(f"{name} {wall:6.1f} ({cpu:6.1f})" for name, (wall, cpu) in best.items())
                sys.stdout.write(
                    f"{codec:>6}, batches of {batch_bytes}: {shown}; ratio of the rounds, median: "
                    f"{statistics.median(ratios[0]):.2f} ({statistics.median(ratios[1]):.2f})\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
