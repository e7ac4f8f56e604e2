# SPDX-License-Identifier: Apache-2.0
"""The misbehaving TCP proxy on an event loop of a thread of its own, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from tests.support.tcp_proxy import FrameHook, TcpProxy

_LIMIT_S = 20.0


class ProxyThread:
    """A proxy before a server on loopback. ``with`` starts and stops it.

    With ``tls`` clients speak TLS, and the server is spoken to in plain text.
    """

    def __init__(self, target_port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._target_port = target_port
        self._tls = tls
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
        async with TcpProxy(self._target_port, tls=self._tls) as proxy:
            over = asyncio.Event()
            self._started.set_result((proxy, asyncio.get_running_loop(), over))
            await over.wait()

    @property
    def address(self) -> str:
        """Return its host and port."""
        return self._proxy.connect_string

    @property
    def port(self) -> int:
        """Return its port."""
        return self._proxy.port

    def decide(self, on_frame: FrameHook) -> None:
        """Have each frame decided on, until :meth:`heal`."""
        self._do(lambda: setattr(self._proxy, "on_frame", on_frame))

    def delay(self, seconds: float) -> None:
        """Pass each answer on so late, from now on."""
        self._do(lambda: setattr(self._proxy, "delay_s", seconds))

    def cut(self) -> None:
        """Reset all connections."""
        self._do(self._proxy.cut)

    def blackhole(self) -> None:
        """Hold everything back, from now on."""
        self._do(self._proxy.blackhole)

    def heal(self) -> None:
        """Pass on what was held back, and all that comes."""

        def heal() -> None:
            self._proxy.on_frame = None
            self._proxy.heal()

        self._do(heal)

    def _do(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_LIMIT_S)
