# SPDX-License-Identifier: Apache-2.0
"""aiokafka: ``getmany``, with its C extension, CRCs verified, no group."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer

from bench.readers.telling import FETCH_BYTES, Teller, run_loop


async def consume(bootstrap: str, topic: str) -> None:
    """Read the topic from its beginning, forever."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    teller = Teller()
    while True:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            teller.add(len(records))


if __name__ == "__main__":
    run_loop(__doc__, lambda bootstrap, topic, _: asyncio.run(consume(bootstrap, topic)))
