# SPDX-License-Identifier: Apache-2.0
"""What to do about a run of the tests that failed: repeat it, with its own seeds, and forgive little.

    python tests/support/second_run.py --failures FILE --unstable FILE -- PYTEST...
    python tests/support/second_run.py --sum-up --unstable FILE

Real clusters and foreign clients on two crowded processors miss their own deadlines now and then. So a test that fails is run
once more, alone, and forgiven if it passes; each such test is named at the end of the log, and the third one fails the run.
Nothing is forgiven that concerns records (the marker ``records``): they may have been lost the first time. Only where a program
failed that is not ours, as a producer (``tests/support/programs.py``), it does not concern them. The repetition is otherwise
for the log alone; by the seed of the run (``tests/support/seeds.py``) it tries what the first run tried. Nor is a file
forgiven that cannot be collected, a test that ends its process, or any end of pytest but by failed tests.

Needs nothing but Python: it runs outside the virtual environment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TESTS_FAILED: Final = 1
MOST_UNSTABLE: Final = 2
"""Tests that may fail once and pass alone in all of a run of ``make full``."""


@dataclass(frozen=True)
class Run:
    """What a run of pytest left: its exit code (None: it did not come to its end), and what failed, by kind."""

    exit_code: int | None
    tests: tuple[str, ...] = ()
    about_records: tuple[str, ...] = ()
    """Those among ``tests`` that are never forgiven."""
    broken: tuple[str, ...] = ()
    """Files that could not be collected, and tests that ended their process."""


def read_run(lines: Iterable[str]) -> Run:
    """Read what ``tests/support/failures.py`` has written."""
    entries = [json.loads(line) for line in lines]
    codes = [entry["exit"] for entry in entries if "exit" in entry]
    failed = [entry for entry in entries if "nodeid" in entry]
    return Run(
        exit_code=codes[-1] if codes else None,
        tests=_distinct(entry["nodeid"] for entry in failed if entry["kind"] == "test"),
        about_records=_distinct(entry["nodeid"] for entry in failed if entry["kind"] == "test" and entry["records"]),
        broken=_distinct(f"{entry['nodeid']} ({entry['kind']})" for entry in failed if entry["kind"] != "test"),
    )


def find_fault(run: Run) -> str | None:
    """Return why no second run can help, or None."""
    if run.broken:
        return f"not to be repeated: {', '.join(run.broken)}"
    if run.exit_code is None:
        return "pytest did not come to its end, or another step failed"
    if run.exit_code != TESTS_FAILED:
        return f"pytest ended with exit code {run.exit_code}, not because tests failed"
    if not run.tests:
        return "the run failed, and no test of it"
    return None


def judge(run: Run, second_exit_code: int) -> str | None:
    """Return why the run fails after its repetition, or None where it is forgiven."""
    if second_exit_code != 0:
        return f"failed again (exit code {second_exit_code}): see above"
    if run.about_records:
        return f"passed the second time, but is about records, which the first run may have lost: {', '.join(run.about_records)}"
    return None


def sum_up(unstable: Sequence[str]) -> tuple[str, int]:
    """Return what to say of all tests that were not stable in a run, and the exit code."""
    if not unstable:
        return "every test passed the first time", 0
    text = "\n".join(f"NOT STABLE: {test} failed and then passed alone" for test in unstable)
    if len(unstable) > MOST_UNSTABLE:
        return f"{text}\n{len(unstable)} tests were not stable, {MOST_UNSTABLE} is forgiven: mend them", 1
    return text, 0


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=Path, help="what the first run has written")
    parser.add_argument("--unstable", type=Path, required=True, help="where tests that were not stable are collected")
    parser.add_argument("--sum-up", action="store_true", help="say which they were, and whether that is too many")
    parser.add_argument("pytest", nargs="*", help="the command that runs tests, whose names are appended")
    given = parser.parse_args(arguments)
    if given.sum_up:
        text, code = sum_up(_lines(given.unstable))
        _say(text)
        return code
    run = read_run(_lines(given.failures))
    if (fault := find_fault(run)) is not None:
        _say(f"FAILED: {fault}")
        return 1
    _say(f"\n=== once more, alone and with the same seeds: {' '.join(run.tests)}")
    second = subprocess.run([*given.pytest, *run.tests], check=False).returncode
    if (reason := judge(run, second)) is not None:
        _say(f"FAILED: {reason}")
        return 1
    with given.unstable.open("a") as file:
        for test in run.tests:
            _say(f"NOT STABLE: {test} failed and then passed alone")
            file.write(f"{test}\n")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # what pytest says follows


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
