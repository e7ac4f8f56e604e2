# SPDX-License-Identifier: Apache-2.0
"""What the tests of the embedded broker share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.zookeeper import run_server


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One ZooKeeper for all that leave it running; each test has a chroot of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
def chroot(request: pytest.FixtureRequest) -> str:
    """The part of it that is this test's; not there yet."""
    module = request.module.__name__.rpartition(".")[2]
    return "/" + "".join(one if one.isalnum() else "-" for one in f"{module}-{request.node.name}")


@pytest.fixture
def zookeeper(server: EmbeddedZooKeeper, chroot: str) -> str:
    """The connect string of this test's part."""
    return f"{server.connect_string}{chroot}"
