# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the daemon beside its peers: ``python -m bench`` (``make bench``).

A case is one topic and the readers that consume it. The readers run one at a time, in turns, round after round. Each
reads the topic from its first offset; the broker runs on the same cores.

A reading's rate, in records/s, is measured between two record counts (marks): a quarter of ``--records``, and
``--records``. Start-up and warm-up come before the lower mark and do not count (see ``bench.slopes``). A figure in the
tables is the median of the rounds.

A full run rewrites docs/performance.md (the tables between its markers), the plot and results.json. With ``--cases``,
only the results of these cases are replaced. ``--quick`` only checks that everything runs, and writes no results.

``python -m bench --profile CASE`` shows how the time that the daemon spends on a record divides into stages.
``python -m bench.decode``, ``bench.sinks``, ``bench.log``, ``bench.produce``, ``bench.broker``, ``bench.legacy``,
``bench.legacy_java``, ``bench.mirror`` and ``bench.mirror_peers`` measure single parts.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from bench import plot, report
from bench.cases import CASES, Case, Part, Reader, select
from bench.filling import fill
from bench.machine import describe_machine, load, versions
from bench.measuring import LIMIT_S, Measured, Reading, take_rounds
from bench.parts import PARTS, Effort
from bench.peers import STARTERS
from bench.profiling import profile_case
from bench.readers.running import Source
from bench.results import Results, Row, Run, load_results, repeatable_command
from bench.slopes import Marks
from tests.support.kafka import Cluster

BROKER_SETTINGS: Final = {
    "log.segment.bytes": "1073741824",
    "log.segment.delete.delay.ms": "1000",
    "log.retention.check.interval.ms": "300000",
    "log.cleaner.backoff.ms": "15000",
}
"""Kafka's default values, some of which the test cluster shortens. Only deleted topics go sooner: after 1 s."""

SPARE: Final = 1.25
"""Records in a topic, as a multiple of the upper mark. No reader reaches the end of the topic while it is measured."""

_DOCS: Final = Path("docs")


def main() -> None:
    """Measure the selected cases and parts; print and write the results."""
    args = _parse()
    if args.profile:
        profile_case(next(case for case in CASES if case.name == args.profile), args.records, cluster_of)
        return
    cases, parts = select(args.cases)
    run = Run(
        at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=repeatable_command("bench", sys.argv[1:]),
        machine=describe_machine(),
        versions=versions(),
        rounds=args.rounds,
        records=args.records,
        load=load(),
    )
    print(
        f"{run.machine}; load {run.load}\n{', '.join(f'{name} {one}' for name, one in run.versions.items())}",
        flush=True,
    )
    results = load_results(args.docs / "performance" / "results.json") if args.docs else Results()
    try:
        for name, measured, rows in _measure(cases, parts, args):
            results.add(run, measured=(measured,) if measured else (), rows={} if measured else {name: rows})
            report.print_rows(rows)
    finally:
        # a full run takes an hour: keep what was measured before a failure
        if args.docs:
            _write(results, args.docs)


def _write(results: Results, docs: Path) -> None:
    """Write the results, the plot and the page."""
    results.save(docs / "performance" / "results.json")
    drawn = plot.draw(results, docs / "performance" / "rates.png")
    page = docs / "performance.md"
    written = report.document(results, "performance/rates.png" if drawn else None)
    page.write_text(report.put_between(page.read_text(), written))


def cluster_of(release: str) -> Cluster:
    """Return a cluster of one broker of a Kafka release, not started yet."""
    return Cluster(release, heap="1g", properties=BROKER_SETTINGS, brisk=False)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", nargs="+", default=["*"], metavar="NAME", help="names as in the tables; * and ? as in a shell"
    )
    parser.add_argument("--readers", nargs="+", default=["*"], metavar="NAME", help="only these of a case's readers")
    parser.add_argument("--rounds", type=int, help="5, or 2 with --quick")
    parser.add_argument("--records", type=int, help="the upper mark: 16000000, or 1000000 with --quick")
    parser.add_argument("--limit", type=float, help=f"seconds for whoever is slow: {LIMIT_S:g}, or 3 with --quick")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds, whose figures are worth nothing"
    )
    parser.add_argument("--docs", type=Path, help=f"where performance.md is: {_DOCS}, or none with --quick")
    parser.add_argument(
        "--profile", choices=[case.name for case in CASES], metavar="CASE", help="where the time of a record goes"
    )
    args = parser.parse_args()
    args.rounds = args.rounds or (2 if args.quick else 5)
    args.records = args.records or (1_000_000 if args.quick else 16_000_000)
    args.limit = args.limit or (3.0 if args.quick else LIMIT_S)
    if args.docs is None and not args.quick:
        args.docs = _DOCS
    try:
        select(args.cases)
    except ValueError as error:
        parser.error(str(error))
    return args


def _measure(
    cases: Sequence[Case], parts: Sequence[Part], args: argparse.Namespace
) -> Iterator[tuple[str, Measured | None, list[Row]]]:
    """Yield each case or part: name, readings (None for a part), rows of the report."""
    for release, of_release in itertools.groupby(cases, lambda case: case.filling.release):
        with cluster_of(release) as cluster:
            for case in of_release:
                measured = _measure_case(cluster, case, args)
                yield case.name, measured, report.rows_of(case, measured)
    for part in parts:
        print(f"\n{part}", flush=True)
        yield part, None, PARTS[part](Effort(rounds=args.rounds, quick=args.quick))


def _measure_case(cluster: Cluster, case: Case, args: argparse.Namespace) -> Measured:
    marks = Marks(low=args.records // 4, high=args.records).shrunk(case.filling.fewer)
    readers = [one for one in case.readers if any(fnmatchcase(one, pattern) for pattern in args.readers)]
    print(f"\n{case.name}: {report.describe(case)}; filling", end="", flush=True)
    records = fill(cluster, case.filling, int(marks.high * SPARE))
    print(f", {records} records", flush=True)
    source = Source(cluster=cluster, topic=case.filling.topic, records=records)
    try:
        measured = take_rounds(
            case, readers, STARTERS, source, marks, rounds=args.rounds, limit_s=args.limit, told=_print_reading
        )
    finally:
        cluster.delete_topic(source.topic)
    for reader in readers:
        if rates := measured.rates(reader):
            each = " ".join(report.millions(rate) for rate in rates)
            print(f"  {reader:24} median {report.millions(statistics.median(rates)):>8}   {each}", flush=True)
    return measured


def _print_reading(number: int, reader: Reader, reading: Reading | str) -> None:
    said = (
        reading
        if isinstance(reading, str)
        else f"{report.millions(reading.records_per_s)} over {reading.seconds:.2f} s"
    )
    print(f"    round {number + 1}: {reader:24} {said}", flush=True)


if __name__ == "__main__":
    main()
