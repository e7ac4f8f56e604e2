# SPDX-License-Identifier: Apache-2.0
"""Cost of the daemon while no records arrive.

Usage: ``python -m bench.idle [--release 1.1.1] [--topics 100] [--partitions 100]``.

One broker leads ``--topics`` times ``--partitions`` partitions without any producer. One daemon with the null sink and
its default settings owns them all. Printed are:

- the time from the start of its process until it owns all partitions, and until a broker has answered for all of them;
- then, over ``--seconds`` without any scrape of its metrics: its share of one core, its resident memory, and its broker
  requests per second by API.

``--profile`` adds a profile by py-spy, whose sampling changes the share a little. The broker shares the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.readers.running import processor_s
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import RELEASES, Cluster
from tests.support.topic_nodes import BROKER_ID, connected
from tests.support.waiting import wait_until

BROKER_SETTINGS: Final = {
    "log.index.size.max.bytes": "4096",
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": "3600000",
    "group.max.session.timeout.ms": "300000",
    "zookeeper.session.timeout.ms": "60000",
}
"""Settings for ten thousand partitions: small memory-mapped indexes, long timeouts, no work done for each partition."""

_STARTS_WITHIN_S: Final = 300.0
_REQUESTS: Final = "consumerd_broker_request_seconds_count"
_HIGH_WATERMARK: Final = "consumerd_high_watermark_offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Result of one measurement.

    Attributes:
        partitions: number of partitions that the daemon owns.
        claimed_s: time from the start of the process until it owned all partitions.
        answered_s: time from the start of the process until a broker had answered for all partitions.
        core_share: CPU time as a fraction of one core.
        resident_mib: resident memory at the end.
        peak_mib: highest resident memory since the start of the process.
        requests_per_s: rate of broker requests, by API.
    """

    partitions: int = 0
    claimed_s: float = 0.0
    answered_s: float = 0.0
    core_share: float
    resident_mib: float
    peak_mib: float
    requests_per_s: Mapping[str, float]

    def __str__(self) -> str:
        asked = ", ".join(f"{api} {rate:.2f}" for api, rate in sorted(self.requests_per_s.items()))
        return (
            f"{self.partitions} partitions: claimed after {self.claimed_s:.1f} s, all answered for after "
            f"{self.answered_s:.1f} s; {100 * self.core_share:.1f} % of a core, {self.resident_mib:.0f} MiB resident "
            f"(at most {self.peak_mib:.0f}); requests/s: {asked}"
        )


@contextmanager
def crowded_cluster(release: str, topics: int, partitions: int) -> Iterator[Cluster]:
    """Start a broker that leads ``topics`` topics of ``partitions`` partitions each.

    The context manager yields when the broker has created the logs of all partitions.
    """
    _raise_file_limit()
    with Cluster(release, heap="2g", properties=BROKER_SETTINGS, brisk=False) as cluster:
        assigned = {str(number): [BROKER_ID] for number in range(partitions)}
        node = json.dumps({"version": 1, "partitions": assigned}).encode()
        with connected(cluster.zookeeper) as client:
            for topic in topic_names(topics):
                client.create(f"/brokers/topics/{topic}", node)
        logs = cluster.directory / f"log-{BROKER_ID}"
        wait_until(
            lambda: sum(one.name.startswith("idle-") for one in logs.iterdir()) == topics * partitions,
            "the logs of all partitions",
            _STARTS_WITHIN_S,
            interval_s=1.0,
        )
        yield cluster


def topic_names(topics: int) -> tuple[str, ...]:
    """Return the names of the topics, ``idle-`` and a checksum, as different as real names.

    Numbered names would collide in the hash table of a broker's fetch session (up to 1.1 at least). With any client, it
    then takes minutes to start a session of ten thousand partitions.
    """
    return tuple(f"idle-{zlib.crc32(b'%d' % number):08x}" for number in range(topics))


