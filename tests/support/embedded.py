# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster for tests that are not asynchronous: as a process of its own, and in a thread of this one.

What they offer is called as in ``tests.support.kafka``, so that a test can run on either. Topics are made through ZooKeeper
by another client (kazoo) and records are sent and read by librdkafka (confluent-kafka): nothing of ours judges itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.coordinator.journal import partition_of
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.tied import tied_command
from consumerd.embedded.topics import OFFSETS_TOPIC
from consumerd.model import TopicPartition as TopicKey
from tests.support.cluster_thread import START_TIMEOUT_S, STOP_TIMEOUT_S, ClusterThread
from tests.support.topic_nodes import connected, create_topic_nodes
from tests.support.waiting import wait_until

T = TypeVar("T")


class EmbeddedFailed(Exception):
    """The process ended, or did not do in time what it should; carries the end of its log."""


class Embedded:
    """One broker and its ZooKeeper, as clients see them."""

    bootstrap = ""
    zookeeper = ""

    @property
    def cluster_settings(self) -> Mapping[str, Any]:
        """The ``cluster`` section of a daemon's settings."""
        return {"zookeeper": self.zookeeper} if self.zookeeper else {"zookeeper": None, "bootstrap": self.bootstrap}

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic and wait until each partition is served; ``configs`` with ``_`` for ``.``.

        By znodes, as Kafka's own tools of the time do; the broker, which is the controller, sees them.
        """
        with connected(self.zookeeper) as zookeeper:
            create_topic_nodes(zookeeper, topic, partitions, configs)
        wait_until(lambda: self._serves(topic, partitions), f"{topic} is served")

    def produce(self, topic: str, lines: bytes, codec: str = "none") -> None:
        """Send ``key<TAB>value`` lines and wait until they are acknowledged. Raises EmbeddedFailed."""
        producer = Producer({**self._client(), "acks": "all", "compression.type": codec})
        failed: list[str] = []
        for line in lines.splitlines():
            key, tab, value = line.partition(b"\t")
            if not tab:
                raise ValueError(f"no tab in {line!r}")
            producer.produce(
                topic, value, key, on_delivery=lambda error, _: failed.append(str(error)) if error else None
            )
        left = producer.flush(120)  # a busy machine may be opening thousands of logs
        if left or failed:
            raise EmbeddedFailed(f"{left + len(failed)} records of {topic} were not written: {failed[:1]}")

    def read(self, topic: str, partitions: int = 1, timeout_s: float = 30.0) -> list[tuple[bytes | None, bytes | None]]:
        """Return keys and values of all that is in a topic. Raises TimeoutError."""
        with self._consumer() as consumer:
            here = [TopicPartition(topic, number, 0) for number in range(partitions)]
            wanted = sum(high for _, high in map(consumer.get_watermark_offsets, here))
            consumer.assign(here)
            found: list[tuple[bytes | None, bytes | None]] = []

            def has_all() -> bool:
                for message in consumer.consume(1000, 0.1):
                    if message.error() is not None:
                        raise EmbeddedFailed(f"{topic}: {message.error()}")
                    found.append((message.key(), message.value()))
                return len(found) >= wanted

            wait_until(has_all, f"{wanted} records of {topic}", timeout_s)
            return found

    def count(self, topic: str, partitions: int = 1) -> int:
        """Return how many offsets have been given to the records of a topic that is there."""
        with self._consumer() as consumer:
            here = [TopicPartition(topic, number) for number in range(partitions)]
            return sum(consumer.get_watermark_offsets(one, timeout=5)[1] for one in here)

    def _serves(self, topic: str, partitions: int) -> bool:
        with self._consumer() as consumer, contextlib.suppress(KafkaException):
            # all of them: asking for one by its name might make it
            known = consumer.list_topics(timeout=5).topics.get(topic)
            if known is not None and known.error is None and len(known.partitions) == partitions:
                for number in known.partitions:
                    consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=5)
                return True
        return False

    @contextlib.contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer({**self._client(), "group.id": "tests", "enable.auto.commit": False})
        try:
            yield consumer
        finally:
            consumer.close()

    def _client(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}


class EmbeddedProcess(Embedded):
    """``consumerd broker`` on free ports; ``with`` starts and stops it. Data is in ``directory`` and stays there."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.log_path = directory / "broker.log"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            self.stop()
        finally:
            self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process; there is one after the first start."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start it, on the ports it had, and wait for its addresses. Raises EmbeddedFailed."""
        arguments = list(self._arguments)
        if self.bootstrap and "," not in self.bootstrap:
            arguments += ["--port", self.bootstrap.rpartition(":")[2]]
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                # a run of tests that is killed must not leave one behind
                tied_command(
                    sys.executable,
                    "-m",
                    "consumerd",
                    "broker",
                    "--directory",
                    str(self.directory / "cluster"),
                    *arguments,
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        os.set_blocking(stdout, False)
        said = b""

        def has_started() -> bool:
            nonlocal said
            with contextlib.suppress(BlockingIOError):
                said += os.read(stdout, 4096)
            if self.process.poll() is not None:
                raise EmbeddedFailed(f"consumerd broker ended with {self.process.returncode}:\n{self.log()[-3000:]}")
            return said.count(b"\n") >= (1 if "--without-zookeeper" in arguments else 2)

        try:
            wait_until(has_started, "the broker says where it is", START_TIMEOUT_S)
        except TimeoutError as error:
            raise EmbeddedFailed(f"{error}:\n{self.log()[-3000:]}") from None
        addresses = dict(line.split(" ", 1) for line in said.decode().splitlines())
        self.bootstrap, self.zookeeper = addresses["bootstrap"], addresses.get("zookeeper", "")

    def stop(self) -> int:
        """End it in order and return its exit code. Raises EmbeddedFailed when it does not end in time."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise EmbeddedFailed(f"the broker did not end within {STOP_TIMEOUT_S} s:\n{self.log()[-3000:]}") from None
        self._close()
        return code

    def kill(self) -> None:
        """SIGKILL; its ZooKeeper goes with it. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def _close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    def log(self) -> str:
        """Return its log so far."""
        return self.log_path.read_text(errors="replace")


class EmbeddedThread(ClusterThread[EmbeddedCluster], Embedded):
    """The broker in this process, on an event loop of a thread of its own, so that a test can make it fail.

    ``zookeeper`` is the connect string of one that runs, with a chroot that no other broker uses; data is in
    ``directory`` and stays there; None for a cluster without ZooKeeper. ``nodes`` is the number of brokers, ``settings``
    are those of BrokerSettings. ``with`` starts and stops it; leaving raises
    what the broker failed with in the meantime.
    """

    def __init__(self, directory: Path, zookeeper: str | None, *, nodes: int = 1, **settings: Any) -> None:
        self.zookeeper = zookeeper or ""
        if zookeeper is None:
            settings = {"as_release": "4.0", **settings}
        self._logs = directory / "logs"
        super().__init__(
            EmbeddedCluster(
                directory,
                zookeeper=zookeeper,
                without_zookeeper=zookeeper is None,
                nodes=nodes,
                make_broker=partial(BrokerSettings, **settings),
            )
        )

    def __enter__(self) -> Self:
        super().__enter__()
        self.bootstrap = self._cluster.bootstrap
        return self

    def arm(self, fault: Callable[[BrokerFaults], T]) -> T:
        """Arm or take back faults of the broker that runs now."""

        async def act(cluster: EmbeddedCluster) -> T:
            return fault(cluster.broker.faults)

        return self.do(act)

    def elect_preferred_leaders(self) -> None:
        """Have each partition led by its first replica again."""
        self.do(lambda cluster: cluster.elect_preferred_leaders())

    def find_leader(self, topic: str, partition: int = 0) -> int | None:
        """Return the number of the broker that leads a partition, as the cluster knows it."""

        async def look(cluster: EmbeddedCluster) -> int | None:
            state = cluster.broker.topics.find_state(TopicKey.modern(topic, partition))
            return None if state is None else state.leader

        return self.do(look)

    def find_coordinator(self, group: str) -> int | None:
        """Return the number of the broker that coordinates a group; None before there is one."""
        partitions = self.do(self._offsets_partitions)
        return None if not partitions else self.find_leader(OFFSETS_TOPIC, partition_of(group, partitions))

    @staticmethod
    async def _offsets_partitions(cluster: EmbeddedCluster) -> int:
        topic = cluster.broker.topics.find(OFFSETS_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic and return when it is served; ``configs`` with ``_`` for ``.``."""
        self.do(lambda cluster: cluster.broker.create_topic(topic, partitions, **configs))

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """Return a partition's log files, oldest first."""
        return sorted((self._logs / f"{topic}-{partition}").glob("*.log"))


class EmbeddedPair:
    """Two embedded brokers, as ``tests.support.node_script`` plays with them."""

    def __init__(self, cluster: EmbeddedThread) -> None:
        self._cluster = cluster
        self.zookeeper = cluster.zookeeper
        self.addresses = cluster.bootstrap.split(",")

    def stop(self, number: int) -> None:
        """Stop a broker in order."""
        self._cluster.stop_node(number)

    def kill(self, number: int) -> None:
        """Kill a broker."""
        self._cluster.kill_node(number)

    def start(self, number: int) -> None:
        """Start it again, on its port."""
        self._cluster.start_node(number)
