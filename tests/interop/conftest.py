# SPDX-License-Identifier: Apache-2.0
"""Which Kafka releases a test runs on, and clusters shared by the tests of a run.

A test that takes ``release`` runs on 1.1.1; marked ``smoke``, on every release of the matrix; marked ``full``, not at all,
since ``make test`` shows the same on the embedded broker. With ``CONSUMERD_FULL_MATRIX=1`` every test runs on every
release. Without the jars and without maven they skip and say what provides them; with ``CONSUMERD_REQUIRE_KAFKA=1`` they
fail instead.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import kafka
from tests.support.recorded_run import note_figure
from tests.support.tools import require_jars
from tests.support.verification import show

MAIN_RELEASE = "1.1.1"
MATRIX = ("0.8.2.2", "0.10.2.2", "1.1.1")
FULL = os.environ.get("CONSUMERD_FULL_MATRIX") == "1"

_HERE = Path(__file__).parent
_numbers = itertools.count()

ClusterFactory = Callable[..., kafka.Cluster]
Figure = Callable[[str, object], None]

_FIGURES = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = []
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            if not FULL and item.get_closest_marker("full"):
                left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" not in metafunc.fixturenames:
        return
    everywhere = FULL or metafunc.definition.get_closest_marker("smoke")
    metafunc.parametrize("release", MATRIX if everywhere else (MAIN_RELEASE,), scope="session")


def require(release: str) -> None:
    """Skip (or fail, where CI requires Kafka) unless the jars of ``release`` are or can be had."""
    with require_jars():
        kafka.jars(release)


@pytest.fixture(scope="session")
def shared_clusters() -> Iterator[ClusterFactory]:
    """Give the running cluster of (release, brokers), starting it on first use; tests keep to topics of their own."""
    running: dict[tuple[str, int], kafka.Cluster] = {}

    def get(release: str, brokers: int = 1) -> kafka.Cluster:
        require(release)
        if (release, brokers) not in running:
            # one at a time: two cores carry one cluster and its clients
            for key in list(running):
                running.pop(key).close()
            running[release, brokers] = kafka.Cluster(release, brokers).__enter__()
        return running[release, brokers]

    yield get
    for cluster in running.values():
        cluster.close()


@pytest.fixture
def own_cluster() -> Iterator[ClusterFactory]:
    """Start clusters that the test may break; they are stopped after it. Takes the arguments of ``kafka.Cluster``."""
    started: list[kafka.Cluster] = []

    def start(release: str, brokers: int = 1, **options: object) -> kafka.Cluster:
        require(release)
        cluster = kafka.Cluster(release, brokers, **options)  # type: ignore[arg-type]  # passed on as they came
        started.append(cluster.__enter__())
        return cluster

    yield start
    for cluster in started:
        cluster.close()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Note something measured; it is shown at the end of the run, and recorded with a run that is recorded."""
    figures = request.config.stash.setdefault(_FIGURES, [])

    def note(what: str, value: object) -> None:
        figures.append(f"{request.node.name}: {what}: {show(value)}")
        note_figure(request.node, what, value)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if figures := config.stash.get(_FIGURES, []):
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names (topics, groups) that no other test of this run uses."""
    return lambda stem: f"{stem}-{os.getpid()}-{next(_numbers)}"
