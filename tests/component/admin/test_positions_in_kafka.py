# SPDX-License-Identifier: Apache-2.0
"""A group whose members commit to Kafka: what the commands show of it, and whether a member starts.

The scene: Java members stand at 300 in Kafka, and ZooKeeper holds 200 from before they were migrated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from kazoo.client import KazooClient

from consumerd.access.address import ClusterAddress
from consumerd.cli.main import CONFIGURATION, DONE, FAILED, main
from consumerd.config.cluster_section import ClusterSection
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ConfigError
from consumerd.model import TopicPartition as Partition
from consumerd.spark.datasource.lookup import ClusterLookup
from consumerd.spark.datasource.options import parse_read_options
from consumerd.spark.positions import read_positions
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedThread
from tests.support.registry import open_registry
from tests.support.zookeeper import run_server

P = Partition.modern("orders", 0)

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper for the module."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture(scope="module")
def broker(server: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """A broker with 400 records of ``orders``, in one partition; each test has a group of its own."""
    with EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{server.connect_string}/kafka") as embedded:
        embedded.create_topic("orders", 1)
        embedded.produce("orders", b"".join(b"k%d\tv%d\n" % (number, number) for number in range(400)))
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
    """Run a command for the group; returns its exit code and what it printed."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*command.split(), "-z", broker.zookeeper, "-g", group, "--timeout", "20", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def commit_to_kafka(broker: EmbeddedThread, group: str, offset: int) -> None:
    """Commit as a member with offsets.storage=kafka does, by librdkafka."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def commit_to_zookeeper(registry: KazooClient, group: str, offset: int) -> None:
    path = f"/consumers/{group}/offsets/orders/0"
    if registry.exists(path):
        registry.set(path, b"%d" % offset)
    else:
        registry.create(path, b"%d" % offset, makepath=True)


def describe_root(registry: KazooClient, path: str) -> str:
    """Return the cluster's id as the daemon makes it, from the node of topics."""
    stat = registry.exists(path)
    assert stat is not None
    return f"{stat.czxid}-{stat.ctime}"


def settings(broker: EmbeddedThread, group: str, **offsets: object) -> dict[str, object]:
    return {
        "cluster": {"zookeeper": broker.zookeeper},
        "group": {"id": group},
        "subscriptions": [{"topics": ["orders"], "sink": "out"}],
        "sinks": {"out": {"type": "stdout"}},
        "offsets": {"commit_interval_ms": 100, **offsets},
    }


