# SPDX-License-Identifier: Apache-2.0
"""``consumerd migrate`` between two embedded clusters, judged by kazoo and librdkafka."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient

from consumerd.access.address import ClusterAddress
from consumerd.admin.migrate.cutover import CutoverStep
from consumerd.admin.migrate.decisions import CAREFUL
from consumerd.admin.migrate.moving import Cutover
from consumerd.admin.migrate.opening import MigrationSettings, open_migration
from consumerd.cli.main import CONFIGURATION, DONE, FAILED, main
from consumerd.config.inspection import InspectionSettings
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.mirror.checkpoint import Checkpoint, decode_checkpoint
from consumerd.mirror.journal import CutoverState
from consumerd.mirror.positions import DEFAULT_TOPIC, open_mirror_positions
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent
from tests.support.ledger import send_all
from tests.support.mirroring import read_journal
from tests.support.registry import open_registry
from tests.support.small_mirror import GROUP, SmallMirror
from tests.support.zookeeper import run_server

NONE = -1001
RECORDS = 50

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper for the module."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture(scope="module")
def source(server: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """The old cluster, with 50 records in each partition of ``orders`` and ``clicks``."""
    with EmbeddedThread(tmp_path_factory.mktemp("source"), f"{server.connect_string}/old") as embedded:
        for topic in ("orders", "clicks"):
            embedded.create_topic(topic, 2)
            embedded.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(2 * RECORDS)))
        yield embedded


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """The new cluster, without ZooKeeper."""
    with EmbeddedThread(tmp_path_factory.mktemp("target"), None) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def mirror(source: EmbeddedThread, target: EmbeddedThread) -> SmallMirror:
    """A mirror that has copied all of ``orders``; ``clicks`` is not mirrored."""
    made = SmallMirror(ClusterAddress(zookeeper=source.zookeeper, client_id="small-mirror"), target.bootstrap)
    made.create_topics({"orders": 2})
    made.copy("orders", 2)
    return made


@pytest.fixture
def registry(source: EmbeddedThread) -> Iterator[KazooClient]:
    """A session of nobody's in the old cluster."""
    with open_registry(source.zookeeper) as found:
        yield found.client


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group that no other test uses."""
    return str(request.node.name)[:60].rstrip("[]-")


@pytest.fixture
def ask(source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command of ``migrate``; returns its exit code and what it printed."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        addresses = ["-z", source.zookeeper, "--target", target.bootstrap, "--mirror-group", GROUP]
        code = main(["migrate", command, *addresses, "--timeout", "20", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def rows(said: tuple[int, str, str]) -> list[dict[str, Any]]:
    assert said[0] == DONE, said[2]
    return [json.loads(line) for line in said[1].splitlines()]


def put(registry: KazooClient, group: str, positions: Mapping[int, int | bytes], topic: str = "orders") -> None:
    for partition, offset in positions.items():
        path = f"/consumers/{group}/offsets/{topic}/{partition}"
        registry.ensure_path(path)
        registry.set(path, offset if isinstance(offset, bytes) else b"%d" % offset)


def read_zookeeper(registry: KazooClient, group: str, partition: int, topic: str = "orders") -> int:
    return int(registry.get(f"/consumers/{group}/offsets/{topic}/{partition}")[0])


@contextmanager
def client(cluster: EmbeddedThread, group: str) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "error", "isolation.level": "read_committed"})
    try:
        yield consumer
    finally:
        consumer.close()


def committed(cluster: EmbeddedThread, group: str, topic: str = "orders") -> list[int]:
    with client(cluster, group) as consumer:
        return [one.offset for one in consumer.committed([TopicPartition(topic, one) for one in range(2)], timeout=10)]


def commit(cluster: EmbeddedThread, group: str, positions: Mapping[int, int], topic: str = "orders") -> None:
    with client(cluster, group) as consumer:
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        consumer.commit(offsets=wanted, asynchronous=False)


def read_from(
    cluster: EmbeddedThread, partition: int, offset: int, topic: str = "orders"
) -> tuple[bytes | None, bytes | None]:
    """Return key and value of the record that a consumer at an offset reads next."""
    with client(cluster, "reader") as consumer:
        consumer.assign([TopicPartition(topic, partition, offset)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message.key(), message.value()


@contextmanager
def java_member(registry: KazooClient, group: str, topic: str = "orders") -> Iterator[None]:
    """Register as a Java member does that consumes a topic."""
    registry.ensure_path(f"/consumers/{group}/ids")
    path = f"/consumers/{group}/ids/{group}_host-1-abcdef01"
    about = {"version": 1, "subscription": {topic: 1}, "pattern": "static", "timestamp": "1"}
    registry.create(path, json.dumps(about).encode(), ephemeral=True)
    try:
        yield
    finally:
        registry.delete(path)


def test_each_position_is_translated_to_the_record_that_the_group_would_read_next(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread
) -> None:
    """All positions, one after the other, compared by content; markers of seven-record transactions lie between."""
    ends = {0: source.count("orders", 1)}
    for position in range(ends[0]):
        put(registry, group, {0: position})
        assert ask("translate", "-g", group, "--yes", "--allow-backwards", "--no-checkpoints")[0] == DONE
        translated = committed(target, group)[0]
        assert read_from(target, 0, translated) == read_from(source, 0, position)


def test_the_plan_names_what_becomes_of_each_position(ask: Ask, registry: KazooClient, group: str) -> None:
    """A topic that is not mirrored refuses; a topic that was deleted is left out; what is no number has advice."""
    put(registry, group, {0: 10, 1: b"none"})
    put(registry, group, {0: 5}, "clicks")
    put(registry, group, {0: 5}, "gone")

    said = ask("plan", "-g", group, "--json")

    found = {(one["topic"], one["partition"]): one for one in rows(said)}
    assert {key: one["verdict"] for key, one in found.items()} == {
        ("clicks", "0"): "refused",
        ("gone", "0"): "left out",
        ("orders", "0"): "ready",
        ("orders", "1"): "refused",
    }
    assert found["clicks", "0"]["note"].startswith("not mirrored")
    assert found["gone", "0"]["note"] == "topic deleted"
    assert f"consumerd offsets set -g {group} orders/1=POSITION" in found["orders", "1"]["note"]
    assert f"group {group}: clicks/0: not mirrored" in said[2]
    code, out, err = ask("translate", "-g", group, "--yes")
    assert (code, out) == (FAILED, "")
    assert "nothing was written" in err


def test_a_plan_of_all_groups_has_those_of_zookeeper_and_of_kafka(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread
) -> None:
    """Positions in both kinds of storage; the mirror's own group is not moved."""
    put(registry, f"{group}-old", {0: 1})
    put(registry, GROUP, {0: 1})
    commit(source, f"{group}-new", {1: 2})

    said = ask("plan", "--json")

    found = {one["group"]: one["position"] for one in rows(said)}
    assert found[f"{group}-old"] == 1
    assert found[f"{group}-new"] == 2
    for name in (f"{group}-old", f"{group}-new"):
        assert f"group {name}: 1 position to move; translate, or cutover" in said[2]
    assert GROUP not in found