def _raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit; child processes inherit it.

    A broker keeps the log of each partition open.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measure_idle(
    cluster: Cluster, topics: int, partitions: int, *, seconds: float, profile: Path | None, package: Path | None = None
) -> Idle:
    """Run one daemon that owns all partitions, and measure it when its load is stable.

    Args:
        seconds: length of the measurement.
        profile: file for py-spy's raw output; None for no profile.
        package: folder of another version of consumerd; None for this one.

    Raises DaemonFailed.
    """
    total = topics * partitions
    folder = Path(tempfile.mkdtemp(prefix="consumerd-bench-"))
    settings = settings_for(
        cluster.zookeeper, "bench-idle", topics=topic_names(topics), sink={"type": "null"},
        log={"level": "info"}, offsets={"commit_interval_ms": 5000},
    )  # fmt: skip
    try:
        began = time.monotonic()
        path = () if package is None else (str(package),)
        with Daemon(folder, "daemon", settings, python_path=path) as daemon:
            daemon.wait(
                lambda: sum(one["gained"] for one in daemon.events("rebalance_finished")) >= total,
                "all claimed",
                _STARTS_WITHIN_S,
            )
            claimed_s = time.monotonic() - began
            daemon.wait(lambda: _count_known(_scrape(daemon)) >= total, "all answered for", _STARTS_WITHIN_S)
            answered_s = time.monotonic() - began
            wait_until(_Calm(daemon.process.pid), "a calm daemon", _STARTS_WITHIN_S, interval_s=2.0)
            reading = _watch(daemon, seconds, profile)
            daemon.terminate(120)
        return replace(reading, partitions=total, claimed_s=claimed_s, answered_s=answered_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Calm:
    """Condition that a process's CPU share is stable.

    It is when the shares of the last three intervals differ by less than 5 % of a core.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._shares: list[float] = []
        self._before = time.monotonic(), processor_s(pid)

    def __call__(self) -> bool:
        (then, had), self._before = self._before, (time.monotonic(), processor_s(self._pid))
        if self._before[0] - then > 1.0:
            self._shares.append((self._before[1] - had) / (self._before[0] - then))
        last = self._shares[-3:]
        return len(last) == 3 and max(last) - min(last) < 0.05


def _watch(daemon: Daemon, seconds: float, profile: Path | None) -> Idle:
    pid = daemon.process.pid
    before = _count_requests(_scrape(daemon))
    time.sleep(2.0)  # the scrape above returns thousands of series; let the daemon become idle again
    sampler = _start_sampler(pid, seconds, profile)
    began, had = time.monotonic(), processor_s(pid)
    time.sleep(seconds)
    passed, taken = time.monotonic() - began, processor_s(pid) - had
    resident = _memory_mib(pid, "VmRSS")
    if sampler is not None:
        sampler.wait(60)
    after = _count_requests(_scrape(daemon))
    return Idle(
        core_share=taken / passed,
        resident_mib=resident,
        peak_mib=_memory_mib(pid, "VmHWM"),
        requests_per_s={api: (count - before[api]) / (passed + 2.0) for api, count in after.items()},
    )


def _start_sampler(pid: int, seconds: float, profile: Path | None) -> subprocess.Popen[bytes] | None:
    if profile is None:
        return None
    program = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    command = [program, "record", "--pid", str(pid), "--duration", str(int(seconds)), "--rate", "200"]
    return subprocess.Popen(
        [*command, "--format", "raw", "--output", str(profile)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def show_profile(path: Path, lines: int = 40) -> str:
    """Return a table of the functions in py-spy's raw output, by inclusive share of samples."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [frame.rpartition(":")[0] for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        for frame in set(frames):
            whole[frame] += int(count)
    total = max(1, sum(own.values()))
    rows = [f"{'whole':>7} {'own':>6}  of {total} samples"]
    rows += [
        f"{100 * count / total:6.1f}% {100 * own[name] / total:5.1f}%  {name}"
        for name, count in whole.most_common(lines)
    ]
    return "\n".join(rows)


def _scrape(daemon: Daemon) -> str:
    with urllib.request.urlopen(daemon.url + "/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def _count_known(text: str) -> int:
    """Return the number of partitions for which a broker has answered."""
    return sum(line.startswith(_HIGH_WATERMARK + "{") and not line.endswith("NaN") for line in text.splitlines())


def _count_requests(text: str) -> Counter[str]:
    """Return the number of requests answered so far, by API."""
    lines = (line for line in text.splitlines() if line.startswith(_REQUESTS + "{"))
    return Counter({line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in lines})


def _memory_mib(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=RELEASES, nargs="+", default=["1.1.1"])
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile", type=Path, help="where the sampler's output goes (needs py-spy)")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}", flush=True)
    for release in args.release:
        with crowded_cluster(release, args.topics, args.partitions) as cluster:
            for _ in range(args.rounds):
                found = measure_idle(cluster, args.topics, args.partitions, seconds=args.seconds, profile=args.profile)
                print(f"Kafka {release}, {found}", flush=True)
                if args.profile is not None:
                    print(show_profile(args.profile), flush=True)


if __name__ == "__main__":
    main()
