# SPDX-License-Identifier: Apache-2.0
"""One ZooKeeper and one broker for all that land with the installed command; tests keep to topics and groups of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.embedded import EmbeddedThread
from tests.support.loops import LOOP_ENVIRONMENTS, require_loop
from tests.support.zookeeper import run_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    """A server; who needs an empty one takes a chroot of their own."""
    with run_server() as server:
        yield server


@pytest.fixture(scope="session")
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """A broker that passes for 1.1; who makes it fail takes that back."""
    with EmbeddedThread(tmp_path_factory.mktemp("cluster"), f"{zookeeper.connect_string}/shared") as broker:
        yield broker


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names (topics, groups, chroots) that no other test of this run uses."""
    return lambda stem: f"{stem}-{next(_numbers)}"


@pytest.fixture(params=LOOP_ENVIRONMENTS)
def each_loop(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Run a test with each event loop that the daemon may have; gives the environment that makes it take this one."""
    require_loop(request.param)
    return LOOP_ENVIRONMENTS[request.param]
