# SPDX-License-Identifier: Apache-2.0
"""Benchmark of producing: our producer beside librdkafka's, Java's and aiokafka's.

    python -m bench.produce [--codecs none lz4] [--records 500000] [--rounds 5]

Each producer sends the same values of 100 bytes to a topic of four partitions on a real broker, on the same cores. All
are idempotent with ``acks=all``, have batches of 64 KiB and wait 5 ms for more records. A program calls ours,
librdkafka's (confluent-kafka) and aiokafka's once for each record, from Python; Java's runs in a JVM of its own.

The time runs from the first record until all are acknowledged. Before it, each producer sends a few records, and Java's
a million. The producers take turns in beginning a round. A ratio is the median of the ratios of the rounds. In
parentheses are records/s of CPU time of the producer's process, which the broker on the same cores disturbs less.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final, TypeVar

from confluent_kafka import Consumer, TopicPartition

from bench.machine import describe_machine
from bench.producers import JAVA_WARM_UP, RUNS, Sending, Who
from bench.report import compare, millions, print_rows
from bench.results import Row
from consumerd.telemetry.logs import configure_logging
from tests.support.kafka import RELEASES, Cluster
from tests.support.kraft import make_cluster
from tests.support.programs import ProgramFailed

T = TypeVar("T")

TOPIC: Final = "bench-produce"
PARTITIONS: Final = 4
VALUE_BYTES: Final = 100
_LINGER_MS: Final = 5

Rates = tuple[float, float]
"""Records per second of the clock, and per second of CPU time."""

LEAST: Final[Mapping[tuple[str, Who], float]] = {
    ("none", Who.LIBRDKAFKA): 0.6,
    ("lz4", Who.LIBRDKAFKA): 0.6,
    ("lz4", Who.JAVA): 1.0,
}
"""Targets: our rate divided by that of a peer, by codec."""


def payloads(count: int) -> list[bytes]:
    """Return ``count`` values that compress about as well as text."""
    source = random.Random(7)
    words = [source.randbytes(3).hex() for _ in range(500)]
    values = []
    for _ in range(count):
        text = " ".join(source.choices(words, k=15))
        values.append(text[:VALUE_BYTES].encode())
    return values


def in_turn(contestants: Sequence[T], turn: int) -> list[T]:
    """Return the contestants in the order of a round; each is first in some round.

    The order has to change, because the second one finds the broker and the page cache busier.
    """
    first = turn % len(contestants)
    return [*contestants[first:], *contestants[:first]]


def _log_ends(cluster: Cluster) -> int:
    """Return the sum of the log end offsets of the topic."""
    with closing(Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "bench"})) as consumer:
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(one, timeout=10)[1] for one in places)


def measure(who: Who, sending: Sending) -> Rates:
    """Let a producer send all values once.

    Raises ProgramFailed if the log did not get each of them once.
    """
    before = _log_ends(sending.cluster)
    gc.collect()
    sent = RUNS[who](sending)
    if (written := _log_ends(sending.cluster) - before) != sent.records:
        raise ProgramFailed(f"{who}: {sent.records} records sent, {written} in the log")
    return len(sending.values) / sent.wall_s, len(sending.values) / sent.cpu_s


def row_of(what: str, codec: str, peer: Who, rates: Mapping[Who, Sequence[Rates]]) -> Row:
    """Return the row of the report that compares our producer with a peer.

    Args:
        what: release and batch size.
        rates: rates by producer, round by round.
    """
    work = f"{what}, {'uncompressed' if codec == 'none' else codec}, idempotent, {VALUE_BYTES} bytes: producer"
    (ours, ours_by_cpu), (theirs, theirs_by_cpu) = (zip(*rates[who], strict=True) for who in (Who.OURS, peer))
    row = compare(work, ours, theirs, peer, LEAST.get((codec, peer)))
    by_cpu = statistics.median(our / their for our, their in zip(ours_by_cpu, theirs_by_cpu, strict=True))
    return replace(row, figure=f"{row.figure}; {by_cpu:.2f} by CPU time")


def measure_beside_peers(
    records: int,
    rounds: int,
    *,
    release: str = "4.3.1",
    codecs: Sequence[str] = ("none", "lz4"),
    batch_bytes: Sequence[int] = (65536,),
    producers: Sequence[Who] = tuple(Who),
    java_warm_up: int = JAVA_WARM_UP,
) -> list[Row]:
    """Let all producers send the values in turns; print their rates, and return the rows.

    Raises ProgramFailed, KafkaUnavailable.
    """
    configure_logging("warning")
    values, rows = payloads(records), []
    with make_cluster(release, heap="1g", brisk=False) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, retention_bytes="100000000")
        for size in batch_bytes:
            for codec in codecs:
                sending = Sending(
                    cluster=cluster,
                    topic=TOPIC,
                    values=values,
                    codec=codec,
                    batch_bytes=size,
                    linger_ms=_LINGER_MS,
                    java_warm_up=java_warm_up,
                )
                rates: dict[Who, list[Rates]] = {who: [] for who in producers}
                for turn in range(rounds):
                    for who in in_turn(producers, turn):
                        rates[who].append(measure(who, sending))
                        wall, cpu = rates[who][-1]
                        print(f"  {codec:4} {who:12} {millions(wall)} ({millions(cpu)})", flush=True)
                what = f"{release}, batches of {size >> 10} KiB"
                rows += [row_of(what, codec, peer, rates) for peer in producers if peer is not Who.OURS]
    return rows


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--release", choices=RELEASES, default="4.3.1", help="of the broker and of Java's producer")
    parser.add_argument("--batch-bytes", type=int, nargs="+", default=[65536])
    parser.add_argument("--codecs", nargs="+", default=["none", "lz4"])
    parser.add_argument("--peers", type=Who, nargs="+", default=[who for who in Who if who is not Who.OURS])
    parser.add_argument(
        "--java-warm-up", type=int, default=JAVA_WARM_UP, help="records that Java's producer sends first"
    )
    args = parser.parse_args()
    print(f"{describe_machine()}; records/s", flush=True)
    rows = measure_beside_peers(
        args.records,
        args.rounds,
        release=args.release,
        codecs=args.codecs,
        batch_bytes=args.batch_bytes,
        producers=(Who.OURS, *args.peers),
        java_warm_up=args.java_warm_up,
    )
    print_rows(rows)


if __name__ == "__main__":
    main()
