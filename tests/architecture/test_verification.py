# SPDX-License-Identifier: Apache-2.0
"""The verification document: its table is that of the record, and each of its figures has a date and a commit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tools import require_tool
from tests.support.verification import (
    BEGIN,
    DOCUMENT,
    END,
    Entry,
    find_undated,
    main,
    read_record,
    record,
    render,
    write_into,
)

TOP = Path(__file__).resolve().parents[2]

CONFTEST = """
from tests.support import recorded_run

def pytest_configure(config):
    config.pluginmanager.register(recorded_run)
"""

TESTS = """
import pytest
from tests.support.recorded_run import note_figure

@pytest.mark.parametrize("release", ["0.8.2.2", "1.1.1"])
def test_with_a_figure(request, release):
    note_figure(request.node, "records", 3000)

def test_that_may_fail():
    assert {passes}
"""


@pytest.fixture
def checkout() -> str:
    """Return git's path, where these files are under version control: what is recorded needs a commit."""
    if not (TOP / ".git").exists():
        pytest.skip("this is no git checkout, and a record needs a commit")
    return require_tool("git", "git")


def entry(run: str = "make mutants", seen: str = "98", date: str = "2026-11-23", commit: str = "0123abc") -> Entry:
    return Entry(run=run, figure="killed", seen=seen, date=date, commit=commit)


def line(**changes: str) -> str:
    fields = {"run": "r", "figure": "f", "seen": "1", "date": "2026-11-23", "commit": "0123abc"}
    return json.dumps(fields | changes)


