# SPDX-License-Identifier: Apache-2.0
"""Producers that are not ours, which say at which offset each record was acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from confluent_kafka import KafkaError, Message, Producer

from tests.support.kafka import Sent

FLUSH_S: Final = 30.0


class Sends(Protocol):
    """What a steady load needs of a producer: Kafka's own (``kafka.LedgerProducer``), or one of these."""

    def send(self, records: Iterable[Sent]) -> None:
        """Hand over records; those of a partition are sent in this order."""


class NotAcknowledged(Exception):
    """A record was refused, or not acknowledged in time."""


class Ledger:
    """librdkafka's producer; :meth:`finish` gives the acknowledged offset of each record. May be used from any thread.

    For brokers that list their versions: from 0.10 on.
    """

    def __init__(self, bootstrap: str, codec: str = "none", **settings: str) -> None:
        own = {name.replace("_", "."): value for name, value in settings.items()}
        # what goes wrong is told by what is not acknowledged; it need not be printed, too
        quiet = {"log_level": 0}
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "compression.type": codec, "linger.ms": 5, **quiet, **own}
        )
        self._lock = threading.Lock()
        self._sent = 0
        self._acknowledged: dict[tuple[str, int, int], Sent] = {}
        self._times_ms: dict[tuple[str, int, int], int] = {}
        self._refused: list[str] = []

    def send(self, records: Iterable[Sent]) -> None:
        """Hand over records; those of a partition are sent in this order."""
        for record in records:
            self._sent += 1
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                headers=list(record.headers),
                on_delivery=partial(self._delivered, record),
            )
        self._producer.poll(0)

    def acknowledged(self) -> Mapping[tuple[str, int, int], Sent]:
        """Return what was acknowledged so far, by (topic, partition, offset). Raises NotAcknowledged if one failed."""
        self._producer.poll(0)
        with self._lock:
            if self._refused:
                raise NotAcknowledged(f"{len(self._refused)} records: {self._refused[0]}")
            return dict(self._acknowledged)

    def finish(self) -> Mapping[tuple[str, int, int], Sent]:
        """Wait until all is acknowledged, and return it. Raises NotAcknowledged."""
        self._producer.flush(FLUSH_S)
        ledger = self.acknowledged()
        if len(ledger) != self._sent:
            raise NotAcknowledged(f"{self._sent} sent, {len(ledger)} acknowledged within {FLUSH_S} s")
        return ledger

    def times_ms(self) -> Mapping[tuple[str, int, int], int]:
        """Return the time that the producer has given each acknowledged record."""
        with self._lock:
            return dict(self._times_ms)

    def _delivered(self, record: Sent, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        with self._lock:
            if error is not None or offset is None:
                self._refused.append(str(error))
            else:
                self._acknowledged[record.topic, record.partition, offset] = record
                self._times_ms[record.topic, record.partition, offset] = message.timestamp()[1]


def send_all(bootstrap: str, records: Iterable[Sent], codec: str = "none") -> Mapping[tuple[str, int, int], Sent]:
    """Send records with a producer of their own and return where they are. Raises NotAcknowledged."""
    ledger = Ledger(bootstrap, codec)
    ledger.send(records)
    return ledger.finish()
