# SPDX-License-Identifier: Apache-2.0
"""The mirrors that ``bench.mirror_peers`` compares, as readers whose records are counted in the target.

Each begins anew with an empty topic in the target, of as many partitions as the source's. Records are counted by the
log ends of that topic. A transaction's marker counts as a record there: about one a second in each partition.

``consumerd mirror``
    Has its default settings and the codec: transactions of 1 s, batches of 512 KiB. It writes positions and maps of
    offsets, so each record is there once.
MirrorMaker 1
    Has the old consumer, as the groups that it would carry over have, with fetches of 8 MB. Its producer has
    ``acks=all``, batches of 512 KiB and 64 MiB of buffer, and waits 5 ms for more records. Each record is there at
    least once.
MirrorMaker 2
    Runs by itself (``org.apache.kafka.connect.mirror.MirrorMaker``), with one task for each partition, and fetches of 8
    MB, polled by 5,000 records. Its producer is set as that of MirrorMaker 1. Names are kept
    (``IdentityReplicationPolicy``). Heartbeats, checkpoints, and the copying of settings and ACLs are off; offset syncs
    are on, as maps of offsets are here. Each record is there at least once.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.readers.running import ReaderFailed, Running, Source, Starter
from bench.readers.telling import FETCH_BYTES
from bench.slopes import Sample
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, java_command, write_properties
from tests.support.mirror_client import maker_command
from tests.support.waiting import wait_until

PARTITIONS: Final = 4
"""Partitions of the source's topics."""
MAKER_2: Final = "3.9.1"
"""Release of MirrorMaker 2, the last with clients for brokers as old as 1.1.1 and older."""

_HEAP: Final = "1g"
_LOOK_S: Final = 0.2
_PRODUCER: Final = {
    "acks": "all",
    "batch.size": str(512 << 10),
    "buffer.memory": str(64 << 20),
    "linger.ms": "5",
    "max.request.size": str(4 << 20),
}


@dataclass
class _Mirrored:
    """A mirror, and the log ends of its target topic over time."""

    pid: int
    topic: str
    ended: Callable[[], str | None]
    consumer: Consumer
    samples: list[Sample]

    def series(self) -> Sequence[Sample]:
        if (reason := self.ended()) is not None:
            raise ReaderFailed(reason)
        if not self.samples or time.monotonic() - self.samples[-1][0] >= _LOOK_S:
            places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            try:
                count = sum(self.consumer.get_watermark_offsets(one, timeout=5)[1] for one in places)
            except KafkaException as error:
                raise ReaderFailed(f"the target does not tell its log ends: {error}") from error
            self.samples.append((time.monotonic(), count))
        return self.samples


@contextmanager
def _empty_topic(target: Cluster, topic: str) -> Iterator[Consumer]:
    """Create the target topic, and delete it at the end."""
    target.create_topic(topic, PARTITIONS)
    with closing(Consumer({"bootstrap.servers": target.bootstrap, "group.id": "bench"})) as consumer:
        yield consumer
        target.delete_topic(topic)
        wait_until(lambda: topic not in consumer.list_topics(timeout=5).topics, "the topic is deleted", 60)


def consumerd(target: Cluster, codec: str) -> Starter:
    """Return a starter of ``consumerd mirror`` into a target."""

    @contextmanager
    def start(source: Source, folder: Path) -> Iterator[Running]:
        settings = settings_for(
            source.cluster.zookeeper,
            f"bench-{time.monotonic_ns()}",
            topics=(source.topic,),
            sink={"type": "kafka", "bootstrap": target.bootstrap, "compression": codec},
            log={"level": "info"},
        )
        with (
            _empty_topic(target, source.topic) as consumer,
            Daemon(folder, "mirror", settings, command="mirror") as daemon,
        ):

            def find_end() -> str | None:
                return daemon.log()[-1000:] if daemon.process.poll() is not None else None

            yield _Mirrored(daemon.process.pid, source.topic, find_end, consumer, [])
            daemon.terminate()

    return start


def mirror_maker_1(target: Cluster, codec: str) -> Starter:
    """Return a starter of the source's MirrorMaker 1 into a target."""

    def command(source: Source, folder: Path) -> list[str]:
        reading = write_properties(
            folder / "consumer.properties",
            {
                "zookeeper.connect": source.cluster.zookeeper,
                "group.id": f"bench-{time.monotonic_ns()}",
                "auto.offset.reset": "smallest",
                "fetch.message.max.bytes": str(FETCH_BYTES),
            },
        )
        writing = write_properties(
            folder / "producer.properties",
            {"bootstrap.servers": target.bootstrap, "compression.type": codec, **_PRODUCER},
        )
        options = ["--consumer.config", str(reading), "--producer.config", str(writing)]
        options += ["--whitelist", source.topic, "--num.streams", "1"]
        return java_command(source.cluster.release, "kafka.tools.MirrorMaker", *options, heap=_HEAP)

    return _java(target, command)


def mirror_maker_2(target: Cluster, codec: str) -> Starter:
    """Return a starter of MirrorMaker 2 into a target."""

    def command(source: Source, folder: Path) -> list[str]:
        # Its positions and its group are named after the source: by a name of its own each run begins at the start.
        properties = maker_properties(f"s{time.monotonic_ns()}", source, target, codec)
        return maker_command(MAKER_2, str(write_properties(folder / "mm2.properties", properties)), heap=_HEAP)

    return _java(target, command)


def maker_properties(alias: str, source: Source, target: Cluster, codec: str) -> Mapping[str, str]:
    """Return the settings of MirrorMaker 2.

    Args:
        alias: name of the source.
    """
    return {
        "clusters": f"{alias}, target",
        f"{alias}.bootstrap.servers": source.cluster.bootstrap,
        "target.bootstrap.servers": target.bootstrap,
        f"{alias}->target.enabled": "true",
        f"target->{alias}.enabled": "false",
        f"{alias}->target.topics": source.topic,
        "tasks.max": str(PARTITIONS),
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "replication.factor": "1",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.configs.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "offset-syncs.topic.location": "target",
        **{
            f"{topic}.replication.factor": "1"
            for topic in ("offset-syncs.topic", "offset.storage", "config.storage", "status.storage")
        },
        f"{alias}.consumer.max.poll.records": "5000",
        f"{alias}.consumer.max.partition.fetch.bytes": str(FETCH_BYTES),
        f"{alias}.consumer.fetch.max.bytes": str(FETCH_BYTES * PARTITIONS),
        "target.producer.compression.type": codec,
        **{f"target.producer.{name}": value for name, value in _PRODUCER.items()},
    }


def _java(target: Cluster, command: Callable[[Source, Path], Sequence[str]]) -> Starter:
    """Return a starter of a Java program that mirrors into a target."""

    @contextmanager
    def start(source: Source, folder: Path) -> Iterator[Running]:
        log = folder / "mirror-maker.log"
        with _empty_topic(target, source.topic) as consumer:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command(source, folder), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
                )

            def find_end() -> str | None:
                return log.read_text()[-1000:] if process.poll() is not None else None

            try:
                yield _Mirrored(process.pid, source.topic, find_end, consumer, [])
            finally:
                process.kill()
                process.wait()

    return start
