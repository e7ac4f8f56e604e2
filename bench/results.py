# SPDX-License-Identifier: Apache-2.0
"""Results as stored in ``results.json``: runs, and the last measurement of each case."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.cases import Reader
from bench.measuring import Measured, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the command.

    Attributes:
        at: date and time of its beginning, UTC.
        command: command that repeats it.
        machine: description of the machine.
        versions: versions of all software, by name.
        rounds: number of rounds.
        records: value of ``--records``.
        load: load averages at its beginning.
    """

    at: str
    command: str
    machine: str
    versions: Mapping[str, str]
    rounds: int
    records: int
    load: str


def repeatable_command(module: str, arguments: Sequence[str]) -> str:
    """Return the command that repeats a measurement, without its option ``--docs``."""
    kept, following = [], iter(arguments)
    for argument in following:
        if argument == "--docs":
            next(following, None)
        elif not argument.startswith("--docs="):
            kept.append(argument)
    return shlex.join(["python", "-m", module, *kept])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure and its target; ``met`` is None if there is no target."""

    work: str
    target: str
    figure: str
    met: bool | None = None


@dataclass(slots=True)
class Results:
    """Runs, and the measurements of each case or part by its name.

    ``run_of`` holds the position in ``runs`` of the run of each measurement.
    """

    runs: list[Run] = field(default_factory=list)
    measured: dict[str, Measured] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Rows of the parts, which have no readings."""
    run_of: dict[str, int] = field(default_factory=dict)

    def add(
        self, run: Run, *, measured: Sequence[Measured] = (), rows: Mapping[str, Sequence[Row]] | None = None
    ) -> None:
        """Add the results of a run, replacing earlier ones of the same names."""
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
        """Write the results as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def load_results(path: Path) -> Results:
    """Read what :meth:`Results.save` wrote; return no results if there is no such file."""
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
