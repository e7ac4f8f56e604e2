# SPDX-License-Identifier: Apache-2.0
"""The producers of the demo: one per service, each with its own codec."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.demo.production import Outlet
from consumerd.demo.stream import SERVICES, Service
from consumerd.wire.compression import Codec

_LINGER_S: Final = 0.05
_CLOSE_TIMEOUT_S: Final = 1.0
"""Time limit, in seconds, of closing. In a successful run all records are acknowledged before; in a failed one, the
rest does not matter.
"""


@asynccontextmanager
async def open_outlets(bootstrap: str) -> AsyncIterator[Mapping[Service, Outlet]]:
    """Run a producer for each service; all request acknowledgements."""
    async with AsyncExitStack() as stack:
        outlets: dict[Service, Outlet] = {}
        for service in SERVICES:
            settings = ProducerSettings(
                codec=Codec[service.codec.upper()], linger_s=_LINGER_S, close_timeout_s=_CLOSE_TIMEOUT_S
            )
            outlets[service] = await stack.enter_async_context(
                open_producer(bootstrap, settings=settings, client_id=f"demo-{service.name}")
            )
        yield outlets
