# SPDX-License-Identifier: Apache-2.0
"""The whole broker killed under load, as a process on a real disk, while foreign clients write and a group reads."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.fuzz.broker import check_logs
from tests.support.embedded import EmbeddedProcess
from tests.support.waiting import wait_until
from tests.support.zookeeper import run_server

pytestmark = [pytest.mark.records, pytest.mark.drawn]

KILLS = int(os.environ.get("CONSUMERD_KILLS", "8"))
PARTITIONS = 3
TOPIC = "orders"
GROUP = "tellers"
_QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 20}
"""They do not tell of each connection that is refused, and come back at once."""


class _Client(threading.Thread):
    """Repeats ``step`` until the block is left, which raises what it failed with."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self.step()
            self.finish()
        except BaseException as error:  # noqa: BLE001 - raised where the block is left
            self._failure = error

    def step(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(30)
        assert not self.is_alive(), f"{type(self).__name__} does not end"
        if self._failure is not None:
            raise self._failure


class _Writer(_Client):
    """librdkafka's producer with acks -1; ``acknowledged`` holds the value of each partition and offset it was told."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self._number = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 2,
                "compression.type": "lz4",
                # what has gathered while the broker was away must fit into one of its segments
                "batch.num.messages": 100,
                **_QUIET,
            }
        )

    def step(self) -> None:
        for _ in range(20):
            self._number += 1
            value = b"%d " % self._number * (1 + self._number % 13)
            self._producer.produce(TOPIC, value, partition=self._number % PARTITIONS, on_delivery=self._delivered)
        self._producer.poll(0.005)
        self._producer.flush(0.02)  # what is not out by now is sent beside what follows

    def finish(self) -> None:
        assert not self._producer.flush(20), "not all that was sent was acknowledged in the end"
        assert self._number == len(self.acknowledged)

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None
        where = (message.partition(), message.offset())
        assert where not in self.acknowledged, f"{where} was acknowledged twice"
        self.acknowledged[where] = message.value()


class _Member(_Client):
    """librdkafka's consumer in a group; ``committed`` is how far each partition's commits were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.committed: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                **_QUIET,
            }
        )
        self._consumer.subscribe([TOPIC])

    def step(self) -> None:
        if not any(message.error() is None for message in self._consumer.consume(200, 0.05)):
            return
        try:
            kept = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # the broker is down: nothing was promised
        for one in kept:
            if one.error is None and one.offset >= 0:
                self.committed[one.partition] = one.offset

    def finish(self) -> None:
        self._consumer.close()


@contextlib.contextmanager
def _observer(bootstrap: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def _read_committed(bootstrap: str) -> dict[int, int]:
    with _observer(bootstrap) as consumer:
        kept = consumer.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)], timeout=10)
    return {one.partition: one.offset for one in kept}


def _read_all(bootstrap: str) -> dict[tuple[int, int], bytes]:
    found: dict[tuple[int, int], bytes] = {}
    with _observer(bootstrap) as consumer:
        here = [TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(one, timeout=10) for one in here]
        assert all(low == 0 for low, _ in ends)
        consumer.assign(here)

        def has_all() -> bool:
            for message in consumer.consume(5000, 0.2):
                assert message.error() is None
                found[message.partition(), message.offset()] = message.value()
            return len(found) >= sum(high for _, high in ends)

        wait_until(has_all, "all records are read", 20)
    return found


def _forget_registration(zookeeper: str) -> None:
    """Take the dead broker's nodes away, as somebody does who knows that it is dead: they linger for its session."""
    client = KazooClient(zookeeper)
    client.start()
    try:
        for path in ("/brokers/ids/0", "/controller"):
            with contextlib.suppress(NoNodeError):
                client.delete(path)
    finally:
        client.stop()
        client.close()


@pytest.mark.timeout(300)
def test_kills_under_load_lose_no_acknowledged_record_and_no_commit(tmp_path: Path) -> None:
    """A process may die at any instruction; what it has said is true all the same, of records as of a group's positions."""
    dice = random.Random(20)
    with run_server() as zookeeper, EmbeddedProcess(tmp_path, "--zookeeper", zookeeper.connect_string) as broker:
        broker.create_topic(TOPIC, PARTITIONS, segment_bytes="50000", index_interval_bytes="512")
        with _Writer(broker.bootstrap) as writer, _Member(broker.bootstrap) as member:
            for _ in range(KILLS):
                written = len(writer.acknowledged) + dice.randrange(1, 400)
                committed = sum(member.committed.values())
                wait_until(lambda: len(writer.acknowledged) >= written, "records are acknowledged", 30)  # noqa: B023
                wait_until(lambda: sum(member.committed.values()) > committed, "positions are kept", 30)  # noqa: B023
                broker.kill()
                promised = dict(member.committed)
                _forget_registration(zookeeper.connect_string)
                broker.start()
                kept = _read_committed(broker.bootstrap)
                assert all(kept[number] >= offset for number, offset in promised.items())
        found = _read_all(broker.bootstrap)
        assert {where: found.get(where) for where in writer.acknowledged} == writer.acknowledged
        assert broker.stop() == 0
        assert check_logs(tmp_path / "cluster" / "logs") > KILLS
        assert "state_lost" not in broker.log()
        assert "Traceback" not in broker.log()
