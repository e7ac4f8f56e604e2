# SPDX-License-Identifier: Apache-2.0
"""The data pipeline beside Spark's own ways, in one run on this machine: ``python -m bench.spark``.

Everybody does the same work in turns, each alone but for the broker, in sessions that are warm: a first round does not
count. A figure is the median of the rounds; what came of the work is compared as well, and a difference fails the run. What
was measured replaces what docs/performance.md and docs/performance/spark.json had of these cases. ``--quick`` only shows
that everything runs, and writes nothing.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from bench.machine import describe_machine, load, versions
from bench.report import put_between
from bench.results import Run
from bench.spark import report
from bench.spark.cases import CASES, select
from bench.spark.measuring import Effort, measure
from tests.support.spark_kafka import RELEASE

_DOCS: Final = Path("docs")
_SIZES: Final = {
    "keys": ("keys for latest", 10_000_000, 20_000),
    "commits": ("commits of the long log", 30_000, 2_000),
    "files": ("landed files for memory", 100_000, 2_000),
    "holes": ("holes for memory", 1_000_000, 20_000),
}
"""Sizes of cases: of what, in full, and with ``--quick``."""


def main() -> None:
    """Measure, print, write."""
    args = _parse()
    # brokers, sessions and folders go with whoever ends this
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run = Run(
        at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["python", "-m", "bench.spark", *sys.argv[1:]]),
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
