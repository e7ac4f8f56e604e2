# SPDX-License-Identifier: Apache-2.0
"""kafka-python: ``poll`` of up to 10,000 records, CRCs verified, no group."""

from __future__ import annotations

from kafka import KafkaConsumer, TopicPartition

from bench.readers.telling import FETCH_BYTES, Teller, run_loop


def consume(bootstrap: str, topic: str, _records: int) -> None:
    """Read the topic from its beginning, forever."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
        max_poll_records=10_000,
    )
    consumer.assign([TopicPartition(topic, 0)])
    teller = Teller()
    while True:
        for records in consumer.poll(timeout_ms=1000).values():
            teller.add(len(records))


if __name__ == "__main__":
    run_loop(__doc__, consume)
