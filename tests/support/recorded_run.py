# SPDX-License-Identifier: Apache-2.0
"""Records a pytest run that passed as a whole: its number of tests, and the figures that its tests noted.

Hooks, for ``conftest``. ``CONSUMERD_RUN`` names the run (the Makefile sets it where all tests of a target run), and
``tests.support.verification`` says where it is recorded. Tests that take ``release`` are counted for each release.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import pytest

from tests.support import verification

VARIABLE: Final = "CONSUMERD_RUN"
_FIGURE: Final = "figure"
_RELEASE: Final = "release"
"""Name of the parameter that says which Kafka a test runs against, and of the property that carries it."""


class RunRecorder:
    """Counts passed tests and keeps their figures until the end of a run."""

    def __init__(self, name: str, path: str) -> None:
        self._name = name
        self._path = path
        self._passed: Counter[str] = Counter()
        self._figures: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that has passed, and take its figures."""
        if report.when != "call" or not report.passed:
            return
        release = next((value for key, value in report.user_properties if key == _RELEASE), None)
        self._passed[f"{self._name}, Kafka {release}" if release else self._name] += 1
        for key, value in report.user_properties:
            if key == _FIGURE and isinstance(value, (list, tuple)):  # xdist passes a tuple on as a list
                what, seen = value
                self._figures.setdefault(report.nodeid, {})[str(what)] = seen

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> object:
        """Record the run, once everything that may change its exit code has done so."""
        result = yield
        if session.exitstatus == 0:
            for name, count in self._passed.items():
                verification.record(name, {"tests passed": count}, self._path)
            for nodeid, figures in self._figures.items():
                verification.record(f"`{nodeid}`", figures, self._path)
        return result


def note_figure(item: pytest.Item, what: str, value: object) -> None:
    """Attach a figure to a test; it reaches the controller of a parallel run with the test's report."""
    item.user_properties.append((_FIGURE, (what, verification.show(value))))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note the release of tests that take one; it reaches the controller of a parallel run with the test's report."""
    for item in items:
        release = (
            item.callspec.params.get(_RELEASE)
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else None
        )
        if isinstance(release, str):
            item.user_properties.append((_RELEASE, release))


def pytest_configure(config: pytest.Config) -> None:
    """Record this run if it has a name and is of all its tests.

    Both variables leave the environment: what a test starts is part of this run, not a run to be recorded.
    """
    if hasattr(config, "workerinput"):
        return
    name, path = os.environ.pop(VARIABLE, None), os.environ.pop(verification.VARIABLE, None)
    if name and path and not (config.getoption("keyword") or config.getoption("markexpr")):
        config.pluginmanager.register(RunRecorder(name, path))
