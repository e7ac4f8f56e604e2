# SPDX-License-Identifier: Apache-2.0
"""A proxy to ZooKeeper that counts what goes through it, for members that are processes of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Self

from tests.support.tcp_proxy import TcpProxy
from tests.support.zookeeper_operations import OperationCounter


class CountingProxy:
    """Forwards a port of its own to a ZooKeeper's, on an event loop in a thread. A context manager.

    ``counter`` may be read and cleared at any time; ``connect_string`` is without a chroot.
    """

    def __init__(self, port: int) -> None:
        self.counter = OperationCounter()
        self.connect_string = ""
        self._target = port
        self._ready = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="counting-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise TimeoutError("the proxy does not start")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop()
        self._thread.join(10)

    async def _run(self) -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stopping.set)
        async with TcpProxy(self._target) as proxy:
            proxy.on_frame = self.counter
            self.connect_string = proxy.connect_string
            self._ready.set()
            await stopping.wait()
