"""One real server for the package, and proxies in front of it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.tcp_proxy import TcpProxy
from tests.support.zookeeper import run_server

_roots = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server for all tests here; who pauses it resumes it, who stops it takes one of their own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
async def proxy(server: EmbeddedZooKeeper) -> AsyncIterator[TcpProxy]:
    """A way to the server that can be disturbed."""
    async with TcpProxy(server.port) as between:
        yield between


@pytest.fixture
def root() -> str:
    """A path that no other test uses."""
    return f"/test-{next(_roots)}"
