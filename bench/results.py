# SPDX-License-Identifier: Apache-2.0
"""What came out, as it is kept in ``results.json``: runs, and for each case the run that measured it last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.cases import Reader
from bench.measuring import Measured, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the command; ``at`` is when it began, ``load`` the load averages then."""

    at: str
    command: str
    machine: str
    versions: Mapping[str, str]
    rounds: int
    records: int
    load: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure beside what is aimed at; ``met`` is None where nothing is."""

    work: str
    target: str
    figure: str
    met: bool | None = None


@dataclass(slots=True)
class Results:
    """By name of case or part: what was measured, and the run (its number in ``runs``) that it is of."""

    runs: list[Run] = field(default_factory=list)
    measured: dict[str, Measured] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Of parts, which have no readings."""
    run_of: dict[str, int] = field(default_factory=dict)

    def add(
        self, run: Run, *, measured: Sequence[Measured] = (), rows: Mapping[str, Sequence[Row]] | None = None
    ) -> None:
        """Take in a run's results; they replace what earlier ones had for the same names."""
        if run not in self.runs:
            self.runs.append(run)
        number = self.runs.index(run)
        for one in measured:
            self.measured[one.case] = one
            self.run_of[one.case] = number
        for name, its_rows in (rows or {}).items():
            self.rows[name] = list(its_rows)
            self.run_of[name] = number
        self._forget_replaced()

    def _forget_replaced(self) -> None:
        used = sorted(set(self.run_of.values()))
        renumbered = {old: new for new, old in enumerate(used)}
        self.runs = [self.runs[old] for old in used]
        self.run_of = {name: renumbered[old] for name, old in self.run_of.items()}

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def load_results(path: Path) -> Results:
    """Read what :meth:`Results.save` wrote; nothing yet when there is no such file."""
    if not path.exists():
        return Results()
    data: dict[str, Any] = json.loads(path.read_text())
    return Results(
        runs=[Run(**one) for one in data["runs"]],
        measured={name: _measured(one) for name, one in data["measured"].items()},
        rows={name: [Row(**row) for row in rows] for name, rows in data["rows"].items()},
        run_of=dict(data["run_of"]),
    )


def _measured(data: Mapping[str, Any]) -> Measured:
    readings = {Reader(name): tuple(Reading(**one) for one in those) for name, those in data["readings"].items()}
    return Measured(case=data["case"], readings=readings, failures=tuple(data["failures"]))