def test_before_anything_is_kept_in_kafka_commands_say_what_they_always_said(
    server: EmbeddedZooKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does any of them make a broker create the topic of positions."""
    with (
        EmbeddedThread(tmp_path, f"{server.connect_string}/untouched") as embedded,
        open_registry(embedded.zookeeper) as registry,
    ):
        embedded.create_topic("orders", 1)
        commit_to_zookeeper(registry.client, "lake", 0)
        for command in ("lag", "lag --json", "offsets show", "offsets show --json", "doctor"):
            assert main([*command.split(), "-z", embedded.zookeeper, "-g", "lake", "--timeout", "20"]) == DONE
            shown = capsys.readouterr()
            assert "afka" not in shown.out + shown.err, command
        assert ["orders"] == registry.client.get_children("/brokers/topics")


def test_both_places_are_shown_and_which_counts_for_whom(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """``lag`` said 200 and ``doctor`` found nothing, while the members stood at 300."""
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)

    code, out, err = ask("lag", "--json")
    row = json.loads(out)
    assert (DONE, 200, 300, 200) == (code, row["position"], row["kafka"], row["lag"])
    assert "100 ahead in Kafka" in row["note"]
    assert "Here count those in ZooKeeper (offsets.storage: zookeeper)" in err
    assert "with dual commits off, at those in Kafka" in err
    assert "KAFKA" in ask("lag")[1].splitlines()[0].split()

    code, out, err = ask("offsets show", "--json")
    row = json.loads(out)
    assert (DONE, 200, 300, "") == (code, row["position"], row["kafka"], row["metadata"])
    assert "larger in Kafka" in row["note"]
    assert "Here count those in ZooKeeper" in err

    code, out, err = ask("doctor")
    assert FAILED == code
    assert "position-larger-in-kafka" in out
    assert "orders/0 (300 in Kafka, 200 in ZooKeeper)" in out

    code, out, err = ask("offsets export")
    assert (DONE, 200) == (code, json.loads(out)["offsets"][0]["position"])
    assert "orders/0: Kafka has a larger position, 300, which is left out" in err


@pytest.mark.parametrize("dual", [True, False], ids=["both", "kafka"])
def test_commands_count_from_the_position_that_the_settings_name(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, dual: bool
) -> None:
    """A daemon with these settings goes on at 300, and so do the commands."""
    options = ("--set", "offsets.storage=kafka", "--set", f"offsets.dual_commit={str(dual).lower()}")
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)

    code, out, err = ask("lag", "--json", *options)
    row = json.loads(out)
    assert (DONE, 200, 300, "kafka", 100, "") == (
        code, row["position"], row["kafka"], row["counts"], row["lag"], row["note"],
    )  # fmt: skip
    assert ("Here count the larger of both" if dual else "Here count those in Kafka") in err
    row = json.loads(ask("offsets show", "--json", *options)[1])
    assert ("kafka", "") == (row["counts"], row["note"])
    assert 300 == json.loads(ask("offsets export", *options)[1])["offsets"][0]["position"]
    code, out, _ = ask("doctor", *options)
    assert DONE == code
    assert "position-of-unknown-age" in out
    assert "positions-in-kafka" not in out

    commit_to_kafka(broker, group, 100)
    row = json.loads(ask("lag", "--json", *options)[1])
    assert (200, "zookeeper") == (row["lag"], row["counts"]) if dual else (300, "kafka") == (row["lag"], row["counts"])
    assert ("" if dual else "100 ahead in ZooKeeper: consumerd run refuses to start") == row["note"]
    assert (DONE if dual else FAILED) == ask("doctor", *options)[0]


@pytest.mark.parametrize(
    ("options", "zookeeper", "outcome"),
    [
        ((), 100, "written to ZooKeeper and Kafka"),
        (("--set", "offsets.storage=kafka"), 100, "written to ZooKeeper and Kafka"),
        (("--set", "offsets.storage=kafka", "--set", "offsets.dual_commit=false"), 200, "written to Kafka"),
    ],
    ids=["zookeeper", "both", "kafka"],
)
def test_a_rewind_without_a_member_moves_every_place_that_could_undo_it(
    broker: EmbeddedThread,
    registry: KazooClient,
    group: str,
    ask: Ask,
    options: tuple[str, ...],
    zookeeper: int,
    outcome: str,
) -> None:
    """ZooKeeper's was moved alone: Kafka's larger position was read by the next member, or refused its start."""
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)

    code, out, err = ask("offsets set", "orders/0=100", "--yes", "--json", *options)

    assert (DONE, outcome) == (code, json.loads(out)["outcome"]), err
    row = json.loads(ask("offsets show", "--json", *options)[1])
    assert (zookeeper, 100) == (row["position"], row["kafka"])
    assert row["metadata"].startswith("consumerd czxid=")


def test_a_rewind_that_kafka_refuses_leaves_both_places(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """Kafka is first, so nothing is half done."""
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)
    fault = broker.arm(lambda faults: faults.error(ApiKey.OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=9))
    try:
        code, _, err = ask("offsets set", "orders/0=100", "--yes")
    finally:
        broker.arm(lambda _: fault.remove())

    assert DONE != code
    assert "Kafka has not confirmed position 100, ZooKeeper's is as it was" in err
    row = json.loads(ask("offsets show", "--json")[1])
    assert (200, 300) == (row["position"], row["kafka"])


def test_a_member_does_not_go_straight_from_zookeeper_to_kafka_alone(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """It would begin at offsets.on_missing, and a Java member at the log's end."""
    commit_to_zookeeper(registry, group, 200)
    alone = {"storage": "kafka", "dual_commit": False}
    options = ("--set", "offsets.storage=kafka", "--set", "offsets.dual_commit=false")
    row = json.loads(ask("lag", "--json", *options)[1])
    assert (200, None, None, 400) == (row["position"], row["kafka"], row["counts"], row["lag"])
    assert "larger in ZooKeeper: consumerd run refuses to start" in row["note"]
    _, out, err = ask("offsets show", "--json", *options)
    assert "larger in ZooKeeper" in json.loads(out)["note"]
    assert "positions in ZooKeeper only" in err
    refused = Daemon(tmp_path, "refused", settings(broker, group, **alone))
    assert CONFIGURATION == refused.wait_end(60)
    assert "orders/0 (200 in ZooKeeper, none in Kafka)" in refused.log()
    assert "offsets.dual_commit: true" in refused.log()

    with Daemon(tmp_path, "both", settings(broker, group, storage="kafka")) as member:
        member.wait(lambda: len(member.deliveries) >= 200, "the rest is delivered", 60)
        member.wait(lambda: 400 == json.loads(ask("offsets show", "--json")[1]).get("kafka"), "it is committed", 60)
    with Daemon(tmp_path, "alone", settings(broker, group, **alone)) as member:
        member.wait(lambda: "delivery_started" in member.log(), "it has started", 60)
        assert [] == member.deliveries


def test_a_group_that_commits_to_both_is_in_order(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """At rest both are equal; where a partition is ours, Kafka's is older."""
    commit_to_zookeeper(registry, group, 300)
    commit_to_kafka(broker, group, 200)

    row = json.loads(ask("lag", "--json")[1])
    assert (300, 200, 100, "") == (row["position"], row["kafka"], row["lag"], row["note"])
    code, out, _ = ask("doctor")
    assert DONE == code
    assert "positions-in-kafka" in out


def test_a_group_that_only_kafka_knows_is_there(broker: EmbeddedThread, group: str, ask: Ask) -> None:
    """It was "no such group", which is what a misspelt name gets."""
    commit_to_kafka(broker, group, 300)

    code, out, err = ask("lag", "--json")
    row = json.loads(out)
    assert (DONE, None, 300, 100) == (code, row["position"], row["kafka"], row["lag"])
    assert "counted from that in Kafka" in row["note"]
    assert "positions in Kafka only" in err
    row = json.loads(ask("offsets show", "--json")[1])
    assert (None, 300, "absent") == (row["position"], row["kafka"], row["validity"])
    code, out, _ = ask("doctor")
    assert (FAILED, True) == (code, "orders/0 (300 in Kafka, none in ZooKeeper)" in out)
    code, _, err = ask("offsets export")
    assert (CONFIGURATION, True) == (code, "positions in Kafka only" in err)


def test_spark_and_the_audit_read_both_places(broker: EmbeddedThread, registry: KazooClient, group: str) -> None:
    """Both read the stale node."""
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)

    kept = read_positions(
        ClusterSection(zookeeper=broker.zookeeper), group, cluster_id=describe_root(registry, "/brokers/topics")
    )
    assert (200, 300) == (kept.zookeeper[P].valid, kept.kafka[P].believed)

    options = {"zookeeper": broker.zookeeper, "subscribe": "orders", "startingOffsets": f"group:{group}"}
    with ClusterLookup(ClusterAddress(client_id="t", zookeeper=broker.zookeeper)) as lookup:
        larger = parse_read_options(options | {"groupPositionsIn": "larger"}, streaming=False)
        assert {P: 300} == lookup.resolve_start(larger, [P])
        with pytest.raises(ConfigError, match=r"orders/0 \(300 in Kafka, 200 in ZooKeeper\)"):
            lookup.resolve_start(parse_read_options(options, streaming=False), [P])


def test_positions_that_a_broker_refuses_to_tell_are_told_to_be_unknown(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """The refusal is no "no position"."""
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)
    fault = broker.arm(lambda faults: faults.error(ApiKey.OFFSET_FETCH, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=9))
    try:
        code, out, err = ask("lag", "--json")
        assert (DONE, 200) == (code, json.loads(out)["position"])
        assert "positions in Kafka are unknown: " in err
        assert "GROUP_AUTHORIZATION_FAILED" in err
        code, out, _ = ask("doctor")
        assert FAILED == code
        assert "kafka-positions-unknown" in out
    finally:
        broker.arm(lambda _: fault.remove())


def test_a_loading_coordinator_is_waited_for(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask
) -> None:
    """It has just become the coordinator."""
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)
    broker.arm(lambda faults: faults.error(ApiKey.OFFSET_FETCH, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=2))
    broker.arm(lambda faults: faults.error(ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=1))

    assert 300 == json.loads(ask("lag", "--json")[1])["kafka"]


