# SPDX-License-Identifier: Apache-2.0
"""The misbehaving TCP proxy on an event loop of a thread of its own, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from tests.support.tcp_proxy import TcpProxy

_LIMIT_S = 20.0


class ProxyThread:
    """A proxy before a server on loopback. ``with`` starts and stops it."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._started: Future[tuple[TcpProxy, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._proxy, self._loop, self._over = self._started.result(_LIMIT_S)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._do(self._over.set)
        self._thread.join(_LIMIT_S)

    async def _serve(self) -> None:
        async with TcpProxy(self._target_port) as proxy:
            over = asyncio.Event()
            self._started.set_result((proxy, asyncio.get_running_loop(), over))
            await over.wait()

    @property
    def address(self) -> str:
        """Return its host and port."""
        return self._proxy.connect_string

    def blackhole(self) -> None:
        """Hold everything back, from now on."""
        self._do(self._proxy.blackhole)

    def heal(self) -> None:
        """Pass on what was held back, and all that comes."""
        self._do(self._proxy.heal)

    def _do(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_LIMIT_S)
