# SPDX-License-Identifier: Apache-2.0
"""All groups of a cluster: members in ZooKeeper and of Kafka's coordinator, positions in either place, or in both."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient
from kazoo.security import make_acl

from consumerd.cli.main import CONFIGURATION, DONE, FAILED, UNREACHABLE, main
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from tests.support.embedded import EmbeddedThread
from tests.support.registry import open_registry
from tests.support.zookeeper import run_server

Ask = Callable[..., tuple[int, str, str]]
JAVA_MEMBER = "{group}_host.example-1700000000000-{number:08x}"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper for the module."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
def broker(server: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[EmbeddedThread]:
    """A broker with 400 records of ``orders/0`` and none of ``orders/1``, in a chroot of its own."""
    with EmbeddedThread(tmp_path / "broker", f"{server.connect_string}/{tmp_path.name}") as embedded:
        embedded.create_topic("orders", 2)
        fill(embedded, "orders", 0, 400)
        yield embedded


def fill(broker: EmbeddedThread, topic: str, partition: int, count: int) -> None:
    """Write records of one partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=partition)
    assert 0 == producer.flush(60)


@pytest.fixture
def registry(broker: EmbeddedThread) -> Iterator[KazooClient]:
    """A session that holds the members' nodes."""
    with open_registry(broker.zookeeper) as found:
        yield found.client


@pytest.fixture
def ask(broker: EmbeddedThread, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command; returns its exit code and what it printed."""

    def run(command: str, *arguments: str, timeout: str = "20") -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*command.split(), "-z", broker.zookeeper, "--timeout", timeout, *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def read_groups(ask: Ask, *arguments: str) -> dict[str, Any]:
    code, out, err = ask("groups", "--json", *arguments)
    assert DONE == code, err
    return {row["group"]: row for row in map(json.loads, out.splitlines())}


def register(registry: KazooClient, group: str, *, owned: int = 2, number: int = 1) -> str:
    """Register a Java member that owns partitions of ``orders``; returns its id."""
    member = JAVA_MEMBER.format(group=group, number=number)
    payload = {"version": 1, "subscription": {"orders": 1}, "pattern": "static", "timestamp": "1700000000000"}
    registry.create(f"/consumers/{group}/ids/{member}", json.dumps(payload).encode(), makepath=True, ephemeral=True)
    for partition in range(owned):
        path = f"/consumers/{group}/owners/orders/{partition}"
        registry.create(path, f"{member}-0".encode(), makepath=True, ephemeral=True)
    return member


def commit_to_zookeeper(registry: KazooClient, group: str, position: int, topic: str = "orders") -> None:
    registry.create(f"/consumers/{group}/offsets/{topic}/0", b"%d" % position, makepath=True)


def commit_to_kafka(broker: EmbeddedThread, group: str, position: int) -> None:
    """Commit without being a member, as Java's ZooKeeper consumer does with offsets.storage=kafka."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[TopicPartition("orders", 0, position)], asynchronous=False)
    finally:
        consumer.close()


class KafkaMember:
    """A member that the broker coordinates; it owns all partitions of ``orders`` when the block begins."""

    def __init__(self, broker: EmbeddedThread, group: str, **settings: Any) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "client.id": "app",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )

    def __enter__(self) -> Self:
        self._consumer.subscribe(["orders"])
        deadline = time.monotonic() + 30
        while len(self._consumer.assignment()) < 2:
            assert time.monotonic() < deadline, "no assignment"
            self._consumer.poll(0.1)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._consumer.close()

    def commit(self, position: int) -> None:
        self._consumer.commit(offsets=[TopicPartition("orders", 0, position)], asynchronous=False)


