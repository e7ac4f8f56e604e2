# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the embedded broker beside a real Kafka 1.1.1: fetching and producing.

    python -m bench.broker [--records 2000000] [--rounds 5] [--batches 3000]

Both brokers hold the same topic: values of 100 bytes, stored as magic 2, sent by Kafka's own ProducerPerformance.

Fetching: a raw socket requests the next 8 MB as soon as it has received the last batch header of a response. It reads
batch headers only, so the broker limits the rate.

Producing: each request holds one batch of 64 KiB; five requests are in flight, with acks=1.

Rates are thousands of values per second, one for each round; the brokers take turns. Kafka's JVM warms up during the
first rounds. At the end, 500 consumers wait at the end of the log, up to 5 s for each fetch, and the CPU time that this
costs each broker is printed in percent of one core.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.pipelined import Connection
from bench.readers.running import processor_s
from bench.readers.telling import FETCH_BYTES
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.records import NewRecord
from consumerd.wire.session import encode_request
from tests.support.embedded import EmbeddedProcess
from tests.support.kafka import Cluster

TOPIC: Final = "bench"
SINK: Final = "taken"
VALUE: Final = bytes(range(97, 122)) * 4


def produce_frame() -> tuple[bytes, int]:
    """Return an encoded produce request with one batch of 64 KiB, and its value count."""
    count = (64 * 1024 - 61) // (len(VALUE) + 9)
    now_ms = time.time_ns() // 1_000_000
    batch = build_record_set([NewRecord(key=None, value=VALUE, timestamp=now_ms) for _ in range(count)], magic=2)
    topic = ProduceTopic(topic=SINK, partitions=(ProducePartition(partition=0, record_set=batch),))
    request = ProduceRequest(acks=1, timeout_ms=30_000, topics=(topic,))
    return encode_request(request, 3, correlation_id=1, client_id="bench"), count


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker under test: its name, its bootstrap address and its process id."""

    name: str
    bootstrap: str
    pid: int

    def processor_s(self) -> float:
        """Return the CPU time of the broker's process so far, in seconds."""
        return processor_s(self.pid)


def take_turns(brokers: list[Broker], topic: str, rounds: int, run: Callable[[Connection], float], values: int) -> None:
    """Measure each broker ``rounds`` times, in turns, and print the results.

    Prints the rate of each round in thousands of values/s, their median, and the median of the CPU time in seconds per
    million values.

    Args:
        topic: topic of the connection that ``run`` gets.
        run: does the work of one round, and returns the seconds that it took.
        values: number of values that one round transfers.
    """
    rates: dict[Broker, list[float]] = {broker: [] for broker in brokers}
    spent: dict[Broker, list[float]] = {broker: [] for broker in brokers}
    for _ in range(rounds):
        for broker in brokers:
            with Connection(broker.bootstrap, topic) as connection:
                before = broker.processor_s()
                rates[broker].append(values / run(connection) / 1000)
                spent[broker].append((broker.processor_s() - before) / values * 1e6)
    for broker in brokers:
        figures = " ".join(f"{rate:8.0f}" for rate in rates[broker])
        print(
            f"    {broker.name:12} {figures}   median {statistics.median(rates[broker]):8.0f}, "
            f"processor {statistics.median(spent[broker]):.3f} s a million",
            flush=True,
        )


def share_of_idle(broker: Broker, records: int, consumers: int = 500, seconds: float = 15.0) -> float:
    """Return the broker's CPU share, as a fraction of one core, while consumers wait.

    Args:
        records: log end offset of the topic. All consumers wait there for records that never come.
        consumers: number of connections, each with one pending fetch request.
        seconds: length of the measurement.
    """
    partition = FetchPartition(partition=0, fetch_offset=records, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(max_wait_ms=5000, min_bytes=1, topics=(FetchTopic(topic=TOPIC, partitions=(partition,)),))
    frame = encode_request(request, 5, correlation_id=1, client_id="bench")
    host, _, port = broker.bootstrap.rpartition(":")
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for _ in range(consumers):
            connection = stack.enter_context(socket.create_connection((host, int(port)), 60))
            selector.register(connection, selectors.EVENT_READ, connection)
            connection.sendall(frame)
        before, began = broker.processor_s(), time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            for key, _ in selector.select(0.2):
                key.data.recv(65536)
                key.data.sendall(frame)
        return (broker.processor_s() - before) / passed


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=3000)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; k values of 100 bytes a second", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="consumerd-bench-") as folder,
        Cluster("1.1.1", heap="1g", brisk=False) as kafka,
        EmbeddedProcess(Path(folder)) as embedded,
    ):
        brokers = [
            Broker("Kafka 1.1.1", kafka.bootstrap, kafka.processes["broker-0"].pid),
            Broker("embedded", embedded.bootstrap, embedded.process.pid),
        ]
        for name in (TOPIC, SINK):
            kafka.create_topic(name)
            embedded.create_topic(name)
        for broker in brokers:
            kafka.run_tool(
                "org.apache.kafka.tools.ProducerPerformance", "--topic", TOPIC, "--num-records", str(args.records),
                "--record-size", "100", "--throughput", "-1", "--producer-props",
                f"bootstrap.servers={broker.bootstrap}", "acks=1", "batch.size=65536",
            )  # fmt: skip
        print("serving, pipelined fetches of 8 MB:")
        take_turns(brokers, TOPIC, args.rounds, lambda connection: connection.read_all(args.records), args.records)
        frame, values = produce_frame()
        print("taking, batches of 64 KiB:")
        frames = [frame] * args.batches
        take_turns(brokers, SINK, args.rounds, lambda connection: connection.produce(frames), args.batches * values)
        print("500 consumers that wait, share of a core:")
        for broker in brokers:
            print(f"    {broker.name:12} {100 * share_of_idle(broker, args.records):.1f} %", flush=True)
        print(f"resident: {resident_mib(embedded.process.pid):.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
