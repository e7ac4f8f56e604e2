# SPDX-License-Identifier: Apache-2.0
"""Results as Markdown: figures with their targets, rates of all readers, and the runs."""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from bench.cases import CASES, Case, Part, Target
from bench.measuring import Measured, Reading
from bench.results import Results, Row, Run
from bench.slopes import spread_of

BEGIN: Final = "<!-- written by python -m bench, from here -->"
END: Final = "<!-- to here -->"
_WIDTH: Final = 118
"""Longest line of prose, in columns. Pages may have 120."""


def rows_of(case: Case, measured: Measured) -> list[Row]:
    """Return a row for each target whose readers were measured."""
    rows = []
    for target in case.targets:
        rates = measured.rates(target.reader)
        peers = measured.rates(target.peer) if target.peer else []
        if rates and (peers or target.peer is None):
            rows.append(_row(case, target, rates, peers))
    return rows


def _row(case: Case, target: Target, rates: Sequence[float], peers: Sequence[float]) -> Row:
    work = f"{describe(case)}: {target.reader}"
    median = statistics.median(rates)
    if target.peer is None:
        return Row(
            work=work,
            target=f"{millions(target.records_per_s)} records/s",
            figure=f"**{millions(median)}** ({millions(min(rates))} to {millions(max(rates))})",
            met=median >= target.records_per_s,
        )
    ratio = median / statistics.median(peers)
    by_round = spread_of([ours / theirs for ours, theirs in zip(rates, peers, strict=False)])
    return Row(
        work=work,
        target=f"{target.times:g} times the {target.peer}"
        if "Java" in target.peer
        else f"{target.times:g} times {target.peer}",
        figure=f"**{ratio:.2f}** ({by_round.least:.2f} to {by_round.most:.2f}): "
        f"{millions(median)} and {millions(statistics.median(peers))}",
        met=ratio >= target.times,
    )


def describe(case: Case) -> str:
    """Return the description of a case in words."""
    codec = "uncompressed" if case.filling.codec == "none" else case.filling.codec
    return f"{case.filling.release}, {codec}, {case.filling.values}"


def millions(rate: float) -> str:
    """Return a rate as text: in millions, or in thousands below 100,000 records/s."""
    if rate >= 1e5:
        return f"{rate / 1e6:.2f} M"
    return f"{rate / 1e3:.1f} k"


def compare(work: str, ours: Sequence[float], theirs: Sequence[float], peer: str, least: float | None) -> Row:
    """Return the row that compares our rates with those of a peer.

    Its ratio is the median of the ratios of the rounds.

    Args:
        work: text of the row.
        ours: our rates in records/s, round by round.
        theirs: rates of the peer, of the same rounds.
        peer: name of the peer, for the text of the target.
        least: ratio to reach; None if there is no target.
    """
    ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    return Row(
        work=work,
        target=peer if least is None else f"{least:g} times {peer}",
        figure=f"**{ratio:.2f}** ({min(ratios):.2f} to {max(ratios):.2f}): "
        f"{millions(statistics.median(ours))} and {millions(statistics.median(theirs))}",
        met=None if least is None else ratio >= least,
    )


def print_rows(rows: Iterable[Row]) -> None:
    """Print figures beside their targets."""
    for row in rows:
        target = f"; aimed at: {row.target}" if row.target else ""
        verdict = {True: ": met", False: ": NOT MET", None: ""}[row.met]
        print(f"  {row.work}: {row.figure.replace('**', '')}{target}{verdict}", flush=True)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def targets_table(results: Results) -> str:
    """Return the table of figures and targets, each with the command that measures it again."""
    lines = []
    for name, rows in all_rows(results):
        verdict = {True: "yes", False: "**no**", None: ""}
        origin = describe_origin(results.runs[results.run_of[name]])
        lines += [
            (row.work, row.target, row.figure, verdict[row.met], origin, f"`{command_for(name)}`") for row in rows
        ]
    return table(("work", "at least (at most, where time is)", "measured", "met", "date and commit", "command"), lines)