def test_a_member_does_not_start_behind_kafka_until_it_is_told_where(
    broker: EmbeddedThread, registry: KazooClient, group: str, ask: Ask, tmp_path: Path
) -> None:
    """It would deliver 200 to 299 again. The command in the refusal lets it go on at 300."""
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)
    refused = Daemon(tmp_path, "refused", settings(broker, group))
    assert CONFIGURATION == refused.wait_end(60)
    said = refused.log()
    assert "orders/0 (300 in Kafka, 200 in ZooKeeper)" in said
    assert "offsets.ignore_other_place: true" in said
    assert f"consumerd offsets set -z {broker.zookeeper} -g {group} orders/0=300" in said
    assert [] == refused.deliveries

    assert DONE == ask("offsets set", "orders/0=300", "--yes")[0]
    with Daemon(tmp_path, "started", settings(broker, group)) as member:
        member.wait(lambda: len(member.deliveries) >= 100, "the rest is delivered", 60)
        assert list(range(300, 400)) == [one.offset for one in member.deliveries]


def test_a_member_is_told_to_ignore_the_other_place(
    broker: EmbeddedThread, registry: KazooClient, group: str, tmp_path: Path
) -> None:
    """Positions in ZooKeeper were moved back on purpose."""
    commit_to_zookeeper(registry, group, 200)
    commit_to_kafka(broker, group, 300)
    with Daemon(tmp_path, "started", settings(broker, group, ignore_other_place=True)) as member:
        member.wait(lambda: len(member.deliveries) >= 200, "it goes on at 200", 60)
        assert list(range(200, 400)) == [one.offset for one in member.deliveries]
