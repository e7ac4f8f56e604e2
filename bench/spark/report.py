# SPDX-License-Identifier: Apache-2.0
"""Figures of the pipeline, as Markdown and as the JSON stored beside the page."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.report import as_item, describe_origin, millions, table
from bench.results import Row, Run
from bench.slopes import spread_of
from bench.spark.cases import CASES, Case, Target, Work, Worker
from bench.spark.session import Reading

MIB: Final = 1 << 20
BEGIN: Final = "<!-- written by python -m bench.spark, from here -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Readings of a case by worker, their run, and texts of what failed.

    The readings of a worker are in the order of the rounds.
    """

    run: Run
    readings: Mapping[Worker, Sequence[Reading]]
    failures: Sequence[str] = field(default=())


def rows_of(case: Case, measured: Measured) -> list[Row]:
    """Return a row for each target that has readings."""
    found = (_row(case, target, measured.readings) for target in case.targets)
    return [row for row in found if row is not None]


def _row(case: Case, target: Target, readings: Mapping[Worker, Sequence[Reading]]) -> Row | None:
    ours = readings.get(target.worker, ())
    peers = readings.get(target.peer, ()) if target.peer else ()
    if not ours or (target.peer and not peers):
        return None
    work = f"{case.what}: {target.worker}"
    if target.times is not None:
        return _compare(work, f"{target.times:g} times {target.peer}", _rates(ours), _rates(peers), least=target.times)
    if target.cpu is not None:
        text = f"at most {target.cpu:g} times the processor time of a {target.peer}"
        return _compare(work, text, _processor(ours), _processor(peers), most=target.cpu)
    if target.seconds is not None:
        took = spread_of([reading.seconds for reading in ours])
        figure = f"**{took.median:.2f} s** ({took.least:.2f} to {took.most:.2f})"
        return Row(work=work, target=f"at most {target.seconds:g} s", figure=figure, met=took.median <= target.seconds)
    if target.size is not None:
        sizes = spread_of([reading.size / MIB for reading in ours if reading.size is not None])
        figure = f"**{sizes.median:.1f} MiB** ({sizes.least:.1f} to {sizes.most:.1f})"
        met = sizes.most * MIB <= target.size  # the largest value counts: one reading over the limit is a failure
        return Row(work=work, target=f"at most {target.size / MIB:.1f} MiB", figure=figure, met=met)
    assert target.rows_per_s is not None
    rate = spread_of(_rates(ours))
    figure = f"**{millions(rate.median)}** ({millions(rate.least)} to {millions(rate.most)})"
    return Row(
        work=work,
        target=f"{millions(target.rows_per_s)} rows/s",
        figure=figure,
        met=rate.median >= target.rows_per_s,
    )


def _compare(
    work: str,
    target: str,
    ours: Sequence[float],
    peers: Sequence[float],
    *,
    least: float | None = None,
    most: float | None = None,
) -> Row:
    ratio = statistics.median(ours) / statistics.median(peers)
    rounds = spread_of([one / other for one, other in zip(ours, peers, strict=False)])
    met = (least is None or ratio >= least) and (most is None or ratio <= most)
    figure = f"**{ratio:.2f}** ({rounds.least:.2f} to {rounds.most:.2f})"
    return Row(work=work, target=target, figure=figure, met=met)


def _rates(readings: Sequence[Reading]) -> list[float]:
    return [reading.rows / reading.seconds for reading in readings]


def _processor(readings: Sequence[Reading]) -> list[float]:
    """Return the CPU time in seconds per million rows."""
    return [reading.processor_s / reading.rows * 1e6 for reading in readings]


def document(results: Mapping[str, Measured]) -> str:
    """Return everything between the markers of the page."""
    targets, rates = [], []
    for case, measured in _known(results):
        origin = describe_origin(measured.run)
        for row in rows_of(case, measured):
            met = {True: "yes", False: "**no**", None: ""}[row.met]
            command = f"`python -m bench.spark --cases {case.name}`"
            targets.append((row.work, row.target, row.figure, met, origin, command))
        for worker, readings in measured.readings.items():
            if readings and case.work not in (Work.LOG, Work.MEMORY):
                rates.append((case.what, worker, *_cells(readings), origin))
    aims = ("work", "at least, unless it says at most", "measured", "met", "date and commit", "command")
    heads = ("work", "who", "rows/s, median", "least to most", "rounds", "processor, s for a million rows")
    return f"{table(aims, targets)}\n{table((*heads, 'date and commit'), rates)}\n{_runs(results)}"


def _cells(readings: Sequence[Reading]) -> tuple[str, ...]:
    spread = spread_of(_rates(readings))
    processor = statistics.median(_processor(readings))
    ends = f"{millions(spread.least)} to {millions(spread.most)}"
    return millions(spread.median), ends, str(spread.rounds), f"{processor:.2f}"


def _known(results: Mapping[str, Measured]) -> Iterator[tuple[Case, Measured]]:
    for case in CASES:
        if case.name in results:
            yield case, results[case.name]


def _runs(results: Mapping[str, Measured]) -> str:
    text = ""
    named: dict[str, tuple[Run, list[str]]] = {}
    for name, measured in results.items():
        named.setdefault(measured.run.at, (measured.run, []))[1].append(name)
    for run, names in named.values():
        software = ", ".join(f"{one} {version}" for one, version in run.versions.items())
        text += as_item(
            f"{run.at}, `{run.command}`: {run.rounds} rounds, {millions(run.records)} records. {run.machine}; load "
            f"before it {run.load}. {software}. It measured: {', '.join(names)}."
        )
    failures = [failure for measured in results.values() for failure in measured.failures]
    return text + "".join(as_item(f"Failed: {failure}") for failure in failures)


def save(results: Mapping[str, Measured], path: Path) -> None:
    """Write the results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: asdict(measured) for name, measured in results.items()}, indent=1) + "\n")


def load(path: Path) -> dict[str, Measured]:
    """Read what :func:`save` wrote; return no results if there is no such file."""
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(path.read_text())
    return {name: _measured(one) for name, one in data.items()}


def _measured(data: Mapping[str, Any]) -> Measured:
    readings = {Worker(name): tuple(Reading(**one) for one in those) for name, those in data["readings"].items()}
    return Measured(run=Run(**data["run"]), readings=readings, failures=tuple(data["failures"]))
