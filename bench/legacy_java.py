# SPDX-License-Identifier: Apache-2.0
"""Benchmark of draining a real broker of Kafka 0.7: the daemon beside its Java consumer.

    python -m bench.legacy_java [--records 8000000] [--rounds 5]

The broker is Jafka 3.0.6, a port of Kafka 0.7. Its topic has one partition of values of 100 bytes, uncompressed.

Both readers are groups of one in ZooKeeper, commit positions there and fetch 8 MB at a time. The daemon is the whole
one with the null sink, and checks CRCs. The Java consumer is Jafka's high-level consumer with 512 MB of heap; it counts
messages and looks at none. A rate is the slope between two marks, as in ``python -m bench`` (see ``bench.slopes``); a
figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Final

from bench.legacy import fill
from bench.measuring import read_once
from bench.produce import in_turn
from bench.readers.child import child
from bench.readers.daemon import null_sink
from bench.readers.running import Source, Starter
from bench.readers.telling import FETCH_BYTES, parse_told
from bench.report import compare, millions, print_rows
from bench.results import Row
from bench.slopes import Marks
from consumerd.wire import kernel
from consumerd.wire.compression import Codec
from tests.support.jafka import JafkaCluster, client_command

LEAST_RATIO: Final = 3.0
"""Target: the daemon's rate divided by that of the Java consumer."""

_DAEMON: Final = "consumerd"
_JAVA: Final = "Jafka's Java consumer"
_TOPIC: Final = "bench"
_SEGMENT_BYTES: Final = 1 << 30
_SPARE: Final = 1.25
"""Records in the topic, as a multiple of the upper mark."""


def _count(source: Source) -> list[str]:
    group = f"bench-{time.monotonic_ns()}"
    arguments = (source.cluster.zookeeper, source.topic, group, str(FETCH_BYTES))
    return client_command("count", *arguments, heap="512m", brisk=False)


_STARTERS: Final[dict[str, Starter]] = {_DAEMON: null_sink({}), _JAVA: child(_count, parse_told)}


def measure_beside_java(records: int, rounds: int) -> list[Row]:
    """Let both readers drain one topic in turns; print their rates, and return the row.

    Raises ReaderFailed, TooFewRecords, KafkaUnavailable.

    Args:
        records: the upper mark.
    """
    marks = Marks(low=records // 4, high=records)
    rates: dict[str, list[float]] = {reader: [] for reader in _STARTERS}
    segments = {"log.file.size": str(_SEGMENT_BYTES), "log.flush.interval": "10000", "max.message.size": str(64 << 20)}
    with JafkaCluster(partitions=1, properties=segments, heap="512m", brisk=False) as cluster:
        held = fill(cluster.bootstrap, _TOPIC, Codec.NONE, int(records * _SPARE))
        source = Source(cluster=cluster, topic=_TOPIC, records=held)
        for turn in range(rounds):
            for reader in in_turn(list(_STARTERS), turn):
                reading = read_once(_STARTERS[reader], source, marks)
                rates[reader].append(reading.records_per_s)
                print(f"  {reader:24} {millions(reading.records_per_s)}", flush=True)
    work = "0.7, Jafka, 100 bytes, uncompressed: consumerd"
    return [compare(work, rates[_DAEMON], rates[_JAVA], _JAVA, LEAST_RATIO)]


def main() -> None:
    """Run the benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=8_000_000, help="the upper mark (8000000)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; {kernel.describe()}; records/s", flush=True)
    print_rows(measure_beside_java(args.records, args.rounds))


if __name__ == "__main__":
    main()