def run_tests(place: Path, *options: str, passes: bool, name: str | None = "`make test`") -> list[Entry]:
    """Run pytest on two passing tests and one more, and return what it has recorded."""
    (place / "conftest.py").write_text(CONFTEST)
    (place / "pytest.ini").write_text("[pytest]\n")
    (place / "test_it.py").write_text(TESTS.format(passes=passes))
    told = place / "record.jsonl"
    variables = {"PYTHONPATH": str(TOP), "CONSUMERD_VERIFICATION": str(told)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", *options],
        cwd=place,
        env=os.environ | variables | ({"CONSUMERD_RUN": name} if name else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (not passes), done.stdout + done.stderr
    return read_record(told.read_text().splitlines()) if told.exists() else []


def test_document_is_what_its_record_gives() -> None:
    """A table that is edited by hand, or not written anew, shows runs that nobody made."""
    assert main(["--check"]) == 0


def test_every_figure_of_the_document_has_a_date_and_a_commit() -> None:
    """A figure without them looks like today's, however old it is."""
    assert find_undated(DOCUMENT.read_text()) == []


def test_every_commit_of_the_document_is_of_this_history(checkout: str) -> None:
    """A commit of a branch that was rebased away can be looked up by nobody."""

    def git(*arguments: str) -> str:
        return subprocess.run([checkout, "-C", TOP, *arguments], capture_output=True, text=True, check=True).stdout

    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("this is a shallow clone, whose older commits are not here")
    history = git("rev-list", "HEAD").split()
    named = set(re.findall(r"2\d{3}-\d\d-\d\d(?:, | \| )`([0-9a-f]{7,})`", DOCUMENT.read_text()))

    assert len(named) > 5
    assert sorted(commit for commit in named if not any(one.startswith(commit) for one in history)) == []


@pytest.mark.parametrize(
    "broken",
    [line(date="yesterday"), line(commit="unknown"), line(commit=""), line(more="1"), '{"run": "r"}', "no JSON"],
)
def test_entry_without_date_or_commit_is_refused(broken: str) -> None:
    """Nothing may enter the table undated."""
    with pytest.raises((ValueError, TypeError)):
        read_record([broken])


def test_latest_entry_of_a_figure_counts() -> None:
    """The record keeps all runs, the table the last one of each."""
    lines = [line(seen="1"), line(seen="2", date="2026-11-24"), line(run="another")]

    shown = [(one.run, one.seen, one.date) for one in read_record(lines)]

    assert shown == [("another", "1", "2026-11-23"), ("r", "2", "2026-11-24")]


def test_table_replaces_what_stood_between_its_marks() -> None:
    """Text around the table is written by hand and stays."""
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    entries = [entry(commit="0123abc and changes")]

    written = write_into(document, entries)

    assert written == f"before\n{render(entries)}\nafter\n"
    assert "| make mutants | killed | 98 | 2026-11-23 | `0123abc` and changes |" in written
    assert write_into(written, entries) == written


@pytest.mark.parametrize("document", ["no table\n", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"])
def test_document_without_a_place_for_the_table_is_refused(document: str) -> None:
    """Rather than cutting it off where a mark is missing."""
    with pytest.raises(ValueError, match="lacks"):
        write_into(document, [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("| what | seen |\n|---|---|\n| a | 120 records |\n", ["| a | 120 records |"]),
        ("| what | seen |\n|---|---|\n| a | 120 records (2026-11-21, `94f60e2`) |\n", []),
        ("| what | seen |\n|---|---|\n| 120 | each once, on 1.1.1 and `x86` |\n", []),
        ("| budget | highest | on purpose |\n|---|---|---|\n| 64 | below | 300 |\n", ["| 64 | below | 300 |"]),
        ("| what | test |\n|---|---|\n| 120 | 130 |\n", []),
        ("## Speed\n\n1.4 times as fast.\n\n## Other\n\n5 things.", ["1.4 times as fast."]),
        (f"| what | seen |\n|---|---|\n| a | b |\n{BEGIN}\n\n## Speed\n\n3\n{END}\n", []),
    ],
)
def test_undated_figures_are_found(text: str, found: list[str]) -> None:
    """In columns of figures and in sections of figures, and nowhere else."""
    assert find_undated(text) == found


def test_recorded_figure_has_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: str) -> None:
    """A run appends; it never rewrites what others have recorded."""
    told = tmp_path / "record.jsonl"
    told.write_text(f"{line()}\n")
    monkeypatch.setenv("CONSUMERD_VERIFICATION", str(told))

    record("make mutants", {"killed": 1234, "longest, s": 0.25})

    first, *added = [json.loads(text) for text in told.read_text().splitlines()]
    assert first == json.loads(line())
    assert [(one["figure"], one["seen"]) for one in added] == [("killed", "1,234"), ("longest, s", "0.250")]
    head = subprocess.run([checkout, "-C", TOP, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert all(head.startswith(one["commit"].split()[0]) for one in added)


def test_nothing_is_recorded_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in everyday work leave no trace."""
    monkeypatch.delenv("CONSUMERD_VERIFICATION", raising=False)
    monkeypatch.chdir(tmp_path)

    record("make mutants", {"killed": 1})

    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("options", [[], ["-n", "2"]])
def test_run_that_passes_is_recorded_with_its_figures(tmp_path: Path, options: list[str]) -> None:
    """By release, so that the table is a matrix; in a parallel run as well."""
    shown = [(one.run, one.figure, one.seen) for one in run_tests(tmp_path, *options, passes=True)]

    assert shown == [
        ("`make test`", "tests passed", "1"),
        ("`make test`, Kafka 0.8.2.2", "tests passed", "1"),
        ("`make test`, Kafka 1.1.1", "tests passed", "1"),
        ("`test_it.py::test_with_a_figure[0.8.2.2]`", "records", "3,000"),
        ("`test_it.py::test_with_a_figure[1.1.1]`", "records", "3,000"),
    ]


def test_run_that_fails_is_not_recorded(tmp_path: Path) -> None:
    """What passed in a run that failed proves nothing of the whole."""
    assert run_tests(tmp_path, passes=False) == []


@pytest.mark.parametrize(("name", "options"), [(None, []), ("`make test`", ["-k", "figure"])])
def test_choice_of_tests_is_not_recorded(tmp_path: Path, name: str | None, options: list[str]) -> None:
    """A figure of a target is one of all its tests."""
    assert run_tests(tmp_path, *options, passes=True, name=name) == []
