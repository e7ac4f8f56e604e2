# SPDX-License-Identifier: Apache-2.0
"""Comparison of two versions of the daemon, side by side.

Usage: ``python -m bench.versions --before COMMIT [--cases 1.1.1-none-json latency idle]``.

The earlier version is extracted from git into a folder of its own, and its native kernel is built there. Both versions
read the same topics of one broker in turns, round after round. Sizes, marks and slopes are those of ``python -m
bench``.

A figure is the median of the rounds. The ratio is that of the medians, later version to earlier version. Also printed
are records per second of the reader's CPU time, which other work on the machine changes less. No results are written.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.__main__ import SPARE, cluster_of
from bench.cases import Case, Part, Reader, select
from bench.filling import fill
from bench.idle import crowded_cluster, measure_idle
from bench.latency import measure_latency
from bench.machine import describe_machine, load
from bench.measuring import LIMIT_S, Reading, read_once
from bench.readers.daemon import null_sink, parquet_sink
from bench.readers.running import ReaderFailed, Source, Starter
from bench.report import describe, millions
from bench.slopes import Marks, TooFewRecords
from tests.support.kafka import Cluster

_ROOT: Final = Path(__file__).resolve().parents[1]
_BEFORE, _AFTER = "before", "after"
_DEFAULT: Final = ("*-none-repeated", "*-json", "latency", "idle")
_IDLE_TOPICS, _IDLE_PARTITIONS = 100, 100


def main() -> None:
    """Run the comparison and print its results."""
    args = _parse()
    cases, parts = select(args.cases)
    print(f"{describe_machine()}; load {load()}", flush=True)
    with checked_out(args.before) as before:
        packages = {_BEFORE: before, _AFTER: _ROOT}
        for name, package in packages.items():
            print(f"{name}: {_commit(args.before if name == _BEFORE else 'HEAD')}, {_version(package)}", flush=True)
        for case in cases:
            with cluster_of(case.filling.release) as cluster:
                compare_case(cluster, case, packages, args)
        if Part.LATENCY in parts:
            compare_latency(packages, args.rounds)
        if Part.IDLE in parts:
            compare_idle(packages, args.idle_rounds)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.versions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, metavar="COMMIT", help="the earlier version")
    parser.add_argument("--cases", nargs="+", default=list(_DEFAULT), metavar="NAME", help="as of python -m bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle-rounds", type=int, default=2)
    parser.add_argument("--records", type=int, default=16_000_000, help="the upper mark")
    args = parser.parse_args()
    try:
        select(args.cases)
    except ValueError as error:
        parser.error(str(error))
    return args


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Extract the package of a commit into a temporary folder and build its native kernel.

    Yields the folder. Raises CalledProcessError.
    """
    command = ["git", "-C", str(_ROOT), "archive", "--format=tar", commit]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="consumerd-before-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=folder, check=True)
        yield Path(folder)


def _commit(commit: str) -> str:
    command = ["git", "-C", str(_ROOT), "log", "-1", "--format=%h of %cs", commit]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def _version(package: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "consumerd", "version"]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment, cwd=package)
    return next(line for line in done.stdout.splitlines() if line.startswith("kernel:"))


def compare_case(cluster: Cluster, case: Case, packages: Mapping[str, Path], args: argparse.Namespace) -> None:
    """Measure both versions on the topic of a case, in turns.

    Only those readers of the case that run the daemon take part.
    """
    marks = Marks(low=args.records // 4, high=args.records).shrunk(case.filling.fewer)
    print(f"\n{case.name}: {describe(case)}", flush=True)
    records = fill(cluster, case.filling, int(marks.high * SPARE))
    source = Source(cluster=cluster, topic=case.filling.topic, records=records)
    try:
        for reader in case.readers:
            starters = {name: start for name, package in packages.items() if (start := _starter(reader, package))}
            if starters:
                _say(str(reader), take_turns(starters, source, marks, args.rounds))
    finally:
        cluster.delete_topic(source.topic)


def _starter(reader: Reader, package: Path) -> Starter | None:
    """Return a starter for the daemon of ``package`` as this reader; None for a peer."""
    environment = {"PYTHONPATH": str(package)}
    if reader is Reader.DAEMON:
        return null_sink(environment)
    if reader is Reader.PARQUET:
        return parquet_sink({}, environment)
    return None


def take_turns(starters: Mapping[str, Starter], source: Source, marks: Marks, rounds: int) -> dict[str, list[Reading]]:
    """Return the readings of each version, round by round.

    Every second round runs in reverse order.
    """
    readings: dict[str, list[Reading]] = {name: [] for name in starters}
    for number in range(rounds):
        for name in starters if number % 2 == 0 else reversed(list(starters)):
            try:
                reading = read_once(starters[name], source, marks, LIMIT_S)
            except (ReaderFailed, TooFewRecords) as error:
                print(f"  {name}, round {number + 1}: {error}", flush=True)
            else:
                readings[name].append(reading)
    return readings


def _say(what: str, readings: Mapping[str, Sequence[Reading]]) -> None:
    _say_rates(what, {name: [one.records_per_s for one in some] for name, some in readings.items()})
    of_processor = {
        name: [one.records_per_s / one.reader_cores for one in some if one.reader_cores]
        for name, some in readings.items()
    }
    _say_rates(f"{what}, a second of its processor time", of_processor)


def _say_rates(what: str, rates: Mapping[str, Sequence[float]]) -> None:
    medians = {name: statistics.median(some) for name, some in rates.items() if some}
    ratio = f"{medians[_AFTER] / medians[_BEFORE]:.2f}" if len(medians) == 2 else "unknown"
    each = "; ".join(f"{name} {millions(medians[name])} ({' '.join(map(millions, rates[name]))})" for name in medians)
    print(f"  {what}: ratio {ratio}; {each}", flush=True)


def compare_latency(packages: Mapping[str, Path], rounds: int) -> None:
    """Measure the latency of both versions from the producer to the sink, in turns."""
    with Cluster("1.1.1", heap="1g", brisk=False) as cluster:
        for partitions in (1, 8):
            found = measure_latency(cluster, partitions, rate=1000.0, rounds=rounds, seconds=10.0, packages=packages)
            for name, some in found.items():
                middle, late = (
                    statistics.median(values)
                    for values in zip(*((one.median_ms, one.p99_ms) for one in some), strict=True)
                )
                share = statistics.median(one.core_share for one in some)
                print(
                    f"  latency, {partitions} partitions, {name}: p50 {middle:.2f} ms, p99 {late:.2f} ms, "
                    f"{100 * share:.0f} % of a core",
                    flush=True,
                )


def compare_idle(packages: Mapping[str, Path], rounds: int) -> None:
    """Measure the cost of ten thousand idle partitions for both versions, in turns."""
    with crowded_cluster("1.1.1", _IDLE_TOPICS, _IDLE_PARTITIONS) as cluster:
        for _ in range(rounds):
            for name, package in packages.items():
                found = measure_idle(
                    cluster, _IDLE_TOPICS, _IDLE_PARTITIONS, seconds=60.0, profile=None, package=package
                )
                print(f"  idle, {name}: {found}", flush=True)


if __name__ == "__main__":
    main()