def describe_origin(run: Run) -> str:
    """Return the date of a run and the commit that it measured.

    If the tree had uncommitted changes, the text says ``and changes``: the commit alone is not what was measured.
    """
    version = run.versions.get("consumerd", "")
    commit = re.search(r"\((\w+?)(-dirty)?\)", version)
    shown = f"`{commit[1]}`{' and changes' if commit[2] else ''}" if commit else version or "?"
    return f"{run.at.partition(' ')[0]}, {shown}"


def all_rows(results: Results) -> list[tuple[str, list[Row]]]:
    """Return the rows of all cases and parts, in the order of their declarations."""
    found = [(case.name, rows_of(case, results.measured[case.name])) for case in CASES if case.name in results.measured]
    return found + [(part.value, results.rows[part]) for part in Part if part in results.rows]


def command_for(name: str) -> str:
    """Return the command that measures a case or part."""
    return f"python -m bench --cases {name}"


def rates_table(results: Results) -> str:
    """Return the table of the rates of all readers, case by case."""
    lines = []
    for case in CASES:
        measured = results.measured.get(case.name)
        for reader in case.readers if measured else ():
            readings = measured.readings.get(reader, ()) if measured else ()
            if readings:
                origin = describe_origin(results.runs[results.run_of[case.name]])
                lines.append((describe(case), reader, *_rate_cells(readings), origin))
    heads = ("topic", "reader", "records/s, median", "least to most", "rounds", "between", "cores: reader, broker")
    return table((*heads, "date and commit"), lines)


def _rate_cells(readings: Sequence[Reading]) -> tuple[str, ...]:
    spread = spread_of([reading.records_per_s for reading in readings])
    low, high = (statistics.median(values) for values in zip(*((one.low, one.high) for one in readings), strict=True))
    return (
        millions(spread.median),
        f"{millions(spread.least)} to {millions(spread.most)}",
        str(spread.rounds),
        f"{millions(low)} and {millions(high)}",
        f"{_cores(readings, lambda one: one.reader_cores)}, {_cores(readings, lambda one: one.broker_cores)}",
    )


def _cores(readings: Sequence[Reading], of: Callable[[Reading], float | None]) -> str:
    known = [cores for reading in readings if (cores := of(reading)) is not None]
    return f"{statistics.median(known):.2f}" if known else "?"


def runs_list(results: Results) -> str:
    """Return the list of runs, each with the cases and parts that it measured."""
    text = ""
    for number, run in enumerate(results.runs):
        names = ", ".join(name for name, its in results.run_of.items() if its == number)
        software = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        text += as_item(
            f"{run.at}, `{run.command}`: {run.rounds} rounds, slopes between {millions(run.records / 4)} and "
            f"{millions(run.records)} records. {run.machine}; load before it {run.load}. {software}. It measured: "
            f"{names}."
        )
    failures = [failure for measured in results.measured.values() for failure in measured.failures]
    return text + "".join(as_item(f"Failed: {failure}") for failure in failures)


def as_item(text: str) -> str:
    """Return an item of a Markdown list, wrapped to the width of prose."""
    lines = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "- " + "\n  ".join(lines) + "\n"


def document(results: Results, plot: str | None) -> str:
    """Return everything between the markers of the page.

    Args:
        plot: path of the chart from the page; None if there is no chart.
    """
    picture = f"![Records a second of every reader, case by case]({plot})\n\n" if plot else ""
    return (
        f"## Figures and targets\n\n{targets_table(results)}\n{picture}## Everybody's rates\n\n{rates_table(results)}\n"
        f"## Runs\n\n{runs_list(results)}"
    )


def put_between(page: str, written: str, begin: str = BEGIN) -> str:
    """Return the page with the text between two markers replaced.

    Args:
        page: whole text of the page.
        written: new text.
        begin: marker before the text; :data:`END` is the marker after it.

    Raises ValueError if the page lacks a marker.
    """
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no {begin} ... {END}")
    return f"{before}{begin}\n\n{written}\n{END}{after}"
