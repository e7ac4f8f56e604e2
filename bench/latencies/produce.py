# SPDX-License-Identifier: Apache-2.0
"""Producer of values that hold their send time, at a constant rate.

Usage: ``bootstrap topic partitions rate``.

It sends ``rate`` values/s until it is killed: one at a time, each as soon as it is due, to the partitions in turn. It
uses librdkafka without lingering.
"""

from __future__ import annotations

import itertools
import sys
import time

from confluent_kafka import Producer

from bench.latencies.stamps import VALUE_BYTES, stamp


def main() -> None:
    """Produce until the process is killed."""
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
