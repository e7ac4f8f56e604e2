# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka (librdkafka): ``consume(10000)``, queues of a million messages, no commits, CRCs not verified."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.readers.telling import FETCH_BYTES, Teller, run_loop


def consume(bootstrap: str, topic: str, _records: int) -> None:
    """Read the topic from its beginning, forever."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "max.partition.fetch.bytes": FETCH_BYTES,
            "fetch.wait.max.ms": 100,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    teller = Teller()
    while True:
        messages = consumer.consume(10_000, 1.0)
        for message in messages:
            if (error := message.error()) is not None:
                raise RuntimeError(str(error))
        teller.add(len(messages))


if __name__ == "__main__":
    run_loop(__doc__, consume)
