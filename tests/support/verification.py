# SPDX-License-Identifier: Apache-2.0
"""Record of verification runs, and the tables that ``docs/verification.md`` generates from it.

A run appends JSON lines to the file that ``CONSUMERD_VERIFICATION`` names: what ran, a figure, its value, the date, and the
commit. Without the variable nothing is recorded. Only a run that succeeded as a whole is recorded.

    export CONSUMERD_VERIFICATION=$PWD/docs/verification.jsonl
    make mutants
    python -m tests.support.verification            # writes the table anew
    python -m tests.support.verification --check    # exit code 1 if the table is not that of the record

The document shows the last entry for each pair of run and figure. Figures that were written into the document by hand carry
date and commit in their own cell; ``find_undated`` finds those that do not.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "CONSUMERD_VERIFICATION"
ROOT: Final = Path(__file__).resolve().parents[2]
RECORD: Final = ROOT / "docs" / "verification.jsonl"
DOCUMENT: Final = ROOT / "docs" / "verification.md"

BEGIN: Final = "<!-- recorded runs: written by `python -m tests.support.verification` -->"
END: Final = "<!-- end of recorded runs -->"
_DATED: Final = re.compile(r"\(2\d{3}-\d\d-\d\d, `[0-9a-f]{7,}`(?: and changes)?\)")
_COMMIT: Final = re.compile(r"[0-9a-f]{7,40}( and changes)?")
_SEEN: Final = ("seen", "highest")
"""Heads of the table columns that hold figures; the columns after them hold figures, too."""
_NOT_A_FIGURE: Final = re.compile(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|\b\d+\.\d+\.\d+(\.\d+)?\b")
"""Code, links, and numbers of releases."""
_MEASURED: Final = ("## Speed",)
"""Sections whose prose holds figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One figure of one run."""

    run: str
    figure: str
    seen: str
    date: str
    commit: str
    """Abbreviated; followed by "and changes" if files under version control differed from it."""

    def __post_init__(self) -> None:
        """Refuse an entry without a date and a commit. Raises ValueError."""
        dt.date.fromisoformat(self.date)
        if not _COMMIT.fullmatch(self.commit):
            raise ValueError(f"{self.run}, {self.figure}: {self.commit!r} is no commit")


def record(run: str, figures: Mapping[str, object], path: str | None = None) -> None:
    """Append the figures of a run that succeeded, to ``path`` or to the file that ``CONSUMERD_VERIFICATION`` names, if any."""
    if not (name := path or os.environ.get(VARIABLE)):
        return
    date, commit = dt.datetime.now(dt.UTC).date().isoformat(), _find_commit()
    entries = [Entry(run=run, figure=key, seen=show(seen), date=date, commit=commit) for key, seen in figures.items()]
    # In one write, so that runs at the same time do not mix their lines.
    with Path(name).open("a") as file:
        file.write("".join(f"{json.dumps(asdict(entry))}\n" for entry in entries))


def show(value: object) -> str:
    """Return a measured value as text."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def read_record(lines: Iterable[str]) -> list[Entry]:
    """Return the last entry for each run and figure, sorted by both. Raises ValueError or TypeError for a broken line."""
    last = {(entry.run, entry.figure): entry for line in lines for entry in [Entry(**json.loads(line))]}
    return [last[key] for key in sorted(last)]


def render(entries: Sequence[Entry]) -> str:
    """Return the table of recorded runs, between its two marks."""
    rows = [("run", "figure", "seen", "date", "commit"), ("---",) * 5]
    rows += [(one.run, one.figure, one.seen, one.date, _as_code(one.commit)) for one in entries]
    table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
    return f"{BEGIN}\n\n{table}\n\n{END}"


def write_into(document: str, entries: Sequence[Entry]) -> str:
    """Return the document with the table of these entries. Raises ValueError if it has no place for it."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks {END if begin else BEGIN!r}")
    return f"{before}{render(entries)}{after}"


def find_undated(document: str) -> list[str]:
    """Return the table rows and paragraphs that have figures without a date and commit.

    A table holds figures from a column on whose head is "seen" or "highest". Prose holds them in the sections of
    ``_MEASURED``.
    """
    outside = document.partition(BEGIN)[0] + document.partition(END)[2]
    return [*_undated_rows(outside), *_undated_paragraphs(outside)]


def _undated_rows(document: str) -> Iterator[str]:
    first: int | None = None  # the column in which figures begin
    heads = True
    for line in document.splitlines():
        if not line.startswith("|"):
            first, heads = None, True
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if heads:
            first = next((number for number, cell in enumerate(cells) if cell in _SEEN), None)
            heads = False
        elif first is not None and _lacks_date("|".join(cells[first:])):
            yield line


def _undated_paragraphs(document: str) -> Iterator[str]:
    heading = ""
    for paragraph in document.split("\n\n"):
        if paragraph.startswith("#"):
            heading = paragraph.splitlines()[0]
        elif heading in _MEASURED and _lacks_date(paragraph):
            yield paragraph


def _lacks_date(text: str) -> bool:
    return bool(re.search(r"\d", _NOT_A_FIGURE.sub("", text))) and not _DATED.search(text)


def _as_code(commit: str) -> str:
    found, changes, rest = commit.partition(" ")
    return f"`{found}`{changes}{rest}"


def _find_commit() -> str:
    commit = _git("rev-parse", "--short=7", "HEAD").strip()
    # The record and its document change by being written.
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RECORD.relative_to(ROOT)}",
                   f":!{DOCUMENT.relative_to(ROOT)}")  # fmt: skip
    return f"{commit} and changes" if changed else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.verification", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help="write nothing; say if the table is not that of the record"
    )
    check = parser.parse_args(arguments).check
    document = DOCUMENT.read_text()
    written = write_into(document, read_record(RECORD.read_text().splitlines()))
    if check:
        problems = [f"no date and commit: {text}" for text in find_undated(document)]
        if written != document:
            problems.append("the table is not that of the record: python -m tests.support.verification")
        sys.stdout.writelines(f"{problem}\n" for problem in problems)
        return 1 if problems else 0
    DOCUMENT.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