def test_a_larger_position_in_the_target_is_not_set_back(
    ask: Ask, registry: KazooClient, group: str, target: EmbeddedThread
) -> None:
    put(registry, group, {0: 10})
    commit(target, group, {0: 40})

    code, _, err = ask("translate", "-g", group, "--yes")

    assert code == FAILED
    assert "the target holds 40" in err
    assert committed(target, group)[0] == 40
    assert ask("translate", "-g", group, "--yes", "--allow-backwards")[0] == DONE
    assert committed(target, group)[0] < 40


def test_nothing_is_written_over_a_live_member_of_the_target(
    ask: Ask, registry: KazooClient, group: str, target: EmbeddedThread
) -> None:
    put(registry, group, {0: 10})
    with client(target, group) as consumer:
        consumer.subscribe(["orders"])
        for _ in range(100):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        for command, options in (("translate", ["--yes"]), ("cutover", ["--wait", "0"])):
            code, _, err = ask(command, "-g", group, *options)
            assert code == FAILED
            assert "1 live member in the target" in err
        assert committed(target, group) == [NONE, NONE]


def test_a_position_of_a_deleted_topic_of_the_same_name_is_never_translated(
    ask: Ask,
    registry: KazooClient,
    group: str,
    source: EmbeddedThread,
    target: EmbeddedThread,
    mirror: SmallMirror,
) -> None:
    """Its number would name another record of the new topic."""
    put(registry, group, {0: 3}, "again")
    source.create_topic("again", 1)
    source.produce("again", b"k\tv\n" * 5)
    mirror.create_topics({"again": 1})
    mirror.copy("again")

    (found,) = rows(ask("plan", "-g", group, "--json"))

    assert found["verdict"] == "left out"
    assert "deleted topic of the same name" in found["note"]


