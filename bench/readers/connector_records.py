# SPDX-License-Identifier: Apache-2.0
"""The library's ConsumerConnector, iterating records: a group of one, positions committed to ZooKeeper."""

from __future__ import annotations

import asyncio

from bench.readers.connector_batches import connect, open_stream
from bench.readers.telling import Teller, run_loop

_TOLD_EVERY = 1000


async def consume(zookeeper: str, topic: str) -> None:
    """Read the topic from its beginning, forever."""
    teller, count = Teller(), 0
    async with connect(zookeeper) as connector:
        async for _ in await open_stream(connector, topic):
            count += 1
            if count % _TOLD_EVERY == 0:
                teller.reach(count)


if __name__ == "__main__":
    run_loop(__doc__, lambda zookeeper, topic, _: asyncio.run(consume(zookeeper, topic)))
