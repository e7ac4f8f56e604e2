# SPDX-License-Identifier: Apache-2.0
"""The library's SimpleConsumer: one fetch after another, decoded, CRCs verified, no group."""

from __future__ import annotations

import asyncio

from bench.readers.telling import FETCH_BYTES, Teller, run_loop
from consumerd.api import TopicPartition, open_simple_consumer


async def consume(bootstrap: str, topic: str) -> None:
    """Read the topic from its beginning, forever."""
    teller, partition, position = Teller(), TopicPartition.modern(topic, 0), 0
    async with open_simple_consumer(bootstrap) as consumer:
        while True:
            found = await consumer.fetch(partition, position, max_bytes=FETCH_BYTES, max_wait_s=0.5)
            position = found.batch.next_offset
            teller.add(len(found.batch))


if __name__ == "__main__":
    run_loop(__doc__, lambda bootstrap, topic, _: asyncio.run(consume(bootstrap, topic)))
