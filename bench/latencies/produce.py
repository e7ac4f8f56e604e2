# SPDX-License-Identifier: Apache-2.0
"""Writes values that say when they were written, at a steady pace, until it is ended: ``bootstrap topic partitions rate``.

One at a time, as soon as it is due, with librdkafka and no lingering; the partitions take turns.
"""

from __future__ import annotations

import itertools
import sys
import time

from confluent_kafka import Producer

from bench.latencies.stamps import VALUE_BYTES, stamp


def main() -> None:
    """Produce."""
    bootstrap, topic, partitions, rate = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": 1, "socket.nagle.disable": True, "log_level": 3}
    )
    due = time.monotonic()
    for number in itertools.count():
        due += 1 / rate
        if (rest := due - time.monotonic()) > 0:
            time.sleep(rest)
        producer.produce(topic, stamp().ljust(VALUE_BYTES, b"."), partition=number % partitions)
        producer.poll(0)


if __name__ == "__main__":
    main()
