# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the data pipeline beside plain Spark: ``python -m bench.spark``.

A case is a piece of work and its workers: jobs and data sources of consumerd, and what Spark itself has for the same
work. The workers do it one at a time, in turns, in warm sessions: the first round is a warm-up and does not count. A
figure is the median of the rounds. The results of the work are compared, too, and the run fails if they differ.

The figures replace those of the same cases in docs/performance.md and docs/performance/spark.json. ``--quick`` only
checks that everything runs, and writes no results.
"""

from __future__ import annotations

import argparse
import signal
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from bench.machine import describe_machine, load, versions
from bench.report import put_between
from bench.results import Run, repeatable_command
from bench.spark import report
from bench.spark.cases import CASES, select
from bench.spark.measuring import Effort, measure
from tests.support.spark_kafka import RELEASE

_DOCS: Final = Path("docs")
_SIZES: Final = {
    "keys": ("keys for latest", 10_000_000, 20_000),
    "commits": ("commits of the long log", 1_000_000, 2_000),
    "files": ("landed files for memory", 100_000, 2_000),
    "holes": ("holes for memory", 1_000_000, 20_000),
}
"""Options for sizes of cases: text, value of a full run, value with ``--quick``."""


def main() -> None:
    """Measure the selected cases; print and write the results."""
    args = _parse()
    # SIGTERM raises SystemExit, so that brokers, sessions and folders are cleaned up
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run = Run(
        at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=repeatable_command("bench.spark", sys.argv[1:]),
        machine=describe_machine(),
        versions={**versions(), "pyspark": metadata.version("pyspark"), "pyspark of Spark's Kafka source": RELEASE},
        rounds=args.rounds,
        records=args.records,
        load=load(),
    )
    print(f"{run.machine}; load {run.load}", flush=True)
    kept = args.docs / "performance" / "spark.json" if args.docs else None
    results = report.load(kept) if kept else {}
    effort = Effort(
        rounds=args.rounds,
        records=args.records,
        names=args.names,
        keys=args.keys,
        commits=args.commits,
        files=args.files,
        holes=args.holes,
    )
    for case, (readings, failures) in measure(select(args.cases), effort):
        results[case.name] = report.Measured(run=run, readings=readings, failures=failures)
        for row in report.rows_of(case, results[case.name]):
            verdict = {True: "met", False: "NOT MET", None: ""}[row.met]
            print(f"  {row.work}: {row.figure.replace('**', '')}; aimed at: {row.target}: {verdict}", flush=True)
        if kept:
            report.save(results, kept)
            page = args.docs / "performance.md"
            page.write_text(put_between(page.read_text(), report.document(results), report.BEGIN))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(case.name for case in CASES)
    parser.add_argument(
        "--cases", nargs="+", default=["*"], metavar="NAME", help=f"some of {names}; * and ? as in a shell"
    )
    parser.add_argument("--rounds", type=int, help="5, or 1 with --quick")
    parser.add_argument("--records", type=int, help="4000000, or 200000 with --quick")
    parser.add_argument("--names", type=int, help="landed files for audit: 100000, or 10000 with --quick")
    for name, (what, full, quick) in _SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"{what}: {full}, or {quick} with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, whose figures are worth nothing")
    parser.add_argument("--docs", type=Path, help=f"where performance.md is: {_DOCS}, or none with --quick")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.records = args.records or (200_000 if args.quick else 4_000_000)
    args.names = args.names or (10_000 if args.quick else 100_000)
    for name, (_, full, quick) in _SIZES.items():
        setattr(args, name, getattr(args, name) or (quick if args.quick else full))
    if args.docs is None and not args.quick:
        args.docs = _DOCS
    try:
        select(args.cases)
    except ValueError as error:
        parser.error(str(error))
    return args


if __name__ == "__main__":
    main()
