# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster for tests that are not asynchronous: as a process of its own, and in a thread of this one.

What they offer is called as in ``tests.support.kafka``, so that a test can run on either. Topics are made through ZooKeeper
by another client (kazoo) and records are sent and read by librdkafka (confluent-kafka): nothing of ours judges itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.tied import tied_command
from tests.support.topic_nodes import connected, create_topic_nodes
from tests.support.waiting import wait_until

T = TypeVar("T")

_START_TIMEOUT_S: Final = 40.0
_STOP_TIMEOUT_S: Final = 20.0


class EmbeddedFailed(Exception):
    """The process ended, or did not do in time what it should; carries the end of its log."""


class Embedded:
    """One broker and its ZooKeeper, as clients see them."""

    bootstrap = ""
    zookeeper = ""

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
        left = producer.flush(30)
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
        if self.bootstrap:
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
            return said.count(b"\n") >= 2

        try:
            wait_until(has_started, "the broker says where it is", _START_TIMEOUT_S)
        except TimeoutError as error:
            raise EmbeddedFailed(f"{error}:\n{self.log()[-3000:]}") from None
        addresses = dict(line.split(" ", 1) for line in said.decode().splitlines())
        self.bootstrap, self.zookeeper = addresses["bootstrap"], addresses["zookeeper"]

    def stop(self) -> int:
        """End it in order and return its exit code. Raises EmbeddedFailed when it does not end in time."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise EmbeddedFailed(f"the broker did not end within {_STOP_TIMEOUT_S} s:\n{self.log()[-3000:]}") from None
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


class EmbeddedThread(Embedded):
    """The broker in this process, on an event loop of a thread of its own, so that a test can make it fail.

    ``zookeeper`` is the connect string of one that runs, with a chroot that no other broker uses; data is in
    ``directory`` and stays there. ``settings`` are those of BrokerSettings. ``with`` starts and stops it; leaving raises
    what the broker failed with in the meantime.
    """

    def __init__(self, directory: Path, zookeeper: str, **settings: Any) -> None:
        self.zookeeper = zookeeper
        self._logs = directory / "logs"
        self._cluster = EmbeddedCluster(directory, zookeeper=zookeeper, make_broker=partial(BrokerSettings, **settings))
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]] | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="embedded broker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(_START_TIMEOUT_S)
        self.bootstrap = self._cluster.bootstrap
        return self

    def __exit__(self, *_exc: object) -> None:
        if not self._ended.done():
            self._put(None)
        self._ended.result(_STOP_TIMEOUT_S)
        self._thread.join(_STOP_TIMEOUT_S)

    def do(self, act: Callable[[EmbeddedCluster], Awaitable[T]]) -> T:
        """Run something on the broker's loop, in the task that entered the cluster, and return what comes of it."""
        outcome: Future[T] = Future()

        async def run() -> None:
            try:
                outcome.set_result(await act(self._cluster))
            except Exception as error:  # noqa: BLE001 - raised where it is heard
                outcome.set_exception(error)

        self._put(run)
        return outcome.result(_START_TIMEOUT_S)

    def arm(self, fault: Callable[[BrokerFaults], T]) -> T:
        """Arm or take back faults of the broker that runs now."""

        async def act(cluster: EmbeddedCluster) -> T:
            return fault(cluster.broker.faults)

        return self.do(act)

    def restart(self) -> None:
        """Stop the broker, which cuts its connections, and start it on its port with its logs."""

        async def act(cluster: EmbeddedCluster) -> None:
            await cluster.stop_broker()
            await cluster.start_broker()

        self.do(act)

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic and return when it is served; ``configs`` with ``_`` for ``.``."""
        self.do(lambda cluster: cluster.broker.create_topic(topic, partitions, **configs))

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """Return a partition's log files, oldest first."""
        return sorted((self._logs / f"{topic}-{partition}").glob("*.log"))

    def _put(self, job: Callable[[], Awaitable[None]] | None) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, job)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised where it is heard
            (self._ended if self._started.done() else self._started).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        async with self._cluster:
            self._loop = asyncio.get_running_loop()
            self._started.set_result(None)
            while (job := await self._jobs.get()) is not None:
                await job()
