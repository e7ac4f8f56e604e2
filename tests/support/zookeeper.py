"""What tests against a real ZooKeeper share: clients of the adapter, and waiting for what another process does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from consumerd.aio.clock import boottime
from consumerd.zk.aiozk_client import AiozkClient


def make_client(
    connect_string: str,
    *,
    session_timeout_s: float = 6.0,
    now: Callable[[], float] = boottime,
    auth: tuple[str, bytes] | None = None,
    private: bool = False,
    call_timeout_s: float | None = None,
) -> AiozkClient:
    """Return a client that is not entered yet."""
    return AiozkClient(
        connect_string,
        session_timeout_s=session_timeout_s,
        now=now,
        random=random.random,
        auth=auth,
        private=private,
        call_timeout_s=call_timeout_s,
    )


async def eventually(condition: Callable[[], bool | Awaitable[bool]], *, within_s: float = 10.0) -> None:
    """Wait until a condition holds that nothing announces. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while True:
            result = condition()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(0.01)
