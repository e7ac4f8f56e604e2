# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets migrate | import | shift`` on an embedded cluster, judged by kazoo and librdkafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from kazoo.client import KazooClient

from consumerd.cli.main import CONFIGURATION, DONE, FAILED, main
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.embedded import EmbeddedThread
from tests.support.registry import open_registry
from tests.support.zookeeper import run_server

NONE = -1001

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper for the module."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture(scope="module")
def broker(server: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """A broker with 400 records of ``orders`` and of ``clicks``; each test has its own group."""
    with EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{server.connect_string}/kafka") as embedded:
        embedded.create_topic("orders", 1)
        embedded.create_topic("clicks", 1)
        for topic in ("orders", "clicks"):
            embedded.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(400)))
        yield embedded


@pytest.fixture
def registry(broker: EmbeddedThread) -> Iterator[KazooClient]:
    """A session of nobody's."""
    with open_registry(broker.zookeeper) as found:
        yield found.client


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group that no other test uses."""
    return str(request.node.name)[:60].rstrip("[]-")


@pytest.fixture
def ask(broker: EmbeddedThread, group: str, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command of ``offsets`` for the group; returns its exit code and what it printed."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["offsets", *command.split(), "-z", broker.zookeeper, "-g", group, "--timeout", "20", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def put(registry: KazooClient, group: str, topic: str, offset: int) -> None:
    path = f"/consumers/{group}/offsets/{topic}/0"
    registry.ensure_path(path)
    registry.set(path, b"%d" % offset)


def read_zookeeper(registry: KazooClient, group: str, topic: str = "orders") -> int | None:
    path = f"/consumers/{group}/offsets/{topic}/0"
    return int(registry.get(path)[0]) if registry.exists(path) else None


@contextmanager
def client(broker: EmbeddedThread, group: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def commit(broker: EmbeddedThread, group: str, topic: str, offset: int) -> None:
    with client(broker, group) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def read_kafka(broker: EmbeddedThread, group: str, topic: str = "orders") -> int:
    with client(broker, group) as consumer:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
        return int(found.offset)


@contextmanager
def java_member(registry: KazooClient, group: str, topic: str) -> Iterator[None]:
    """Register as a Java member does that consumes a topic."""
    registry.ensure_path(f"/consumers/{group}/ids")
    path = f"/consumers/{group}/ids/{group}_host-1-abcdef01"
    about = {"version": 1, "subscription": {topic: 1}, "pattern": "static", "timestamp": "1"}
    registry.create(path, json.dumps(about).encode(), ephemeral=True)
    try:
        yield
    finally:
        registry.delete(path)


def test_a_stopped_group_is_moved_and_rolled_back(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """Missing and smaller positions are written, with the topic's identity; the file brings back what was there."""
    put(registry, group, "orders", 200)
    put(registry, group, "clicks", 300)
    commit(broker, group, "clicks", 250)
    saved = tmp_path / "before.json"

    code, out, err = ask("migrate plan", "--json")
    rows = {row["topic"]: row for row in map(json.loads, out.splitlines())}
    assert code == DONE
    assert (rows["orders"]["zookeeper"], rows["orders"]["kafka"], rows["orders"]["writes"]) == (200, None, 200)
    assert (rows["clicks"]["difference"], rows["clicks"]["writes"], rows["clicks"]["counts"]) == (-50, 300, "zookeeper")
    assert "step 1: restart each member" in err
    assert "no member is alive" in err
    assert "offsets.retention.minutes" in err

    code, out, err = ask("migrate verify")
    assert (code, "do not set offsets.dual_commit: false" in err) == (FAILED, True)
    assert "(clicks/0, orders/0)" in err

    assert ask("migrate apply", "--dry-run")[0] == DONE
    assert (read_kafka(broker, group), read_kafka(broker, group, "clicks")) == (NONE, 250)
    code, _, err = ask("migrate apply", "--save", str(saved))
    assert (code, "--yes" in err, saved.exists()) == (CONFIGURATION, True, False)

    code, out, err = ask("migrate apply", "--yes", "--json", "--save", str(saved))
    assert code == DONE, err
    assert [json.loads(line)["outcome"] for line in out.splitlines()] == ["written to Kafka"] * 2
    assert (read_kafka(broker, group), read_kafka(broker, group, "clicks")) == (200, 300)
    with client(broker, group) as consumer:
        (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=10)
    assert found.metadata.startswith("consumerd czxid="), "known to be of this topic"
    assert ask("migrate verify")[:2] == (DONE, "both places hold the same: 2 partitions\n")
    code, _, err = ask("migrate apply", "--yes", "--save", str(saved))
    assert (code, "nothing to write: Kafka holds all positions" in err) == (DONE, True)

    code, _, err = ask("migrate rollback", str(saved), "--yes")
    assert code == DONE, err
    assert read_kafka(broker, group, "clicks") == 250
    assert "orders/0: Kafka had no position that counts; it keeps 200" in err
    assert (read_zookeeper(registry, group), read_zookeeper(registry, group, "clicks")) == (200, 300)


