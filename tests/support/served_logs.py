# SPDX-License-Identifier: Apache-2.0
"""The broker without ZooKeeper and without groups: real logs in a folder, real sockets, topics as a test wants them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from consumerd.embedded.appending import Appender
from consumerd.embedded.dispatch import Dispatcher
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.table import log_handlers
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.releases import get_imitation
from consumerd.embedded.server import BrokerServer, listen
from consumerd.embedded.topics import InvalidTopic, Topic, TopicExists
from consumerd.model import BrokerId, TopicPartition, find_topic_fault
from consumerd.wire.modern.metadata import MetadataBroker
from consumerd.zk.znodes import PartitionStateNode

BROKER = BrokerId(0)


class FolderTopics:
    """Topics without ZooKeeper: what was created, as logs below ``directory``."""

    def __init__(self, directory: Path, faults: BrokerFaults, settings: LogSettings) -> None:
        self._directory = directory
        self._faults = faults
        self._settings = settings
        self._topics: dict[str, Topic] = {}
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._subscribers: list[Callable[[frozenset[str]], None]] = []

    def names(self) -> Sequence[str]:
        """See Topics."""
        return sorted(self._topics)

    def find(self, topic: str) -> Topic | None:
        """See Topics."""
        return self._topics.get(topic)

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        """See Topics."""
        return self._logs.get(partition)

    def find_state(self, partition: TopicPartition) -> PartitionStateNode | None:
        """See Topics."""
        if partition not in self._logs:
            return None
        return PartitionStateNode(leader=BROKER, leader_epoch=0, isr=(BROKER,), controller_epoch=1)

    def is_follower(self, partition: TopicPartition) -> bool:
        """See Topics: there is no other broker."""
        return False

    def logs(self) -> Sequence[PartitionLog]:
        """See Topics."""
        return tuple(self._logs.values())

    async def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """See Topics; there are no settings of a topic's own."""
        assert not config
        self.add(topic, partitions)

    async def extend(self, topic: str, partitions: int) -> None:
        """See Topics."""
        known = self._topics.pop(topic)
        self._open(topic, range(len(known.partitions), partitions), self._settings)
        self._topics[topic] = Topic(name=topic, replicas=dict.fromkeys(range(partitions), (BROKER,)))
        self._tell(topic)

    def add(self, topic: str, partitions: int = 1, settings: LogSettings | None = None) -> None:
        """Create a topic, with settings that are not the broker's if a test wants it."""
        if find_topic_fault(topic):
            raise InvalidTopic(topic)
        if topic in self._topics:
            raise TopicExists(topic)
        self._open(topic, range(partitions), settings or self._settings)
        self._topics[topic] = Topic(name=topic, replicas=dict.fromkeys(range(partitions), (BROKER,)))
        self._tell(topic)

    def _open(self, topic: str, numbers: range, settings: LogSettings) -> None:
        for number in numbers:
            partition = TopicPartition.modern(topic, number)
            self._logs[partition] = PartitionLog.open(
                self._directory,
                partition,
                settings=settings,
                files=self._faults.files,
                now_ms=lambda: time.time_ns() // 1_000_000,
            )

    async def delete(self, topic: str) -> None:
        """See Topics; the files stay."""
        del self._topics[topic]
        for partition in [one for one in self._logs if one.topic == topic]:
            self._logs.pop(partition).close()
        self._tell(topic)

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """See Topics."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()

    def _tell(self, topic: str) -> None:
        for changed in self._subscribers:
            changed(frozenset({topic}))


@dataclass(frozen=True, kw_only=True)
class ServedLogs:
    """A broker that serves."""

    server: BrokerServer
    topics: FolderTopics
    faults: BrokerFaults
    appender: Appender = field(repr=False)

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return self.server.port

    @property
    def bootstrap(self) -> str:
        """What clients are given."""
        return f"127.0.0.1:{self.port}"

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        """Return a log that is there."""
        log = self.topics.find_log(TopicPartition.modern(topic, partition))
        assert log is not None
        return log


@asynccontextmanager
async def served_logs(
    directory: Path,
    *,
    as_release: str = "1.1",
    settings: LogSettings | None = None,
    partitions_of_new: int = 1,
    max_request_bytes: int = 100 << 20,
    write_timeout_s: float = 30.0,
) -> AsyncIterator[ServedLogs]:
    """Serve logs below ``directory``, in the message format of the release unless ``settings`` are given."""
    imitation = get_imitation(as_release)
    faults = BrokerFaults()
    settings = settings or replace(LogSettings(), message_format=imitation.message_format)
    topics = FolderTopics(directory, faults, settings)
    server = listen("127.0.0.1", 0, max_request_bytes=max_request_bytes, write_timeout_s=write_timeout_s)
    try:
        async with Appender() as appender:
            handlers = log_handlers(
                topics,
                appender,
                faults,
                broker=MetadataBroker(node_id=BROKER, host="127.0.0.1", port=server.port),
                cluster_id=lambda: "served-logs",
                partitions_of_new=partitions_of_new,
            )
            async with server.serving(Dispatcher(handlers, imitation, faults)):
                yield ServedLogs(server=server, topics=topics, faults=faults, appender=appender)
    finally:
        server.close()
        topics.close()
