# SPDX-License-Identifier: Apache-2.0
"""The library's ConsumerConnector, iterating batches: a group of one, positions committed to ZooKeeper."""

from __future__ import annotations

import asyncio
import time

from bench.readers.telling import Teller, run_loop
from consumerd.api import ConsumerConnector, MessageStream, read_connector_settings


async def open_stream(connector: ConsumerConnector, topic: str) -> MessageStream:
    """Return the only stream of a topic."""
    (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
    return stream


def connect(zookeeper: str) -> ConsumerConnector:
    """Return a connector in a group of its own, with default settings."""
    group = f"bench-{time.monotonic_ns()}"
    return ConsumerConnector(read_connector_settings({"cluster": {"zookeeper": zookeeper}, "group": {"id": group}}))


async def consume(zookeeper: str, topic: str) -> None:
    """Read the topic from its beginning, forever."""
    teller = Teller()
    async with connect(zookeeper) as connector:
        async for batch in (await open_stream(connector, topic)).batches():
            teller.add(len(batch))


if __name__ == "__main__":
    run_loop(__doc__, lambda zookeeper, topic, _: asyncio.run(consume(zookeeper, topic)))
