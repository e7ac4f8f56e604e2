# SPDX-License-Identifier: Apache-2.0
"""aiokafka's ``getmany`` loop from the end of the topic; notes arrival times.

Usage: ``bootstrap topic partitions path``.

It writes the send and arrival time of each value to the file ``path``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.latencies.stamps import Arrivals


async def consume(bootstrap: str, topic: str, partitions: int, path: Path) -> None:
    """Read the topic from its end, forever."""
    arrivals = Arrivals(path)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="latest")
    await consumer.start()
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    while True:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            arrivals.add([record.value for record in records])


if __name__ == "__main__":
    asyncio.run(consume(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
