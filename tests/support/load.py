# SPDX-License-Identifier: Apache-2.0
"""A steady flow of records into brokers, kept in a ledger, while a test does something else."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

from tests.support.kafka import Sent
from tests.support.ledger import Sends

_JOIN_S: Final = 30.0


class SteadyLoad:
    """Sends ``per_second`` records a second to each partition, in bursts ``tick_s`` apart, from a thread of its own.

    A tick that comes late is made up for, so that the rate holds on a busy machine. ``make_value`` says what the record of
    a number has. A context manager.
    """

    def __init__(
        self,
        producer: Sends,
        topics: Mapping[str, int],
        *,
        per_second: float,
        tick_s: float = 0.05,
        make_value: Callable[[int], bytes] = b"value %d".__mod__,
    ) -> None:
        self._producer = producer
        self._partitions = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
        self._per_second = per_second
        self._tick_s = tick_s
        self._make_value = make_value
        self._number = itertools.count()
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more. Raises what sending failed with."""
        self._stopping.set()
        self._thread.join(_JOIN_S)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        try:
            while not self._stopping.wait(max(0.0, began + sent / self._per_second + self._tick_s - time.monotonic())):
                due = int((time.monotonic() - began) * self._per_second)
                self._producer.send(
                    self._make(topic, partition) for _ in range(due - sent) for topic, partition in self._partitions
                )
                sent = due
        except OSError as error:  # the producer has gone
            self._error = error

    def _make(self, topic: str, partition: int) -> Sent:
        number = next(self._number)
        return Sent(topic, partition, b"key %d" % number, self._make_value(number))
