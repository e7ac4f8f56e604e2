# SPDX-License-Identifier: Apache-2.0
"""Which Kafka releases a test runs on, and clusters shared by the tests of a run.

A test that takes ``release`` runs on 1.1.1; marked ``smoke``, on every release of the matrix; marked ``full``, not at all,
since ``make test`` shows the same on the embedded broker, or CI on another release. With ``CONSUMERD_FULL_MATRIX=1``
every test runs on every release; marked ``newer_brokers``, on brokers of 2.8.2, too, where the old Java consumer is that
of 1.1.1.
``CONSUMERD_SMOKE_RELEASES=0.8.2.2,1.1.1`` names other releases for those marked ``smoke``. Without the jars and without
maven they skip and say what provides them; with ``CONSUMERD_REQUIRE_KAFKA=1`` they fail instead.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import kafka
from tests.support.kdc import Kdc
from tests.support.kraft import make_cluster
from tests.support.recorded_run import note_figure
from tests.support.secure_kafka import SecureCluster
from tests.support.tools import require_jars, require_kerberos
from tests.support.verification import show

MAIN_RELEASE = "1.1.1"
MATRIX = ("0.8.2.2", "0.10.2.2", "1.1.1")
NEWER = ("2.8.2",)
"""Releases whose brokers still keep groups in ZooKeeper, but which have no Java consumer for them."""
FULL = os.environ.get("CONSUMERD_FULL_MATRIX") == "1"
SMOKE = tuple(os.environ.get("CONSUMERD_SMOKE_RELEASES", ",".join(MATRIX)).split(","))

_HERE = Path(__file__).parent
_numbers = itertools.count()

ClusterFactory = Callable[..., kafka.Cluster]
SecureFactory = Callable[..., SecureCluster]
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
    marked = metafunc.definition.get_closest_marker
    releases = SMOKE if marked("smoke") else (MAIN_RELEASE,)
    assert set(releases) <= set(MATRIX), f"CONSUMERD_SMOKE_RELEASES: {releases}, known are {MATRIX}"
    if FULL:
        releases = MATRIX + NEWER if marked("newer_brokers") else MATRIX
    metafunc.parametrize("release", releases, scope="session")


def require(release: str) -> None:
    """Skip (or fail, where CI requires Kafka) unless the jars for a cluster of ``release`` are or can be had."""
    with require_jars():
        kafka.jars(release)
        if kafka.has_zookeeper(release):
            kafka.jars(kafka.old_consumer_release(release))


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
            running[release, brokers] = make_cluster(release, brokers).__enter__()
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
        started.append(make_cluster(release, brokers, **options).__enter__())
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()


@pytest.fixture(scope="module")
def secure_clusters() -> Iterator[SecureFactory]:
    """Give the running cluster of a release, starting it on first use; one at a time."""
    running: dict[tuple[str, Kdc | None], SecureCluster] = {}

    def get(release: str, kdc: Kdc | None = None) -> SecureCluster:
        require(release)
        if (release, kdc) not in running:
            for key in list(running):
                running.pop(key).close()
            running[release, kdc] = start_secured(release, kdc)
        return running[release, kdc]

    yield get
    for cluster in running.values():
        cluster.close()


@pytest.fixture
def own_secure_cluster() -> Iterator[SecureFactory]:
    """Start clusters that the test may break; they are stopped after it."""
    started: list[SecureCluster] = []

    def get(release: str, kdc: Kdc | None = None, **options: str) -> SecureCluster:
        require(release)
        started.append(start_secured(release, kdc, **options))
        return started[-1]

    yield get
    for cluster in started:
        cluster.close()


@pytest.fixture(scope="module")
def kdc() -> Iterator[Kdc]:
    """A Kerberos server for the module."""
    require_kerberos()
    with Kdc() as running:
        yield running


def start_secured(
    release: str,
    kdc: Kdc | None,
    *,
    zookeeper_sasl: str | None = None,
    zookeeper_tls: str | None = None,
    **properties: str,
) -> SecureCluster:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    cluster = SecureCluster(
        release, kdc=kdc, properties=given, zookeeper_sasl=zookeeper_sasl, zookeeper_tls=zookeeper_tls
    ).__enter__()
    if zookeeper_sasl is not None or zookeeper_tls is not None:
        return cluster  # its tests say who they are at ZooKeeper, and nobody at brokers
    if kafka.parse_release(release) >= (0, 10):
        cluster.add_scram_users()
    return cluster


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