def test_a_group_is_moved_back_to_zookeeper_and_rolled_back(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """A node that was not there is deleted again."""
    commit(broker, group, "orders", 200)
    commit(broker, group, "clicks", 300)
    put(registry, group, "clicks", 250)
    saved = tmp_path / "before.json"

    assert ask("migrate verify", "--to", "zookeeper")[0] == FAILED
    assert ask("migrate apply", "--to", "zookeeper", "--yes", "--save", str(saved))[0] == DONE
    assert (read_zookeeper(registry, group), read_zookeeper(registry, group, "clicks")) == (200, 300)
    assert ask("migrate verify", "--to", "zookeeper")[0] == DONE

    assert ask("migrate rollback", str(saved), "--yes")[0] == DONE
    assert (read_zookeeper(registry, group), read_zookeeper(registry, group, "clicks")) == (None, 250)


def test_a_rollback_leaves_newer_positions_alone(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """What members have committed since, and the files of other groups."""
    put(registry, group, "orders", 200)
    saved = tmp_path / "before.json"
    assert ask("migrate apply", "--yes", "--save", str(saved))[0] == DONE
    code, _, err = ask("migrate apply", "--yes", "--replace-larger", "--save", str(saved))
    assert (code, "nothing to write" in err) == (DONE, True)
    with java_member(registry, group, "orders"):
        code, _, err = ask("migrate rollback", str(saved), "--yes")
        assert (code, "live members consume orders" in err) == (FAILED, True)
    commit(broker, group, "orders", 260)
    code, _, err = ask("migrate rollback", str(saved), "--yes")
    assert (code, "orders/0 (260 now, 200 was written): moved since" in err) == (FAILED, True)

    document = json.loads(saved.read_text())
    for change, said in (
        ({"group": "another"}, "is of group 'another'"),
        ({"cluster": "1-2"}, "is of cluster 1-2"),
        ({"offsets": [document["offsets"][0] | {"incarnation": "7"}]}, "was deleted or re-created since"),
    ):
        saved.write_text(json.dumps(document | change))
        code, _, err = ask("migrate rollback", str(saved), "--yes")
        assert (code, said in err) == (CONFIGURATION, True), err
    assert read_kafka(broker, group) == 260


def test_a_file_is_never_overwritten(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """It may be the only copy of the positions before; nothing is written without it."""
    put(registry, group, "orders", 200)
    saved = tmp_path / "before.json"
    saved.write_text("kept")

    code, _, err = ask("migrate apply", "--yes", "--save", str(saved))

    assert (code, "cannot be written: File exists (--save)" in err) == (CONFIGURATION, True)
    assert (saved.read_text(), read_kafka(broker, group)) == ("kept", NONE)


def test_a_rewind_that_the_larger_position_would_undo_is_refused(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """One of the traps: members that read both places go on at the larger position."""
    put(registry, group, "orders", 100)
    commit(broker, group, "orders", 300)

    for command in ("migrate apply --dry-run", "migrate apply --yes"):
        code, _, err = ask(command, "--save", str(tmp_path / "f"))
        assert (code, "orders/0: Kafka holds 300, ZooKeeper 100" in err) == (FAILED, True)
        assert "--replace-larger" in err
    assert "1 partition with a larger position in Kafka" in ask("migrate verify")[2]
    assert "apply refuses: orders/0" in ask("migrate plan")[2]

    assert ask("migrate apply", "--yes", "--replace-larger", "--save", str(tmp_path / "g"))[0] == DONE
    assert read_kafka(broker, group) == 100


def test_positions_above_the_log_and_of_deleted_topics_are_not_carried(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """They would become positions of other records."""
    put(registry, group, "orders", 900)
    code, _, err = ask("migrate apply", "--yes")
    assert (code, "position 900 in ZooKeeper is above the log [0, 400]" in err) == (FAILED, True)

    put(registry, group, "short-lived", 0)
    broker.create_topic("short-lived", 1)  # again, as it looks: the position is older
    code, out, _ = ask("migrate plan", "short-lived", "--json")
    row = json.loads(out)
    assert (code, row["writes"], "of a deleted topic of the same name" in row["note"]) == (DONE, None, True)
    assert ask("migrate plan", "ordres")[0] == CONFIGURATION
    assert ask("migrate verify", "short-lived")[0] == DONE
    assert read_kafka(broker, group) == NONE


def test_topics_that_live_members_consume_are_left_to_them(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """A member may commit between the read and the write. Topics that no member consumes any more are written."""
    put(registry, group, "orders", 200)
    put(registry, group, "clicks", 300)
    with java_member(registry, group, "orders"):
        code, _, err = ask("migrate apply", "--yes", "--save", str(tmp_path / "f"))
        assert code == FAILED
        assert "1 partition of topics that live members consume left alone (orders/0)" in err
        assert (read_kafka(broker, group), read_kafka(broker, group, "clicks")) == (NONE, 300)
        assert "They commit" not in ask("migrate plan", "clicks")[2]
        assert "1 member alive. They commit to ZooKeeper alone" in ask("migrate plan", "orders")[2]
        code, _, err = ask("migrate verify", "--wait", "1")
        assert (code, "1 partition without the position in Kafka (orders/0)" in err) == (FAILED, True)


def test_members_that_brokers_coordinate_are_an_obstacle(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """The group is alive elsewhere: a new consumer has its name, and the coordinator refuses other commits."""
    put(registry, group, "orders", 200)
    with client(broker, group) as consumer:
        consumer.subscribe(["clicks"])
        for _ in range(100):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        code, _, err = ask("migrate apply", "--yes")
        assert (code, "brokers coordinate 1 member of a group of this name" in err) == (FAILED, True)
        assert "apply refuses: brokers coordinate" in ask("migrate plan")[2]
        assert ask("migrate verify")[0] == FAILED
        consumer.unsubscribe()


def test_a_group_without_positions_has_nothing_to_move(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """It is no failure; a misspelt group is."""
    assert ask("migrate plan")[0] == FAILED
    registry.ensure_path(f"/consumers/{group}")
    assert ask("migrate plan")[:2] == (DONE, "no stored positions\n")
    assert ask("migrate apply", "--yes")[0] == DONE
    assert ask("migrate verify")[0] == DONE


def test_a_cluster_without_positions_in_kafka_is_only_looked_at(
    server: EmbeddedZooKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan must not make a broker create ``__consumer_offsets``; one of 0.8.1 keeps no positions at all."""
    with (
        EmbeddedThread(tmp_path, f"{server.connect_string}/new") as embedded,
        open_registry(embedded.zookeeper) as found,
    ):
        embedded.create_topic("orders", 1)
        put(found.client, "lake", "orders", 0)
        command = ["-z", embedded.zookeeper, "-g", "lake", "--timeout", "20"]
        old = ("--set", "cluster.broker_version=0.8.1")
        said = "of 0.8.1 or older, which keeps positions in ZooKeeper only"
        for options in ((), old):
            capsys.readouterr()
            assert main(["offsets", "migrate", "plan", *command, *options]) == DONE
            assert (said in capsys.readouterr().err) == bool(options)
        assert main(["offsets", "migrate", "apply", "--yes", *command, *old]) == FAILED
        assert said in capsys.readouterr().err
        assert found.client.get_children("/brokers/topics") == ["orders"]


# -- import and shift


def test_positions_of_other_tools_are_imported(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """As `offsets set --from-file`, with the same refusals; the dry run writes nothing."""
    registry.ensure_path(f"/consumers/{group}")
    file = tmp_path / "positions"
    file.write_text("orders,0,42\nclicks,0,7\n")
    assert ask("import", str(file), "--dry-run")[0] == DONE
    assert read_zookeeper(registry, group) is None
    assert ask("import", str(file), "--yes")[0] == DONE
    assert (read_zookeeper(registry, group), read_zookeeper(registry, group, "clicks")) == (42, 7)

    file.write_text(f"/consumers/{group}/offsets/orders/0:50\n/consumers/other/offsets/orders/0:60\n")
    code, _, err = ask(f"set --from-file {file}", "--yes")
    assert (code, "left out, of group other: 1 position" in err) == (DONE, True)
    assert read_zookeeper(registry, group) == 50

    for text, said in (
        ("orders,0,401\n", "401 is outside the log [0, 400]"),
        ("orders,3,1\n", "orders/3: topic orders has no such partition"),
        (f"/consumers/{group}/offsets/orders/1-0:5\n", "partitions of 0.7 have such names"),
        ("ordres,0,1\n", "there is no topic ordres"),
        ("orders;0;1\n", "line 1: expected a document of `consumerd offsets export`"),
    ):
        file.write_text(text)
        code, _, err = ask("import", str(file), "--yes")
        assert (code, said in err) == (CONFIGURATION, True), err
    assert read_zookeeper(registry, group) == 50


def test_an_export_is_imported_under_another_name(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """A group is copied, or put back where it was."""
    put(registry, group, "orders", 200)
    file = tmp_path / "lake.json"
    assert ask("export", "--output", str(file))[0] == DONE
    put(registry, group, "orders", 300)
    assert ask("import", str(file), "--yes")[0] == DONE
    assert read_zookeeper(registry, group) == 200


def test_positions_are_shifted_in_both_places(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """From the position that counts; the ends of the log end a shift."""
    put(registry, group, "orders", 200)
    commit(broker, group, "orders", 300)
    both = ("--set", "offsets.storage=kafka")

    assert ask("shift", "orders/0", "--by", "-50", "--yes", *both)[0] == DONE
    assert (read_zookeeper(registry, group), read_kafka(broker, group)) == (250, 250)
    assert ask("shift", "orders", "--by", "+50", "--dry-run", *both)[0] == DONE
    assert ask("shift", "orders", "--by", "50", "--yes", *both)[0] == DONE
    assert (read_zookeeper(registry, group), read_kafka(broker, group)) == (300, 300)

    code, _, err = ask("shift", "--all-topics", "--by", "-1000", "--yes", *both)
    assert (code, "orders/0: -700 is outside the log [0, 400]; moved to its beginning" in err) == (DONE, True)
    assert (read_zookeeper(registry, group), read_kafka(broker, group)) == (0, 0)
    code, _, err = ask("shift", "clicks", "--by", "5", "--yes")
    assert (code, "clicks/0 left out: no position yet" in err) == (CONFIGURATION, True)
    assert ask("shift", "--by", "5", "--yes")[0] == CONFIGURATION
