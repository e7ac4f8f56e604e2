"""A peer as a process: aiokafka's ``getmany`` loop over one topic, printing how many records it has seen, ten times a second."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, TopicPartition


async def consume(bootstrap: str, topic: str, partitions: int, fetch_bytes: int) -> None:
    """Read from the beginning, for ever."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=fetch_bytes,
        fetch_max_bytes=max(fetch_bytes, 52428800),
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    count, told = 0, 0.0
    while True:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            count += len(records)
        if (now := time.monotonic()) - told > 0.1:
            told = now
            sys.stdout.write(f"{now} {count}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--fetch-bytes", type=int, default=4194304)
    parser.add_argument("--partitions", type=int, default=1)
    args = parser.parse_args()
    asyncio.run(consume(args.bootstrap, args.topic, args.partitions, args.fetch_bytes))
