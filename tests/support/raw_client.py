# SPDX-License-Identifier: Apache-2.0
"""A client that says exactly what a test wants, and hears exactly what comes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from consumerd.aio.timeouts import timeout
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.schema import Request
from consumerd.wire.session import encode_request

PATIENCE_S: Final = 20.0


class RawClient:
    """One connection; every wait fails after :data:`PATIENCE_S`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    def send_request(self, request: Request[Any], version: int, correlation_id: int = 1) -> None:
        """Send a request, and wait for nothing."""
        self.send(encode_request(request, version, correlation_id=correlation_id, client_id="raw"))

    async def ask(self, request: Request[Any], version: int, correlation_id: int = 1) -> Any:
        """Send a request and return its answer."""
        self.send_request(request, version, correlation_id)
        got, body = await self.receive()
        assert got == correlation_id
        return request.decode_response(version, memoryview(body))

    async def receive(self) -> tuple[int, bytes]:
        """Return the next answer's correlation id, and its body."""
        async with timeout(PATIENCE_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
        return struct.unpack_from(">i", frame)[0], frame[4:]

    async def receive_bytes(self, size: int) -> bytes:
        """Return the next bytes."""
        async with timeout(PATIENCE_S):
            return await self._reader.readexactly(size)

    async def receive_rest(self) -> bytes:
        """Return all that comes until the broker closes the connection."""
        async with timeout(PATIENCE_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    def end(self) -> None:
        """Send nothing more, and go on listening."""
        self._writer.write_eof()

    def close(self) -> None:
        """Go."""
        self._writer.close()


@asynccontextmanager
async def raw_client(port: int, *, buffer_bytes: int = 1 << 16) -> AsyncIterator[RawClient]:
    """Connect to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=buffer_bytes)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


def fetch(
    topic: str, offset: int = 0, *, wait_ms: int = 0, min_bytes: int = 1, limit: int = 1 << 20, partition: int = 0
) -> FetchRequest:
    """Return a request for one partition."""
    one = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=limit)
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, topics=(FetchTopic(topic=topic, partitions=(one,)),))


def produce(topic: str, record_set: bytes, *, acks: int = 1, partition: int = 0) -> ProduceRequest:
    """Return a request for one partition."""
    one = ProducePartition(partition=partition, record_set=record_set)
    return ProduceRequest(acks=acks, timeout_ms=1000, topics=(ProduceTopic(topic=topic, partitions=(one,)),))
