# SPDX-License-Identifier: Apache-2.0
"""The embedded broker of Kafka 0.6 and 0.7 for tests, and a client of it that says exactly what a test wants."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from consumerd.embedded.legacy.broker import LegacyBrokerSettings
from consumerd.wire.legacy.messages import (
    LATEST_TIME,
    LegacyFetchRequest,
    LegacyMultiFetchRequest,
    LegacyOffsetsRequest,
    LegacyProduceRequest,
    LegacyRequest,
)
from consumerd.wire.legacy.session import encode_legacy_request
from consumerd.wire.legacy.wire_types import VERSION
from tests.support.raw_client import RawClient, raw_client

MOST: Final = 1 << 20
NOTHING: Final = LegacyMultiFetchRequest(requests=())
"""A request that every broker answers, without looking at its logs."""


class LegacyClient:
    """One connection."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw

    def send(self, request: LegacyRequest[Any]) -> None:
        """Send a request, and wait for nothing."""
        self.raw.send(encode_legacy_request(request))

    async def receive_frame(self) -> bytes:
        """Return the next response with its size."""
        head = await self.raw.receive_bytes(4)
        (size,) = struct.unpack(">i", head)
        return head + await self.raw.receive_bytes(size)

    async def ask(self, request: LegacyRequest[Any]) -> Any:
        """Send a request and return its response."""
        self.send(request)
        return request.decode_response(VERSION, memoryview((await self.receive_frame())[4:]))

    async def produce(self, messages: bytes, topic: str = "t", partition: int = 0) -> None:
        """Store messages; return when it is done. Raises IncompleteReadError if the broker closes the connection."""
        self.send(LegacyProduceRequest(topic=topic, partition=partition, messages=messages))
        await self.ask(NOTHING)

    async def fetch(self, offset: int = 0, most: int = MOST, topic: str = "t", partition: int = 0) -> tuple[int, bytes]:
        """Return error code and bytes."""
        found = await self.ask(LegacyFetchRequest(topic=topic, partition=partition, offset=offset, max_size=most))
        return found.error_code, bytes(found.messages)

    async def offsets(
        self, time: int = LATEST_TIME, most: int = 100, topic: str = "t", partition: int = 0
    ) -> list[int]:
        """Return the offsets of an answer without an error."""
        request = LegacyOffsetsRequest(topic=topic, partition=partition, time=time, max_number=most)
        found = await self.ask(request)
        assert found.error_code == 0
        return list(found.offsets)

    async def receive_end(self) -> bytes:
        """Return what comes until the broker closes the connection."""
        return await self.raw.receive_rest()


@asynccontextmanager
async def legacy_client(port: int) -> AsyncIterator[LegacyClient]:
    """Connect to a port of this machine."""
    async with raw_client(port) as raw:
        yield LegacyClient(raw)


def legacy_settings(directory: Path, *, zookeeper: str | None = None, **settings: Any) -> LegacyBrokerSettings:
    """Return settings of a broker with three partitions of each topic; names of ``log`` settings go there."""
    base = LegacyBrokerSettings(directory=directory, zookeeper=zookeeper, num_partitions=3)
    of_log = {name: settings.pop(name) for name in list(settings) if not hasattr(base, name)}
    return replace(base, log=replace(base.log, **of_log), **settings)