def test_groups_of_both_kinds_are_listed_with_members_positions_and_lag(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """``lag`` showed one group whose name was known, and none listed them."""
    register(registry, "lake")
    commit_to_zookeeper(registry, "lake", 100)
    register(registry, "half", owned=1)
    register(registry, "java")
    commit_to_zookeeper(registry, "java", 200)
    commit_to_kafka(broker, "java", 300)
    commit_to_kafka(broker, "alone", 390)
    registry.ensure_path("/consumers/new/ids")
    with KafkaMember(broker, "web") as member:
        member.commit(350)
        rows = read_groups(ask)
        code, out, err = ask("groups")

    columns = ("registered", "members", "state", "positions", "topics", "partitions", "lag", "note")
    assert {
        "alone": ("none", 0, "Empty", "kafka", ["orders"], 2, 10, ""),
        "half": ("zookeeper", 1, "Unowned", "none", ["orders"], 2, 400, ""),
        "java": ("zookeeper", 1, "Stable", "both", ["orders"], 2, 200, ""),
        "lake": ("zookeeper", 1, "Stable", "zookeeper", ["orders"], 2, 300, ""),
        "new": ("none", 0, "Empty", "none", [], 0, 0, ""),
        "web": ("kafka", 1, "Stable", "kafka", ["orders"], 2, 50, ""),
    } == {name: tuple(row[one] for one in columns) for name, row in rows.items()}
    assert (DONE, "") == (code, err)
    assert ["web", "kafka", "1", "Stable", "kafka", "orders", "50"] == out.splitlines()[-1].split()


def test_positions_of_the_settings_count_for_groups_in_zookeeper(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """As for ``lag`` of one group. A group that a broker coordinates reads Kafka alone."""
    for group in ("java", "web"):
        commit_to_zookeeper(registry, group, 380)
        commit_to_kafka(broker, group, 300)
    with KafkaMember(broker, "web"):
        zookeeper = read_groups(ask)
        kafka = read_groups(ask, "--set", "offsets.storage=kafka", "--set", "offsets.dual_commit=false")

    assert (20, 100) == (zookeeper["java"]["lag"], kafka["java"]["lag"])
    assert (100, 100) == (zookeeper["web"]["lag"], kafka["web"]["lag"])


def test_a_name_in_both_places_is_one_row_that_says_so(broker: EmbeddedThread, registry: KazooClient, ask: Ask) -> None:
    """Members of the two groups do not see each other, and each record is consumed twice."""
    member = register(registry, "lake")
    with KafkaMember(broker, "lake"):
        row = read_groups(ask)["lake"]
        code, out, _ = ask("groups describe lake", "--json")

    assert ("both", 2, "Stable, Stable in Kafka") == (row["registered"], row["members"], row["state"])
    assert "two groups of one name" in row["note"]
    report = json.loads(out)
    assert DONE == code
    assert {"zookeeper": member, "kafka": report["members"][1]["member"]} == {
        one["registered"]: one["member"] for one in report["members"]
    }


def test_a_group_in_zookeeper_is_described(broker: EmbeddedThread, registry: KazooClient, ask: Ask) -> None:
    """Members with their threads and hosts, and owners as ``lag`` has them."""
    member = register(registry, "lake", owned=1)
    commit_to_zookeeper(registry, "lake", 100)

    code, out, err = ask("groups describe lake", "--json")

    report = json.loads(out)
    assert (DONE, "") == (code, err)
    assert (None, None, None) == (report["protocol_type"], report["protocol"], report["coordinator"])
    (shown,) = report["members"]
    expected = (member, "host.example", [f"{member}-0"], ["orders"], ["orders/0"])
    assert expected == tuple(shown[one] for one in ("member", "host", "threads", "topics", "owned"))
    session = registry.exists(f"/consumers/lake/ids/{member}").ephemeralOwner
    assert f"{session:x}" == shown["session"]
    rows = [
        tuple(row[one] for one in ("partition", "owner", "position", "latest", "lag")) for row in report["partitions"]
    ]
    assert [("0", f"{member}-0", 100, 400, 300), ("1", None, None, 0, 0)] == rows
    code, out, _ = ask("groups describe lake")
    assert out.startswith(
        "group lake: registered: zookeeper, 1 member, state: Unowned, positions: zookeeper, total lag: 300\n"
    )
    assert "host.example" in out


def test_a_group_that_a_broker_coordinates_is_described(broker: EmbeddedThread, ask: Ask) -> None:
    """It was shown by Kafka's own tools alone, and ``lag`` knew no owner."""
    with KafkaMember(broker, "web") as member:
        member.commit(350)
        code, out, err = ask("groups describe web", "--json")
        text = ask("groups describe web")[1]

    report = json.loads(out)
    assert DONE == code, err
    assert ("consumer", "range") == (report["protocol_type"], report["protocol"])
    assert report["coordinator"].endswith(broker.bootstrap)
    (shown,) = report["members"]
    expected = ("app", "127.0.0.1", None, [], ["orders"], ["orders/0", "orders/1"])
    assert expected == tuple(shown[one] for one in ("client_id", "host", "session", "threads", "topics", "owned"))
    rows = [tuple(row[one] for one in ("partition", "owner", "kafka", "lag", "counts")) for row in report["partitions"]]
    assert [("0", shown["member"], 350, 50, "kafka"), ("1", shown["member"], None, 0, None)] == rows
    assert f"coordinator: broker 0 at {broker.bootstrap}, protocol: consumer range" in text


def test_each_command_counts_a_coordinated_group_from_its_positions_in_kafka(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """ZooKeeper still holds what the group committed before its members moved to a broker.

    ``groups`` counted from Kafka, ``lag``, ``offsets show`` and ``offsets export`` from ZooKeeper.
    """
    commit_to_zookeeper(registry, "web", 100)
    with KafkaMember(broker, "web") as member:
        member.commit(300)
        (lag, *_) = [json.loads(line) for line in ask("lag", "-g", "web", "--json")[1].splitlines()]
        moved = ask("offsets shift", "-g", "web", "orders/0", "--by", "-10", "--dry-run")
    (shown, *_) = [json.loads(line) for line in ask("offsets show", "-g", "web", "--json")[1].splitlines()]
    exported = json.loads(ask("offsets export", "-g", "web")[1])
    listed = read_groups(ask)["web"]

    assert (100, 300, "kafka", 100) == (lag["position"], lag["kafka"], lag["counts"], lag["lag"])
    assert lag["owner"].startswith("app")
    assert "ahead" not in lag["note"]
    assert "290" in moved[1], moved
    assert (100, 300, "kafka") == (shown["position"], shown["kafka"], shown["counts"])
    assert [300] == [one["position"] for one in exported["offsets"]]
    assert 100 == listed["lag"]


def test_a_group_with_members_in_zookeeper_is_counted_by_the_settings(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """Its coordinator knows it by a commit to both places, as members of their own kind make."""
    register(registry, "lake")
    commit_to_zookeeper(registry, "lake", 100)
    commit_to_kafka(broker, "lake", 90)

    (lag, *_) = [json.loads(line) for line in ask("lag", "-g", "lake", "--json")[1].splitlines()]

    assert (100, 90, "zookeeper", 300) == (lag["position"], lag["kafka"], lag["counts"], lag["lag"])
    assert lag["owner"] == f"{JAVA_MEMBER.format(group='lake', number=1)}-0"


def test_lag_of_all_groups_has_a_row_for_each_partition_of_each(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """The name of each group, and the same numbers as for one group."""
    broker.create_topic("clicks", 1)
    commit_to_zookeeper(registry, "lake", 100)
    commit_to_zookeeper(registry, "lake", 0, "clicks")
    commit_to_zookeeper(registry, "lake", 5, "gone")
    commit_to_kafka(broker, "alone", 390)

    code, out, err = ask("lag --all-groups --json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (DONE, "") == (code, err)
    assert [
        ("alone", "orders", "0", None, 390, 10),
        ("alone", "orders", "1", None, None, 0),
        ("lake", "clicks", "0", 0, None, 0),
        ("lake", "gone", "0", 5, None, None),
        ("lake", "orders", "0", 100, None, 300),
        ("lake", "orders", "1", None, None, 0),
    ] == [tuple(row[one] for one in ("group", "topic", "partition", "position", "kafka", "lag")) for row in rows]
    one = [json.loads(line) for line in ask("lag -g lake --json")[1].splitlines()]
    assert [row["note"] for row in one] == [row["note"] for row in rows[2:]]
    code, out, _ = ask("lag --all-groups")
    assert out.endswith("total lag 310, 5 of 5 partitions without an owner, in 2 groups\n")
    code, out, _ = ask("lag --all-groups clicks --json")
    assert [("lake", "clicks")] == [(row["group"], row["topic"]) for row in map(json.loads, out.splitlines())]


def test_options_that_contradict_each_other_are_refused(broker: EmbeddedThread, ask: Ask) -> None:
    """Before anything is asked; and without a group the way to all of them is named."""
    code, _, err = ask("lag --all-groups -g lake")
    assert (CONFIGURATION, True) == (code, "--all-groups and --group exclude each other" in err)
    code, _, err = ask("lag")
    assert (CONFIGURATION, True) == (code, "or --all-groups" in err)
    code, _, err = ask("lag --all-groups ordres")
    assert (CONFIGURATION, True) == (code, "did you mean orders?" in err)


def test_a_misspelt_group_is_told_with_those_that_are_there(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """Those in Kafka too."""
    registry.ensure_path("/consumers/lake/ids")
    commit_to_kafka(broker, "alone", 1)
    code, out, err = ask("groups describe leak")
    assert (FAILED, "") == (code, out)
    assert "there is no group 'leak'; the groups there: alone, lake" in err


def test_without_positions_in_kafka_no_broker_is_asked_for_groups(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """A request for a coordinator would make a broker create the topic of positions."""
    assert (DONE, "no groups\n", "") == ask("groups")
    commit_to_zookeeper(registry, "lake", 100)
    fault = broker.arm(lambda faults: faults.error(ApiKey.LIST_GROUPS, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, times=9))
    assert ["lake"] == list(read_groups(ask))
    assert ["orders"] == registry.get_children("/brokers/topics")
    broker.arm(lambda _: fault.remove())


def test_groups_that_a_broker_does_not_tell_are_a_problem_and_the_others_are_shown(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """A short list would be taken for a whole one. Positions are asked for all the same."""
    commit_to_zookeeper(registry, "lake", 100)
    commit_to_kafka(broker, "lake", 300)
    commit_to_kafka(broker, "alone", 390)
    fault = broker.arm(
        lambda faults: faults.error(ApiKey.LIST_GROUPS, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, times=99)
    )
    try:
        code, out, err = ask("groups --json")
        lag = ask("lag --all-groups --json")
    finally:
        broker.arm(lambda _: fault.remove())

    (row,) = map(json.loads, out.splitlines())
    assert (FAILED, "lake", "both", 300) == (code, row["group"], row["positions"], row["lag"])
    assert "groups may be missing: broker 0 " in err
    assert "CLUSTER_AUTHORIZATION_FAILED" in err
    assert "allow `Describe` on `Cluster:kafka-cluster` for User:ANONYMOUS" in err
    assert (FAILED, err) == (lag[0], lag[2])


def test_a_group_that_may_not_be_described_is_shown_with_the_reason(broker: EmbeddedThread, ask: Ask) -> None:
    """Its positions and its lag are known."""
    commit_to_kafka(broker, "alone", 390)
    fault = broker.arm(
        lambda faults: faults.error(ApiKey.DESCRIBE_GROUPS, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=99)
    )
    try:
        row = read_groups(ask)["alone"]
    finally:
        broker.arm(lambda _: fault.remove())

    assert (None, "unknown", "kafka") == (row["members"], row["state"], row["positions"])
    assert "allow `Describe` on `Group:alone`" in row["note"]


def test_positions_that_are_refused_are_not_taken_for_none(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """The lag of a group whose positions in Kafka count is unknown then, and not that of a new group."""
    commit_to_kafka(broker, "alone", 390)
    commit_to_zookeeper(registry, "lake", 100)
    commit_to_kafka(broker, "lake", 300)
    fault = broker.arm(lambda faults: faults.error(ApiKey.OFFSET_FETCH, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=99))
    try:
        rows = read_groups(ask)
        with_kafka = read_groups(ask, "--set", "offsets.storage=kafka", "--set", "offsets.dual_commit=false")
    finally:
        broker.arm(lambda _: fault.remove())

    assert ("unknown", "zookeeper") == (rows["alone"]["positions"], rows["lake"]["positions"])
    assert 300 == rows["lake"]["lag"]
    assert None is with_kafka["lake"]["lag"]
    assert "GROUP_AUTHORIZATION_FAILED" in rows["lake"]["note"]


def test_a_broker_that_does_not_answer_leaves_what_zookeeper_has(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """A quarter of the time limit is for brokers that do not answer; the command ends within it."""
    commit_to_zookeeper(registry, "lake", 100)
    commit_to_kafka(broker, "alone", 390)
    fault = broker.arm(lambda faults: faults.delay(ApiKey.LIST_GROUPS, 30, times=99))
    started = time.monotonic()
    try:
        code, out, err = ask("groups --json", timeout="8")
    finally:
        broker.arm(lambda _: fault.remove())

    assert time.monotonic() - started < 8
    (row,) = map(json.loads, out.splitlines())
    assert (FAILED, "lake", "zookeeper") == (code, row["group"], row["positions"])
    assert "positions in Kafka are unknown: broker 0 " in row["note"]
    assert "groups may be missing: broker 0 " in err


def test_a_group_whose_nodes_may_not_be_read_does_not_hide_the_others(
    broker: EmbeddedThread, registry: KazooClient, ask: Ask
) -> None:
    """Each group has ACLs of its own."""
    commit_to_zookeeper(registry, "lake", 100)
    commit_to_zookeeper(registry, "secret", 100)
    registry.set_acls("/consumers/secret/offsets", [make_acl("world", "anyone", write=True)])
    rows = read_groups(ask)

    assert 300 == rows["lake"]["lag"]
    assert (None, "unknown", "unknown", None) == tuple(
        rows["secret"][one] for one in ("members", "state", "positions", "lag")
    )
    assert "/consumers/secret/offsets" in rows["secret"]["note"]
    code, _, err = ask("lag --all-groups --json")
    assert (FAILED, True) == (code, "group secret: " in err)


@pytest.mark.parametrize("as_release", ["0.8.2", "0.9"])
def test_brokers_that_list_no_groups_or_not_all_are_asked_for_positions(
    server: EmbeddedZooKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str], as_release: str
) -> None:
    """0.8.2 has positions and no groups; 0.9 leaves out groups without members. Neither is a failure."""
    chroot = f"{server.connect_string}/as-{as_release}"
    with (
        EmbeddedThread(tmp_path, chroot, as_release=as_release) as broker,
        open_registry(chroot) as registry,
    ):
        broker.create_topic("orders", 2)
        registry.client.ensure_path("/consumers/lake/ids")
        code = main(["offsets", "set", "-z", chroot, "-g", "lake", "orders/0=0", "--yes",
                     "--set", "offsets.storage=kafka", "--set", "offsets.dual_commit=false"])  # fmt: skip
        assert DONE == code, capsys.readouterr().err
        capsys.readouterr()
        code = main(["groups", "-z", chroot, "--json", "--timeout", "30"])
        shown = capsys.readouterr()

    (row,) = map(json.loads, shown.out.splitlines())
    assert (DONE, "lake", "kafka", 0) == (code, row["group"], row["positions"], row["lag"]), shown.err
    assert (as_release == "0.8.2") == ("older than 0.9, lists no groups" in shown.err)


def test_a_thousand_groups_are_read(broker: EmbeddedThread, registry: KazooClient, ask: Ask) -> None:
    """About 6 requests to ZooKeeper for each, and a second of the processor; a busy machine needs longer."""
    registry.ensure_path("/consumers")
    for first in range(0, 1000, 100):
        transaction = registry.transaction()
        for number in range(first, first + 100):
            root = f"/consumers/g{number:04d}"
            for path in (root, f"{root}/ids", f"{root}/owners", f"{root}/offsets", f"{root}/offsets/orders"):
                transaction.create(path)
            transaction.create(f"{root}/offsets/orders/0", b"%d" % (number % 400))
        transaction.commit()
    commit_to_kafka(broker, "g0000", 300)

    code, out, err = ask("groups --json", timeout="100")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (DONE, 1000) == (code, len(rows)), err
    assert [400 - number % 400 for number in range(1000)] == [row["lag"] for row in rows]
    code, out, err = ask("lag --all-groups --json", timeout="100")
    assert (DONE, 2000) == (code, len(out.splitlines())), err


def test_without_zookeeper_the_exit_code_says_that_it_may_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """As for the other commands."""
    for command in ("groups", "groups describe lake", "lag --all-groups"):
        assert UNREACHABLE == main([*command.split(), "-z", "127.0.0.1:1", "--timeout", "1"])
        capsys.readouterr()
