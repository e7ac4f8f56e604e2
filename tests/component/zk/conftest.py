# SPDX-License-Identifier: Apache-2.0
"""One real server for the package, and proxies in front of it; every test that is a coroutine runs on each event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.loops import LOOPS
from tests.support.tcp_proxy import TcpProxy
from tests.support.zookeeper import run_server

_roots = itertools.count()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run coroutines on each loop."""
    return LOOPS


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