def test_a_dry_run_writes_nothing(ask: Ask, registry: KazooClient, group: str, target: EmbeddedThread) -> None:
    put(registry, group, {0: 10})

    code, out, _ = ask("translate", "-g", group, "--dry-run")

    assert code == DONE
    assert "ready" in out
    assert committed(target, group) == [NONE, NONE]


def test_a_group_is_cut_over_and_comes_back(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    """Members are stopped while the command waits; what the group reads in the target it does not read again."""
    put(registry, group, {0: 12, 1: 20})
    with java_member(registry, group):
        code, _, err = ask("cutover", "-g", group, "--wait", "0")
        assert (code, "1 live member in the source: stop them" in err) == (FAILED, True)
        assert rows(ask("status", "--json", "-g", group))[0]["verdict"] == "ready"
    code, _, err = ask("cutover", "-g", group, "--wait", "30")
    assert code == DONE, err
    assert f"bootstrap.servers={target.bootstrap}, group.id={group}" in err
    for partition, position in ((0, 12), (1, 20)):
        assert read_from(target, partition, committed(target, group)[partition]) == read_from(
            source, partition, position
        )
    # again: nothing is left to do
    assert ask("cutover", "-g", group, "--wait", "0")[0] == DONE

    # the group consumes three records in partition 0 of the target
    translated = committed(target, group)
    with client(target, group) as consumer:
        consumer.assign([TopicPartition("orders", 0, translated[0])])
        for _ in range(3):
            message = consumer.poll(30)
        consumer.commit(message=message, asynchronous=False)
    code, _, err = ask("rollback", "-g", group, "--yes")
    assert code == DONE, err
    assert "positions are in ZooKeeper" in err
    assert [read_zookeeper(registry, group, one) for one in (0, 1)] == [15, 20]


def test_a_group_with_positions_in_kafka_returns_to_kafka(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread
) -> None:
    """Where it had them before; nothing is written to ZooKeeper."""
    commit(source, group, {0: 7})
    assert ask("cutover", "-g", group)[0] == DONE
    (there, _) = committed(target, group)
    assert read_from(target, 0, there) == read_from(source, 0, 7)
    commit(target, group, {0: there + 2})

    code, _, err = ask("rollback", "-g", group, "--yes")

    assert code == DONE, err
    assert "positions are in Kafka" in err
    back = committed(source, group)[0]
    assert read_from(source, 0, back) == read_from(target, 0, there + 2)
    assert registry.exists(f"/consumers/{group}/offsets") is None


def test_a_rollback_does_not_go_over_live_members(
    ask: Ask, registry: KazooClient, group: str, target: EmbeddedThread
) -> None:
    put(registry, group, {0: 7})
    commit(target, group, {0: 40})
    with java_member(registry, group):
        code, _, err = ask("rollback", "-g", group, "--yes")
    assert code == FAILED
    assert "1 live member in the source" in err
    assert read_zookeeper(registry, group, 0) == 7


def test_a_group_that_moves_on_after_it_was_noted_is_noted_again(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread
) -> None:
    """The command is killed after it has written, and members are started in the source again."""
    put(registry, group, {0: 5})
    assert ask("cutover", "-g", group)[0] == DONE
    put(registry, group, {0: 9})

    code, _, err = ask("cutover", "-g", group)

    assert code == DONE
    assert "moved since they were noted: orders/0" in err
    assert read_from(target, 0, committed(target, group)[0]) == read_from(source, 0, 9)


async def test_a_group_that_moves_on_at_the_last_moment_is_not_done(
    registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    """Members are started in the source after the records were compared: their positions are noted again."""
    put(registry, group, {0: 5})
    steps: list[CutoverStep] = []

    def move_once(step: CutoverStep, why: str) -> None:
        del why
        if step is CutoverStep.FINISH and step not in steps:
            put(registry, group, {0: 9})
        steps.append(step)

    settings = MigrationSettings(
        source=InspectionSettings.model_validate({"cluster": {"zookeeper": source.zookeeper}}),
        target=ClusterAddress(bootstrap=target.bootstrap, client_id="test"),
        mirror_group=GROUP,
        positions_topic=DEFAULT_TOPIC,
    )
    async with open_migration(settings, open_mirror_positions, 20.0) as opened:
        cutover = Cutover(
            opened,
            group,
            options=CAREFUL,
            alias=None,
            wall_ms=lambda: 0,
            now=asyncio.get_running_loop().time,
            show=move_once,
        )
        moved = await cutover.run(0.0)

    assert [one.position for one in moved.partitions] == [9]
    assert steps.count(CutoverStep.NOTE_POSITIONS) == 2
    journal = await asyncio.to_thread(read_journal, target.bootstrap, group)
    # it was never done with the position 5: a command that was killed then would have told to start in the target
    assert [[one.source for one in entry.positions] for entry in journal if entry.state is CutoverState.DONE] == [[9]]


def test_a_cutover_waits_for_the_mirror(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    source.create_topic("late", 1)
    source.produce("late", b"".join(b"k%d\tv%d\n" % (one, one) for one in range(20)))
    mirror.create_topics({"late": 1})
    mirror.copy("late", until=8)
    put(registry, group, {0: 15}, "late")

    code, _, err = ask("cutover", "-g", group, "--wait", "0")
    assert code == FAILED
    assert "the mirror is at 8, 7 below" in err
    code, out, _ = ask("status", "--json")
    found = {one["group"]: one for one in map(json.loads, out.splitlines())}
    assert (code, found[group]["safe"]) == (FAILED, "no")
    assert found[group]["mirror_lag"] == 12
    mirror.copy("late")
    assert ask("cutover", "-g", group)[0] == DONE
    assert read_from(target, 0, committed(target, group, "late")[0], "late") == read_from(source, 0, 15, "late")


def test_records_from_before_the_mirror_are_missing_and_must_be_accepted(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    source.create_topic("begun", 1)
    source.produce("begun", b"".join(b"k%d\tv%d\n" % (one, one) for one in range(20)))
    mirror.create_topics({"begun": 1})
    mirror.copy("begun", begin=6)
    put(registry, group, {0: 2}, "begun")

    (found,) = rows(ask("plan", "-g", group, "--json"))
    assert found["verdict"] == "refused"
    assert "the mirror begins at 6: 2 to 5 are not in the target" in found["note"]
    assert ask("translate", "-g", group, "--yes", "--accept-missing")[0] == DONE
    assert read_from(target, 0, committed(target, group, "begun")[0], "begun") == (b"k6", b"v6")
    assert ask("cutover", "-g", group)[0] == FAILED
    assert ask("cutover", "-g", group, "--accept-missing")[0] == DONE


def test_a_partition_without_records_goes_on_with_what_the_mirror_writes_first(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    """The mirror has no position of it; once there is a record, the mirror is waited for."""
    source.create_topic("sparse", 2)
    send_all(source.bootstrap, [Sent("sparse", 0, None, b"%d" % one) for one in range(9)])
    mirror.create_topics({"sparse": 2})
    mirror.copy("sparse", 2)
    put(registry, group, {0: 4, 1: 0}, "sparse")

    assert ask("cutover", "-g", group)[0] == DONE
    assert committed(target, group, "sparse")[1] == 0
    send_all(source.bootstrap, [Sent("sparse", 1, None, b"first")])
    found = {one["partition"]: one for one in rows(ask("plan", "-g", group, "--json"))}
    assert (found["1"]["verdict"], found["1"]["note"]) == (
        "waiting",
        "the mirror has stored no position of this partition yet",
    )
    mirror.copy("sparse", 2)
    assert read_from(target, 1, committed(target, group, "sparse")[1], "sparse") == (None, b"first")


def test_a_group_behind_an_aborted_transaction_is_not_waited_for(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    """The mirror notes its position with records only, and the log ends with records that nobody gets."""
    source.create_topic("undone", 1)
    send_all(source.bootstrap, [Sent("undone", 0, None, b"%d" % one) for one in range(9)])
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": "undone"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("undone", b"aborted", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    mirror.create_topics({"undone": 1})
    mirror.copy("undone")
    put(registry, group, {0: 11}, "undone")

    (found,) = rows(ask("plan", "-g", group, "--json"))
    assert (found["mirrored"], found["verdict"]) == (9, "ready")
    assert ask("cutover", "-g", group)[0] == DONE
    # nor is it set back by a return: between 9 and its position is nothing to read
    code, _, err = ask("rollback", "-g", group, "--yes")
    assert (code, read_zookeeper(registry, group, 0, "undone")) == (DONE, 11), err
    send_all(source.bootstrap, [Sent("undone", 0, None, b"next")])
    mirror.copy("undone")
    assert read_from(target, 0, committed(target, group, "undone")[0], "undone") == (None, b"next")
    # nor is it compared: nobody reads what was aborted
    (compared,) = rows(ask("verify", "undone", "--full", "--json"))
    assert (compared["compared"], compared["different"]) == (10, 0)


def test_checkpoints_have_the_translated_positions(
    ask: Ask, registry: KazooClient, group: str, target: EmbeddedThread
) -> None:
    put(registry, group, {0: 10})
    assert ask("translate", "-g", group, "--yes", "--alias", "old")[0] == DONE

    found = [decode_checkpoint(key or b"", value or b"") for key, value in target.read("old.checkpoints.internal")]
    translated = committed(target, group)[0]
    assert Checkpoint(group=group, topic="orders", partition=0, source=10, target=translated) in found


def test_records_of_both_clusters_are_compared(ask: Ask, source: EmbeddedThread, target: EmbeddedThread) -> None:
    for arguments in (["--sample", "5"], ["--full"]):
        found = rows(ask("verify", "--json", "orders", *arguments))
        assert [(one["partition"], one["different"]) for one in found] == [("0", 0), ("1", 0)]
    assert sum(one["compared"] for one in found) == 2 * RECORDS
    assert all(one["digest"] for one in found)


def test_a_changed_record_is_found(
    ask: Ask, source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    """A mirror that has copied another topic in its place: same offsets, other values."""
    source.create_topic("right", 1)
    source.produce("right", b"k\ta\nk\tb\nk\tc\n")
    mirror.create_topics({"right": 1})
    mirror.copy("right")
    target.produce("right", b"k\tforeign\n")
    mirror.copy("right")
    source.produce("right", b"k\td\n")
    mirror.copy("right")

    code, _, err = ask("verify", "right", "--full")

    assert code == FAILED
    assert "right/0 offset 4: another client has written it, or it is there twice" in err


def test_records_that_the_mirror_has_left_out_are_found(
    ask: Ask, registry: KazooClient, group: str, source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    """An operator has moved the mirror on; a group that would have read them must not start in the target."""
    source.create_topic("skipped", 1)
    source.produce("skipped", b"".join(b"k%d\tv%d\n" % (one, one) for one in range(20)))
    mirror.create_topics({"skipped": 1})
    mirror.copy("skipped", until=5)
    mirror.skip("skipped", 9)
    mirror.copy("skipped")
    put(registry, group, {0: 7}, "skipped")

    code, _, err = ask("cutover", "-g", group)
    assert code == FAILED
    assert "must not start in the target: skipped/0 offset 7: the mirror has left the record out" in err
    code, _, err = ask("verify", "--full", "skipped")
    assert code == FAILED
    assert [f"skipped/0 offset {one}: the mirror has left the record out" in err for one in range(4, 10)] == [
        False, True, True, True, True, False
    ]  # fmt: skip
    put(registry, group, {0: 9}, "skipped")
    assert ask("cutover", "-g", group, "--allow-backwards")[0] == DONE


def test_a_command_needs_a_target_and_a_mirror(
    source: EmbeddedThread, target: EmbeddedThread, mirror: SmallMirror
) -> None:
    assert main(["migrate", "plan", "-z", source.zookeeper, "--mirror-group", GROUP]) == CONFIGURATION
    assert main(["migrate", "plan", "-z", source.zookeeper, "--target", target.bootstrap]) == CONFIGURATION
    unknown = ["--target", target.bootstrap, "--mirror-group", "nobody"]
    assert main(["migrate", "plan", "-z", source.zookeeper, *unknown]) == CONFIGURATION
