# SPDX-License-Identifier: Apache-2.0
"""What ``make full`` forgives: a failed test that passes alone, once in a run, and never one about records."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.second_run import Run, find_fault, judge, main, read_run, sum_up
from tests.support.syntax import parse_file

TOP = Path(__file__).resolve().parents[2]

CONFTEST = """
from tests.support import failures, unseen

def pytest_configure(config):
    for plugin in (failures, unseen):
        config.pluginmanager.register(plugin)
"""

FAILS_ONCE = """
import pathlib, pytest

def test_that_passes():
    pass

{marker}
@pytest.mark.parametrize("value", ["with space", "b"])
def test_unstable(value):
    seen = pathlib.Path(__file__).parent / f"seen {{value}}"
    if value == "b" or seen.exists():
        return
    seen.touch()
    assert not "yet"
"""

ENDS_ITS_PROCESS = """
import os

def test_that_ends_its_process():
    os._exit(11)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = records: about records\n")
    return tmp_path


def first_run(place: Path, *options: str) -> Path:
    """Run the tests there, and return what the hooks have written."""
    told = place / "failures.jsonl"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *options, str(place)],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(TOP), "CONSUMERD_FAILURES": str(told)},
        capture_output=True,
        check=False,
    )
    return told


def second_run(place: Path, told: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Decide about it, and return the exit code and the tests that are known as not stable."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    unstable = place / "unstable"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    code = main(["--failures", str(told), "--unstable", str(unstable), "--", *command])
    return code, unstable.read_text().splitlines() if unstable.exists() else []


def test_a_test_that_passes_alone_is_forgiven_and_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real clusters on a crowded machine miss their own deadlines."""
    (place / "test_it.py").write_text(FAILS_ONCE.format(marker=""))

    told = first_run(place)
    assert second_run(place, told, monkeypatch) == (0, ["test_it.py::test_unstable[with space]"])


def test_a_test_about_records_is_repeated_and_not_forgiven(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Records that were lost once were lost."""
    (place / "test_it.py").write_text(FAILS_ONCE.format(marker="@pytest.mark.records"))

    told = first_run(place, "-n", "1")
    assert second_run(place, told, monkeypatch) == (1, [])
    said = capfd.readouterr().out
    assert "1 passed" in said
    assert "about records, which the first run may have lost: test_it.py::test_unstable[with space]" in said


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_producer_that_fails_says_nothing_of_records(
    place: Path, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests' own programs fail on crowded machines, too."""
    fails = FAILS_ONCE.format(marker="@pytest.mark.records")
    fails = fails.replace('assert not "yet"', 'raise ProgramFailed("record 3 was not acknowledged")')
    (place / "test_it.py").write_text(f"from tests.support.programs import ProgramFailed\n{fails}")

    told = first_run(place, *workers)
    assert second_run(place, told, monkeypatch) == (0, ["test_it.py::test_unstable[with space]"])


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_file_that_cannot_be_collected_is_not_forgiven(
    place: Path, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It interrupts the run: to run that file again says nothing of all the others."""
    (place / "test_it.py").write_text(FAILS_ONCE.format(marker=""))
    (place / "test_other.py").write_text("import no_such_module\n")

    told = first_run(place, *workers)
    assert second_run(place, told, monkeypatch) == (1, [])
    assert "not to be repeated: test_other.py (collection)" in capfd.readouterr().out


def test_a_test_that_ends_its_process_is_not_forgiven(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A segmentation fault of the kernel is no missed deadline; without workers the run has no end at all."""
    (place / "test_it.py").write_text(ENDS_ITS_PROCESS)

    assert second_run(place, first_run(place, "-n", "1"), monkeypatch) == (1, [])
    assert "test_it.py::test_that_ends_its_process (crash)" in capfd.readouterr().out
    (place / "failures.jsonl").unlink()
    assert second_run(place, first_run(place), monkeypatch) == (1, [])
    assert "did not come to its end" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (Run(exit_code=2, tests=("a",)), "exit code 2"),
        (Run(exit_code=5), "exit code 5"),
        (Run(exit_code=0), "exit code 0"),
        (Run(exit_code=1), "no test of it"),
        (Run(exit_code=None, tests=("a",)), "did not come to its end"),
        (Run(exit_code=1, tests=("a",), broken=("b (collection)",)), "not to be repeated: b"),
    ],
)
def test_only_failed_tests_are_repeated(run: Run, said: str) -> None:
    """Any other end of pytest means that tests were not run."""
    assert said in (find_fault(run) or "")
    assert find_fault(Run(exit_code=1, tests=("a",))) is None


def test_what_fails_again_fails() -> None:
    """For pytest's own errors in the second run, too."""
    assert judge(Run(exit_code=1, tests=("a",)), 0) is None
    assert "exit code 4" in (judge(Run(exit_code=1, tests=("a",)), 4) or "")


def test_a_run_is_read_with_each_test_once() -> None:
    """A test that fails, and whose fixture fails after it, is one test."""
    entry = {"nodeid": "a", "kind": "test", "records": True}
    assert Run(exit_code=1, tests=("a",), about_records=("a",)) == read_run(
        map(json.dumps, [entry, entry, {"exit": 1}])
    )


def test_the_third_test_that_is_not_stable_fails_the_run() -> None:
    """Each is named at the end of the log."""
    assert sum_up([])[1] == 0
    assert sum_up(["a"]) == ("NOT STABLE: a failed and then passed alone", 0)
    assert sum_up(["a", "b"])[1] == 0
    text, code = sum_up(["a", "b", "c"])
    assert code == 1
    assert ["NOT STABLE: a", "NOT STABLE: b", "NOT STABLE: c"] == re.findall(r"NOT STABLE: \w", text)


def test_full_lets_nothing_else_forgive() -> None:
    """The script asks this module, with the seed of its run, and sums up at its end."""
    script = (TOP / ".ci" / "full").read_text()

    assert script.count("tests/support/second_run.py") == 2
    assert "CONSUMERD_SEED" in script
    assert "--hypothesis-seed" in script
    assert "|| true" not in script.split("tested()")[1].split("\n}\n")[0]


JUDGES = ("tests.support.landing_check", "tests.support.landing_reader")
"""Modules that compare landed files with the records that were produced."""


def _judges_records(path: Path) -> bool:
    tree = parse_file(path)
    return any(isinstance(node, ast.ImportFrom) and node.module in JUDGES for node in ast.walk(tree))


def test_every_file_that_judges_landed_records_is_never_forgiven() -> None:
    """Without the marker, a second run that passes hides what the first one lost."""
    unmarked = [
        str(path.relative_to(TOP))
        for path in sorted((TOP / "tests").rglob("test_*.py"))
        if _judges_records(path) and "mark.records" not in path.read_text()
    ]

    assert unmarked == []
