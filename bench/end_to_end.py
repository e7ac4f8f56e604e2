"""The whole daemon against a peer, on real brokers: ``python -m bench.end_to_end [--releases 0.10.2.2 1.1.1]``.

For each release and payload: a topic is filled, then the daemon (null sink, Parquet sink; offsets committed to ZooKeeper)
and aiokafka's ``getmany`` loop read it from the beginning, alternately, ``--rounds`` times each. A reading is the slope of
records over time in the steady state: the first seconds and the last ones are left out. The broker shares the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster

Reading = tuple[float, int]
WARM_UP_S = 2.0


def slope(readings: list[Reading]) -> tuple[float, float]:
    """Return records per second in the steady state, and its length in seconds."""
    start = next(at for at, count in readings if count > 0) + WARM_UP_S
    steady = [(at, count) for at, count in readings if at >= start]
    seconds = steady[-1][0] - steady[0][0]
    return (steady[-1][1] - steady[0][1]) / seconds, seconds


def watch(count: Callable[[], int], total: int, seconds: float) -> list[Reading]:
    """Read a counter until enough seconds have passed in the steady state, or nearly all is read."""
    readings: list[Reading] = []
    deadline = time.monotonic() + seconds + WARM_UP_S + 30
    while time.monotonic() < deadline:
        readings.append((time.monotonic(), count()))
        begun = next((at for at, number in readings if number > 0), None)
        if readings[-1][1] >= total * 0.97 or (begun is not None and readings[-1][0] - begun > seconds + WARM_UP_S):
            break
        time.sleep(0.1)
    return readings


def run_daemon(cluster: Cluster, topic: str, total: int, seconds: float, sink: str, number: int) -> tuple[float, float]:
    """Measure the daemon with a sink."""
    with _folder() as folder:
        options = {"type": sink, **({"path": str(folder / "landing")} if sink == "parquet" else {})}
        settings = settings_for(
            cluster.zookeeper, f"bench-{sink}-{number}-{topic}", topics=(topic,), sink=options,
            log={"level": "info"}, offsets={"commit_interval_ms": 1000},
        )  # fmt: skip
        with Daemon(folder, "daemon", settings) as daemon:
            url = daemon.url + "/metrics"
            readings = watch(lambda: _delivered(url), total, seconds)
            daemon.terminate()
        return slope(readings)


def _delivered(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    lines = (line for line in text.splitlines() if line.startswith("consumerd_records_delivered_total{"))
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def run_aiokafka(cluster: Cluster, topic: str, total: int, seconds: float, _number: int) -> tuple[float, float]:
    """Measure the peer."""
    with _folder() as folder:
        out = folder / "counts"
        with out.open("wb") as counts:
            process = subprocess.Popen([sys.executable, "-m", "bench.peers", cluster.bootstrap, topic], stdout=counts)
        try:

            def count() -> int:
                whole = out.read_text().rpartition("\n")[0]
                return int(whole.rpartition("\n")[2].split()[1]) if whole else 0

            return slope(watch(count, total, seconds))
        finally:
            process.kill()
            process.wait()


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="consumerd-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(cluster: Cluster, topic: str, records: int, payload: str) -> None:
    """Make the topic and fill it with values of 100 bytes, or random JSON of about as much."""
    cluster.create_topic(topic, 1)
    if payload == "repeated":
        cluster.perf_produce(topic, records)
        return
    numbers = random.Random(7)
    with _folder() as folder:
        path = folder / "payloads"
        rows = (
            json.dumps({"id": numbers.getrandbits(48), "user": f"u{numbers.randrange(10**6)}", "amount": numbers.random() * 1000,
                        "tags": numbers.sample(["red", "green", "blue", "grey", "black"], 2)})
            for _ in range(50_000)
        )  # fmt: skip
        path.write_text("\n".join(rows))
        cluster.perf_produce(topic, records, payload_file=path)


def main() -> None:
    """Measure and print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", nargs="+", default=["0.10.2.2", "1.1.1"])
    parser.add_argument("--payloads", nargs="+", default=["repeated", "json"], choices=["repeated", "json"])
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; k records/s in the steady state, each round",
        flush=True,
    )
    for release in args.releases:
        with Cluster(release, heap="1g", properties={"log.segment.bytes": "1073741824"}) as cluster:
            for payload in args.payloads:
                topic = f"bench-{payload}"
                fill(cluster, topic, args.records, payload)
                measure(cluster, topic, payload, args)


def measure(cluster: Cluster, topic: str, payload: str, args: argparse.Namespace) -> None:
    """Run all contestants alternately and print their figures."""
    contestants: dict[str, Callable[[int], tuple[float, float]]] = {
        "aiokafka getmany": lambda n: run_aiokafka(cluster, topic, args.records, args.seconds, n),
        "consumerd null": lambda n: run_daemon(cluster, topic, args.records, args.seconds, "null", n),
        "consumerd parquet": lambda n: run_daemon(cluster, topic, args.records, args.seconds, "parquet", n),
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(args.rounds):
        for name, run in contestants.items():
            figures[name].append(run(number))
    base = statistics.median(rate for rate, _ in figures["aiokafka getmany"])
    for name, measured in figures.items():
        rates = " ".join(f"{rate / 1000:7.0f}" for rate, _ in measured)
        ratio = statistics.median(rate for rate, _ in measured) / base
        steady = min(seconds for _, seconds in measured)
        print(
            f"{cluster.release:9} {payload:9} {name:18} {rates}   x{ratio:.2f} of aiokafka   ({steady:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
