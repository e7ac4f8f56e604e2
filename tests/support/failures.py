# SPDX-License-Identifier: Apache-2.0
"""Tells a script what failed in a run of pytest, as JSON lines in the file that ``CONSUMERD_FAILURES`` names.

Hooks, for ``conftest``. One line for each failure, with its node id, its kind, and whether the failure may be about records; the last
line has pytest's exit code. ``tests/support/second_run.py`` reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from tests.support.programs import ProgramFailed

VARIABLE: Final = "CONSUMERD_FAILURES"
_ABOUT_RECORDS: Final = "about_records"
_XDIST_CRASH: Final = "???"  # what xdist gives as the phase of a test that ended its worker

_written: Final[list[Path]] = []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that are about records a property, which reaches the controller with their reports."""
    for item in items:
        if item.get_closest_marker("records") is not None:
            item.user_properties.append((_ABOUT_RECORDS, True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Take that property from a test that failed because a program did that is not ours."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, ProgramFailed):
        report.user_properties = [one for one in report.user_properties if one[0] != _ABOUT_RECORDS]
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Take the file's name out of the environment: a pytest that a test starts must not write there."""
    if not hasattr(config, "workerinput") and (name := os.environ.pop(VARIABLE, None)):
        _written[:] = [Path(name)]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down a file that cannot be collected."""
    if report.failed:
        _write(nodeid=report.nodeid, kind="collection", records=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down a test that fails, or that ends the process that it runs in."""
    if report.failed:
        kind = "crash" if str(report.when) == _XDIST_CRASH else "test"
        records = (_ABOUT_RECORDS, True) in [tuple(one) for one in report.user_properties]
        _write(nodeid=report.nodeid, kind=kind, records=records)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Forget the file: the next run in this process has its own."""
    if not hasattr(config, "workerinput"):
        _written.clear()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> object:
    """Write down pytest's exit code, once everything that may change it has done so."""
    result = yield
    _write(exit=int(session.exitstatus))
    return result


def _write(**fields: object) -> None:
    for path in _written:
        with path.open("a") as file:
            file.write(json.dumps(fields) + "\n")
