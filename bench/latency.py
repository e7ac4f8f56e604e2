# SPDX-License-Identifier: Apache-2.0
"""Latency from the producer to each reader.

Usage: ``python -m bench.latency [--release 1.1.1] [--partitions 1 8] [--rate 1000] [--rounds 5]``.

A producer process sends ``--rate`` values/s, one at a time, to the partitions in turn. Each value holds the time at
which it was sent. The readers run one at a time, in another order each round:

- the daemon with its default settings and a sink that notes when it gets a batch;
- aiokafka's ``getmany`` loop and Java's new consumer, which note when a call returns.

The broker is warmed up once, each reader in each of its rounds. Printed are, for each reader, the median and the 99th
percentile of the latency in ms (of each round, and the medians of the rounds) and the reader's share of one core. The
broker and the producer share the cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.latencies import timing_sink
from bench.readers.running import processor_s
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import RELEASES, Cluster, compile_java, java_command

WARM_UP_S: Final = 8.0
BROKER_WARM_UP_S: Final = 10.0
_ROOT: Final = Path(__file__).resolve().parents[1]
_HERE: Final = Path(__file__).with_name("latencies")

Started = Callable[[Cluster, str, int, Path, Path], AbstractContextManager[int]]
"""Starts a reader and gives its pid. Arguments: cluster, topic, partition count, folder, file for arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Result of one round of one reader.

    Attributes:
        median_ms: median latency.
        p99_ms: 99th percentile of the latency.
        values: number of values measured.
        core_share: CPU time of the reader as a fraction of one core.
    """

    median_ms: float
    p99_ms: float
    values: int
    core_share: float


def measure_latency(
    cluster: Cluster,
    partitions: int,
    *,
    rate: float,
    rounds: int,
    seconds: float,
    readers: Sequence[str] = (),
    packages: Mapping[str, Path] | None = None,
) -> dict[str, list[Latency]]:
    """Measure the readers in turns; return the rounds of each, by name.

    Args:
        partitions: number of partitions of the topic.
        rate: values/s that are produced.
        rounds: number of rounds.
        seconds: length of a round, after the warm-up.
        readers: names of :data:`READERS`; empty for all.
        packages: folders of versions of consumerd, by name. If given, these versions are the readers.
    """
    starters = {name: _daemon_of(package) for name, package in packages.items()} if packages else READERS
    topic = f"latency-{partitions}"
    cluster.create_topic(topic, partitions, retention_bytes="100000000")
    command = [sys.executable, "-m", "bench.latencies.produce", cluster.bootstrap, topic, str(partitions), str(rate)]
    found: dict[str, list[Latency]] = {name: [] for name in readers or starters}
    with _running(command):
        _measure_round(_java, cluster, topic, partitions, BROKER_WARM_UP_S)
        for number in range(rounds):
            for name in _turned(list(found), number):
                found[name].append(_measure_round(starters[name], cluster, topic, partitions, seconds))
    return found


def _turned(names: list[str], number: int) -> list[str]:
    """Return the names in the order of a round; each is first in some round."""
    first = number % len(names)
    return names[first:] + names[:first]


def _measure_round(start: Started, cluster: Cluster, topic: str, partitions: int, seconds: float) -> Latency:
    folder = Path(tempfile.mkdtemp(prefix="consumerd-bench-"))
    arrivals = folder / "arrivals"
    try:
        with start(cluster, topic, partitions, folder, arrivals) as pid:
            deadline = time.monotonic() + 60
            while not (arrivals.exists() and arrivals.stat().st_size):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"nothing arrives: {(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.1)
            time.sleep(WARM_UP_S)
            began, had = time.time(), processor_s(pid)
            time.sleep(seconds)
            ended, taken = time.time(), processor_s(pid) - had
            time.sleep(1.0)  # until the last arrivals are in the file
        return _summarise(arrivals, began, ended, taken / (ended - began))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _summarise(arrivals: Path, began: float, ended: float, core_share: float) -> Latency:
    delays: list[float] = []
    for line in arrivals.read_text().rpartition("\n")[0].splitlines():
        written, arrived = map(int, line.split())
        if began <= written / 1e6 < ended:
            delays.append((arrived - written) / 1000)
    cuts = statistics.quantiles(delays, n=100)
    return Latency(median_ms=cuts[49], p99_ms=cuts[98], values=len(delays), core_share=core_share)


# -- the readers


def _daemon_of(package: Path) -> Started:
    """Return a starter for the daemon of the version in the folder ``package``."""
    return partial(_daemon, package=package)


@contextmanager
def _daemon(
    cluster: Cluster,
    topic: str,
    partitions: int,  # noqa: ARG001
    folder: Path,
    arrivals: Path,
    package: Path = _ROOT,
) -> Iterator[int]:
    settings = settings_for(
        cluster.zookeeper, f"bench-{time.monotonic_ns()}", topics=(topic,), log={"level": "info"},
        sink={"type": "timing", "path": str(arrivals)}, offsets={"commit_interval_ms": 5000, "on_missing": "latest"},
    )  # fmt: skip
    # the sink comes from this checkout, also for another version of the daemon
    path = (str(timing_sink.install(folder / "sink")), str(package), str(_ROOT))
    with Daemon(folder, "daemon", settings, python_path=path) as daemon:
        (folder / "log").symlink_to(daemon.log_path)
        yield daemon.process.pid
        daemon.terminate()


@contextmanager
def _running(command: Sequence[str], log: Path = Path(os.devnull)) -> Iterator[int]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=_ROOT)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _aiokafka(
    cluster: Cluster, topic: str, partitions: int, folder: Path, arrivals: Path
) -> AbstractContextManager[int]:
    module = "bench.latencies.aiokafka_loop"
    command = [sys.executable, "-m", module, cluster.bootstrap, topic, str(partitions), str(arrivals)]
    return _running(command, folder / "log")


def _java(cluster: Cluster, topic: str, partitions: int, folder: Path, arrivals: Path) -> AbstractContextManager[int]:
    source = _HERE / "LatencyConsumer.java"
    classes = compile_java(cluster.release, [source])
    arguments = (cluster.bootstrap, topic, str(partitions), str(arrivals))
    return _running(java_command(cluster.release, source.stem, *arguments, classes=classes), folder / "log")


READERS: Final[Mapping[str, Started]] = {"consumerd": _daemon, "aiokafka": _aiokafka, "Java new consumer": _java}


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=RELEASES, default="1.1.1")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; Kafka {args.release}, {args.rate:g} values/s")
    with Cluster(args.release, heap="1g", brisk=False) as cluster:
        for partitions in args.partitions:
            found = measure_latency(
                cluster,
                partitions,
                rate=args.rate,
                rounds=args.rounds,
                seconds=args.seconds,
                readers=args.readers,
            )
            for name, rounds in found.items():
                each = "  ".join(f"{one.median_ms:.2f}/{one.p99_ms:.2f}" for one in rounds)
                print(
                    f"{partitions:3} partitions  {name:18} p50 "
                    f"{statistics.median(one.median_ms for one in rounds):6.2f} ms, p99 "
                    f"{statistics.median(one.p99_ms for one in rounds):6.2f} ms, "
                    f"{100 * statistics.median(one.core_share for one in rounds):5.1f} % of a core   ({each})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
