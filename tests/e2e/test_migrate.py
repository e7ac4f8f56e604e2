# SPDX-License-Identifier: Apache-2.0
"""A group moves to the cluster that a daemon mirrors into, as docs/migration.md has it, and comes back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumerd.access.address import ClusterAddress
from consumerd.cli.main import main
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.wire.compression import Codec
from tests.support.daemon import Daemon, settings_for
from tests.support.documented import as_typed, commands
from tests.support.documents import DOCS, find_blocks
from tests.support.embedded import EmbeddedThread
from tests.support.embedded_legacy import LegacyThread
from tests.support.kafka import Sent
from tests.support.ledger import send_all
from tests.support.registry import open_registry
from tests.support.small_mirror import SmallMirror
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 3
HERE = "tests/e2e/test_migrate.py"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """The new cluster, without ZooKeeper."""
    with EmbeddedThread(tmp_path_factory.mktemp("target"), None) as embedded:
        yield embedded


def consume(cluster: EmbeddedThread, group: str, topic: str, count: int) -> list[bytes | None]:
    """Consume so many records as a member of the group, commit, and leave."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    found: list[bytes | None] = []
    try:
        consumer.subscribe([topic])

        def has_all() -> bool:
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value())
                consumer.commit(message=message, asynchronous=False)
            return len(found) >= count

        wait_until(has_all, f"{count} records", 60)
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(300)
def test_a_group_of_daemons_moves_to_the_mirrored_cluster_and_comes_back(
    cluster: EmbeddedThread,
    target: EmbeddedThread,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No record is lost, and none comes twice: here, there, and here again."""
    topic, group, mirrors = unique("moving"), unique("billing"), unique("mirror")
    cluster.create_topic(topic, PARTITIONS)
    SmallMirror(ClusterAddress(zookeeper=cluster.zookeeper, client_id="t"), target.bootstrap).create_topics(
        {topic: PARTITIONS}
    )
    sent: list[bytes] = []

    def send(count: int) -> None:
        made = [b"v%d" % (len(sent) + one) for one in range(count)]
        send_all(cluster.bootstrap, [Sent(topic, int(one[1:]) % PARTITIONS, None, one) for one in made])
        sent.extend(made)

    settings = settings_for(
        cluster.zookeeper,
        mirrors,
        topics=(topic,),
        sink={"type": "kafka", "bootstrap": target.bootstrap, "flush_ms": 100},
    )
    config = tmp_path / "mirror.yaml"

    (block,) = (one for one in find_blocks(DOCS / "migration.md", "sh") if HERE in one.tests)
    typed = {line.split()[2]: line.split()[1:] for line in map(as_typed, commands(block))}

    def migrate(command: str, *arguments: str) -> tuple[int, str, str]:
        """Run a command as it is documented, with further options."""
        capsys.readouterr()
        words = [{"mirror.yaml": str(config), "billing": group}.get(word, word) for word in typed[command]]
        code = main([*words, "--timeout", "30", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    send(60)
    values: list[bytes | None] = []
    with Daemon(tmp_path, "mirror", settings) as mirror:
        with Daemon(tmp_path, "old", settings_for(cluster.zookeeper, group, topics=(topic,))) as old:
            old.wait(lambda: len(old.deliveries) == 60, "the group reads in the source", 90)
            wait_until(lambda: migrate("status")[0] == 0, "the mirror has come to the group's positions", 90)
            code, _, err = migrate("cutover", "--wait", "0")
            assert (code, "live member in the source: stop them" in err) == (1, True), err
            assert old.terminate(90) == 0
        values += [json.loads(one.line)["value"].encode() for one in old.deliveries]
        send(30)
        code, _, err = migrate("cutover")
        assert code == 0, err
        assert f"group.id={group}" in err
        values += consume(target, group, topic, 30)
        send(15)
        values += consume(target, group, topic, 15)
        send(9)
        code, _, err = migrate("rollback", "--yes")
        assert code == 0, err
        with Daemon(tmp_path, "again", settings_for(cluster.zookeeper, group, topics=(topic,))) as again:
            again.wait(lambda: len(again.deliveries) == 9, "the group goes on in the source", 90)
            assert again.terminate(90) == 0
        values += [json.loads(one.line)["value"].encode() for one in again.deliveries]
        assert migrate("plan", topic)[0] == 0
        assert migrate("translate", "--allow-backwards")[0] == 0
        code, out, err = migrate("verify", "--json", topic)
        assert code == 0, err
        assert sum(json.loads(line)["different"] for line in out.splitlines()) == 0
        assert mirror.terminate(90) == 0
    assert Counter(values) == Counter(sent)
    with open_registry(cluster.zookeeper) as registry:
        assert registry.offsets(group, topic) == dict.fromkeys(range(PARTITIONS), len(sent) // PARTITIONS)


def read_next(cluster: EmbeddedThread, topic: str, partition: int, offset: int) -> bytes | None:
    """Return the value that a consumer at an offset reads next."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "auto.offset.reset": "error"})
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


@pytest.mark.timeout(300)
def test_a_group_of_kafka_0_7_moves_with_positions_that_count_bytes(
    zookeeper: EmbeddedZooKeeper,
    target: EmbeddedThread,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From each message of two brokers, also of compressed ones, to its first record, and back to the message."""
    topic, group, at = unique("events"), unique("lake"), f"{zookeeper.connect_string}/{unique('legacy')}"
    with LegacyThread(tmp_path / "brokers", at, nodes=2, num_partitions=1) as brokers:
        sent = []
        for node in range(2):
            sent += brokers.send(topic, [b"plain %d-%d" % (node, one) for one in range(4)], node=node)
            sent += brokers.send(
                topic, [b"packed %d-%d" % (node, one) for one in range(4)], node=node, codec=Codec.GZIP
            )
            sent += brokers.send(topic, [b"last %d" % node], node=node)
        SmallMirror(ClusterAddress(zookeeper=at, client_id="t"), target.bootstrap).create_topics({topic: 2})
        config = tmp_path / "mirror.yaml"
        sink = {"type": "kafka", "bootstrap": target.bootstrap, "flush_ms": 100}
        with Daemon(tmp_path, "mirror", settings_for(at, unique("mirror"), topics=(topic,), sink=sink)) as mirror:

            def migrate(command: str, *arguments: str) -> tuple[int, str, str]:
                capsys.readouterr()
                code = main(["migrate", command, "-c", str(config), "--timeout", "30", *arguments])
                shown = capsys.readouterr()
                return code, shown.out, shown.err

            ends = {one.partition: one.next_offset for one in sent}
            put(at, group, topic, ends)
            wait_until(lambda: migrate("status", "-g", group)[0] == 0, "all is mirrored", 90)
            for one in sent:
                if one.index:
                    continue  # a position is that of a whole message
                put(at, group, topic, {one.partition: one.offset})
                code, out, err = migrate("translate", "-g", group, "--yes", "--allow-backwards", "--json")
                assert code == 0, err
                (moved,) = (row for row in map(json.loads, out.splitlines()) if row["partition"] == one.partition)
                place, _, number = moved["target"].rpartition("/")
                assert read_next(target, place, int(number), moved["there"]) == one.value
                put(at, group, topic, {one.partition: ends[one.partition]})
                code, out, err = migrate("rollback", "-g", group, "--dry-run", "--allow-backwards", "--json")
                assert code == 0, err
                (back,) = (row for row in map(json.loads, out.splitlines()) if row["partition"] == one.partition)
                assert back["returned"] == one.offset
            code, out, err = migrate("verify", "--full", "--json")
            assert code == 0, err
            assert sum(json.loads(line)["compared"] for line in out.splitlines()) == len(sent)
            assert mirror.terminate(90) == 0


def put(zookeeper: str, group: str, topic: str, positions: Mapping[str, int]) -> None:
    """Write a group's positions as its members do."""
    with open_registry(zookeeper) as registry:
        for partition, offset in positions.items():
            path = f"/consumers/{group}/offsets/{topic}/{partition}"
            registry.client.ensure_path(path)
            registry.client.set(path, b"%d" % offset)
