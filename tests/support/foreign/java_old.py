# SPDX-License-Identifier: Apache-2.0
"""The Java clients of ZooKeeper's time: console producer, high-level consumer, and the tools that go with them."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from collections.abc import Mapping, Sequence

from kazoo.client import KazooClient

from tests.support.foreign.client import PATIENCE_S, Answer, ForeignClient, Member, NotOffered, Part, Record, Row
from tests.support.java_tools import JavaTools
from tests.support.kafka import JavaConsumer
from tests.support.registry import Registry
from tests.support.waiting import wait_until


class HighLevelMember:
    """A member of a group in ZooKeeper, where its partitions and positions are, too. It commits by itself."""

    def __init__(self, tools: JavaTools, registry: Registry, group: str, topic: str, name: str) -> None:
        self._registry, self._group, self._topic, self._name = registry, group, topic, name
        self._taken = 0
        self._consumer = tools.java_consumer(group, topic, consumer_id=name, auto_commit_interval_ms="200")

    def poll(self) -> list[int]:
        """See Member."""
        try:
            code = self._consumer.process.wait(0.1)
        except subprocess.TimeoutExpired:
            rows = _rows(self._consumer)
            new, self._taken = rows[self._taken :], len(rows)
            return [int(row.value or b"") for _, row in new]
        raise RuntimeError(f"the consumer ended with {code}: {self._consumer.log()[-2000:]}")

    def assigned(self) -> set[int]:
        """See Member."""
        owners = self._registry.owners(self._group, self._topic)
        return {number for number, owner in owners.items() if owner.thread == f"{self._group}_{self._name}-0"}

    def commit(self) -> None:
        """See Member."""

    def close(self) -> None:
        """See Member."""
        self._consumer.terminate()


class JavaOld(ForeignClient):
    """The clients of a release up to 1.1.1, whose groups are in ZooKeeper."""

    lacks = frozenset({Part.NULLS, Part.HEADERS, Part.NULL_HEADERS, Part.TIMES})

    def __init__(self, release: str, bootstrap: str, zookeeper: str) -> None:
        self.name = f"java-old-{release}"
        self._tools = JavaTools(release, zookeeper_address=zookeeper, bootstrap_address=bootstrap).__enter__()
        self._client: KazooClient | None = None

    def close(self) -> None:
        """See ForeignClient."""
        self._tools.close()
        if self._client is not None:
            self._client.stop()
            self._client.close()
            self._client = None

    def _registry(self) -> Registry:
        if self._client is None:
            self._client = KazooClient(self._tools.zookeeper)
            self._client.start()
        return Registry(self._client)

    def produce(self, topic: str, codec: str, records: Sequence[Record], acks: str = "all") -> None:
        """See ForeignClient."""
        lines = b"".join(b"%b\t%b\n" % (one.key or b"", one.value or b"") for one in records)
        self._tools.produce(topic, lines, codec, acks={"all": -1, "1": 1, "0": 0}[acks])

    def read(self, counts: Mapping[str, int]) -> dict[str, list[Row]]:
        """See ForeignClient."""
        rows: dict[str, list[Row]] = {topic: [] for topic in counts}
        for topic, row in self._consume("reader", ",".join(counts), sum(counts.values())):
            rows[topic].append(row)
        return rows

    def _consume(self, group: str, topics: str, count: int) -> list[tuple[str, Row]]:
        consumer = self._tools.java_consumer(f"{group}-{self.name}", topics)
        try:
            wait_until(lambda: len(consumer.records()) >= count, f"{count} records", PATIENCE_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {consumer.log()[-2000:]}") from None
        finally:
            consumer.terminate()
        return _rows(consumer)

    def offsets(self, topic: str) -> list[int]:
        """See ForeignClient."""
        return [self._offset(topic, time) for time in ("-2", "-1")]

    def _offset(self, topic: str, time: str) -> int:
        tool = "kafka.tools.GetOffsetShell"
        printed = self._tools.run_tool(
            tool, "--broker-list", self._tools.bootstrap, "--topic", topic, "--time", time, brisk=True
        )
        # topic:partition:offset
        return int(printed.strip().rpartition(":")[2])

    def first_after_reset(self, topic: str, offset: int) -> int:
        """See ForeignClient."""
        registry = self._registry()
        registry.client.create(f"/consumers/reset-{self.name}/offsets/{topic}/0", b"%d" % offset, makepath=True)
        return self._consume("reset", topic, 1)[0][1].offset

    def metadata(self, topic: str) -> Answer:
        """See ForeignClient."""
        printed = self._tools.topics("--describe", "--topic", topic)
        # Topic: t\tPartition: 0\tLeader: 0\tReplicas: 0\tIsr: 0
        rows = [dict(word.split(": ") for word in line.strip().split("\t")) for line in printed.splitlines()[1:]]
        return {"partitions": [[int(row[name]) for name in ("Partition", "Leader", "Replicas", "Isr")] for row in rows]}

    def join(self, group: str, topic: str, name: str) -> Member:
        """See ForeignClient."""
        return HighLevelMember(self._tools, self._registry(), group, topic, name)

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """See ForeignClient."""
        return self._registry().offsets(group, topic)

    def describe(self, group: str, topic: str) -> Answer:
        """See ForeignClient."""
        where = ("--zookeeper", self._tools.zookeeper, "--group", group)
        if self._tools.release.startswith("0.8"):
            printed = self._tools.run_tool("kafka.tools.ConsumerOffsetChecker", *where, "--topic", topic, brisk=True)
        else:
            printed = self._tools.run_tool("kafka.admin.ConsumerGroupCommand", *where, "--describe", brisk=True)
        return [words for line in printed.splitlines() if topic in (words := line.split())]

    def groups(self) -> list[str]:
        """See ForeignClient."""
        if self._tools.release.startswith("0.8"):
            raise NotOffered
        tool = "kafka.admin.ConsumerGroupCommand"
        return self._tools.run_tool(tool, "--zookeeper", self._tools.zookeeper, "--list", brisk=True).split()


def _rows(consumer: JavaConsumer) -> list[tuple[str, Row]]:
    """Return topic and record of all that was delivered; a partition's come in order."""
    rows = []
    for topic, _, offset, text in consumer.records():
        key, value = (None if part == b"-" else b64decode(part) for part in text.split(b"\t"))
        rows.append((topic, Row(offset=offset, key=key, value=value)))
    return rows
