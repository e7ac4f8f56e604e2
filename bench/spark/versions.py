# SPDX-License-Identifier: Apache-2.0
"""Comparison of two versions of the pipeline, side by side.

Usage: ``python -m bench.spark.versions --before COMMIT [--cases bronze-* audit]``.

The earlier version is extracted from git into a folder of its own, and its native kernel is built there. Both versions
do the same work in turns, round after round, each in its own session. Each works on files and tables that it has made
itself, since their formats may differ.

The first round is a warm-up and does not count. A figure is the median of the rounds. The ratio is that of the medians,
later version to earlier version. No results are written. The exit code is 1 if a ratio is below ``--least``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.machine import describe_machine, load
from bench.report import millions
from bench.spark.cases import CASES, Case, Work, Worker, select
from bench.spark.measuring import Effort, ProofDiffers, check, order_latest, order_of, scratch, topic
from bench.spark.session import Reading, Session
from bench.spark.works import Proof
from bench.versions import checked_out

_ROOT: Final = Path(__file__).resolve().parents[2]
_BEFORE: Final = "before"
_AFTER: Final = "after"
_WORKERS: Final = {
    Work.HASH: Worker.OURS,
    Work.PARQUET: Worker.OURS,
    Work.STREAM: Worker.OURS,
    Work.LANDED: Worker.BRONZE,
    Work.AUDIT: Worker.AUDIT,
    Work.LATEST: Worker.LATEST,
}
"""Kinds of work that two versions can be compared by, and the worker of each."""
_LAND: Final = """
import json, sys
from pathlib import Path
from bench.spark.landing import land
print(json.dumps(land(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
"""
_NAME: Final = """
import sys
from pathlib import Path
from bench.spark.landing import name
name(Path(sys.argv[1]), int(sys.argv[2]))
"""
_AUDIT: Final = """
import json, sys, time
from pathlib import Path
from bench.spark.landing import audit_names
began, worked = time.perf_counter(), time.process_time()
rows = audit_names(Path(sys.argv[1]))
print(json.dumps({"seconds": time.perf_counter() - began, "processor_s": time.process_time() - worked, "rows": rows}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of the pipeline.

    Attributes:
        name: ``before`` or ``after``.
        tree: its source tree.
        packages: folder that is first on the Python path of its sessions.
    """

    name: str
    tree: Path
    packages: Path


@dataclass(slots=True, kw_only=True)
class _Sessions:
    """A session of each version, started at its first use."""

    folder: Path
    end: ExitStack
    started: dict[str, Session] = field(default_factory=dict)

    def of(self, version: Version) -> Session:
        if version.name not in self.started:
            environment = os.environ | {"PYTHONPATH": str(version.packages)}
            session = Session(self.folder / f"session-{version.name}", {}, environment)
            self.started[version.name] = self.end.enter_context(session)
        return self.started[version.name]


def main() -> int:
    """Run the comparison and print its results; return the exit code."""
    args = _parse()
    effort = Effort(
        rounds=args.rounds,
        records=args.records,
        names=args.names,
        keys=args.keys,
        commits=0,
        files=0,
        holes=0,
    )
    print(f"{describe_machine()}; load {load()}", flush=True)
    slower = []
    with scratch() as folder, checked_out(args.before) as before, ExitStack() as end:
        # both use this version's bench; only the package consumerd is that of the earlier version
        packages = folder / "packages"
        packages.mkdir()
        (packages / "consumerd").symlink_to(before / "consumerd")
        versions = (
            Version(name=_BEFORE, tree=before, packages=packages),
            Version(name=_AFTER, tree=_ROOT, packages=_ROOT),
        )
        sessions = _Sessions(folder=folder, end=end)
        for case in _chosen(args.cases):
            print(f"\n{case.name}: {case.what}", flush=True)
            home = folder / case.name
            home.mkdir()
            with topic(effort.records) if case.of_a_topic else contextlib.nullcontext("") as bootstrap:
                readings = _measure(case, effort, home, versions, sessions, bootstrap)
            shutil.rmtree(home)
            ratio = compare(readings)
            verdict = "" if ratio >= args.least else f": LESS THAN {args.least:g}"
            print(f"  {case.name}: ratio {ratio:.2f}{verdict}; {_say(readings)}", flush=True)
            if ratio < args.least:
                slower.append(case.name)
    return 1 if slower else 0


def compare(readings: Mapping[str, Sequence[Reading]]) -> float:
    """Return the ratio of the median rates in rows/s, after to before."""
    before, after = (statistics.median(one.rows / one.seconds for one in readings[name]) for name in (_BEFORE, _AFTER))
    return after / before


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(case.name for case in CASES if case.work in _WORKERS)
    parser.add_argument("--before", required=True, metavar="COMMIT", help="the earlier version")
    parser.add_argument("--cases", nargs="+", default=["bronze-*", "audit"], metavar="NAME", help=f"some of {names}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=float, default=0.95, help="the least ratio that is no failure")
    parser.add_argument("--records", type=int, default=4_000_000, help="of a topic, or landed")
    parser.add_argument("--names", type=int, default=100_000, help="landed files for audit")
    parser.add_argument("--keys", type=int, default=10_000_000, help="keys for latest")
    args = parser.parse_args()
    try:
        _chosen(args.cases)
    except ValueError as error:
        parser.error(str(error))
    return args


def _chosen(patterns: Sequence[str]) -> tuple[Case, ...]:
    """Return the matching cases by which versions can be compared.

    Raises ValueError if there is none.
    """
    found = tuple(case for case in select(patterns) if case.work in _WORKERS)
    if not found:
        raise ValueError(f"no case of two versions is named {' '.join(patterns)}")
    return found


def _measure(
    case: Case, effort: Effort, home: Path, versions: Sequence[Version], sessions: _Sessions, bootstrap: str
) -> Mapping[str, Sequence[Reading]]:
    rows = {version.name: _prepare(case, effort, home / version.name, version, sessions) for version in versions}
    readings: dict[str, list[Reading]] = {version.name: [] for version in versions}
    proofs: dict[int, Proof] = {}
    # every second round runs in reverse order; the first one is a warm-up
    for number in range(effort.rounds + 1):
        for version in versions if number % 2 == 0 else reversed(versions):
            place = home / version.name
            if case.work is Work.AUDIT:
                reading = Reading(**json.loads(_run(version, _AUDIT, place / "landing")))
                if reading.rows != rows[version.name]:
                    raise ProofDiffers(f"{version.name} saw {reading.rows} files; there are {rows[version.name]}")
            else:
                worker = _WORKERS[case.work]
                reading, done = sessions.of(version).do(order_of(case, worker, place, bootstrap, effort))
                check(worker, done, rows[version.name], proofs)
                for path in place.glob("out*"):
                    shutil.rmtree(path)
            said = f"{millions(reading.rows / reading.seconds):>8} over {reading.seconds:.2f} s"
            print(f"    round {number}: {version.name:6} {said}, processor {reading.processor_s:.1f} s", flush=True)
            if number:
                readings[version.name].append(reading)
    return readings


def _prepare(case: Case, effort: Effort, place: Path, version: Version, sessions: _Sessions) -> int:
    """Create the input of a version; return the number of rows that it has."""
    place.mkdir()
    if case.work is Work.LANDED:
        different, _ = json.loads(_run(version, _LAND, place / "landing", case.payload, effort.records))
        return int(different)
    if case.work is Work.AUDIT:
        _run(version, _NAME, place / "landing", effort.names)
        return effort.names
    if case.work is Work.LATEST:
        sessions.of(version).do(order_latest("prepare", place, effort.keys))
        return effort.keys
    return effort.records


def _run(version: Version, code: str, *arguments: object) -> str:
    """Run Python code in a version's own tree and return its output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(version.tree)}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment, cwd=version.tree)
    return done.stdout


def _say(readings: Mapping[str, Sequence[Reading]]) -> str:
    def of(some: Sequence[Reading]) -> Iterator[str]:
        yield f"{millions(statistics.median(one.rows / one.seconds for one in some))} rows/s"
        yield f"processor {statistics.median(one.processor_s for one in some):.2f} s"
        yield f"rounds {' '.join(f'{one.seconds:.2f}' for one in some)} s"

    return "; ".join(f"{name} {', '.join(of(some))}" for name, some in readings.items())


if __name__ == "__main__":
    sys.exit(main())
