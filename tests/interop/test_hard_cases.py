# SPDX-License-Identifier: Apache-2.0
"""What should not happen and does: topics deleted and made again, positions spoilt by hand, volumes that go away, brokers
that hang, a ZooKeeper that forgets. Each ends with every record where it belongs, and shows while it lasts.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, Sent
from tests.support.landing_check import check_landing, log_ends
from tests.support.landing_reader import read_landing
from tests.support.registry import Registry, open_registry
from tests.support.serving import find_missing
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn]

Place = tuple[str, int, int]


def produce(cluster: Cluster, topic: str, values: Iterable[bytes], partitions: int = 2, **options: str) -> set[Place]:
    """Send values to the partitions in turn and return where they are."""
    producer = cluster.ledger_producer(linger_ms="5", **options)
    producer.send(Sent(topic, number % partitions, b"k", value) for number, value in enumerate(values))
    return set(producer.finish())


def numbered(stem: str, count: int) -> list[bytes]:
    return [f"{stem} {number}".encode() for number in range(count)]


def total(member: Daemon, field: str) -> int:
    return sum(one[field] or 0 for one in member.status()["partitions"])


def states(member: Daemon) -> Mapping[str, int]:
    return Counter(one["state"] for one in member.status()["partitions"])


def told(member: Daemon) -> set[str]:
    """Return the kinds of events that the status page shows."""
    return {event["kind"] for event in member.status()["events"]}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["stdout", "jsonl"])
def test_a_topic_deleted_and_made_again_is_another_topic(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    """First with more records than before, then with fewer: positions of the old ones would lose or repeat records."""
    cluster = shared_clusters(release)
    topic, group = unique("again"), unique("again")
    landing = tmp_path / "landing"
    sink = {"type": "stdout"} if kind == "stdout" else {"type": kind, "path": str(landing), "roll_ms": 300}
    expected: Counter[bytes] = Counter()
    with (
        open_registry(cluster.zookeeper) as registry,
        Daemon(tmp_path, "member", settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)) as member,
    ):
        for turn, count in enumerate((500, 800, 100)):
            cluster.create_topic(topic, 2)
            values = numbered(f"turn {turn}", count)
            produce(cluster, topic, values)
            expected.update(values)
            member.wait(lambda count=count: total(member, "committed") == count, f"turn {turn} is delivered")
            member.wait_ready()
            cluster.delete_topic(topic)
            wait_until(lambda: registry.client.exists(f"/brokers/topics/{topic}") is None, "the topic is gone")
            wait_until(lambda: registry.client.exists(f"/admin/delete_topics/{topic}") is None, "all of it")
            member.wait(lambda: not member.owned(), "nothing is owned any more")
            member.wait(lambda: member.status()["missing_topics"] == [topic], "the status names the topic")
        assert member.terminate() == 0

    if kind == "stdout":
        assert Counter(_value(one.line) for one in member.deliveries) == expected
        return
    read = read_landing(landing)
    assert read.problems == []
    assert Counter(record.value for one in read.partitions.values() for record in one.records) == expected
    assert {len(one.chains) for one in read.partitions.values()} == {3}


def _value(line: bytes) -> bytes:
    return line.partition(b'"value":"')[2].partition(b'"')[0]


@pytest.mark.timeout(150)
def test_positions_that_cannot_be_used_stop_their_partition_until_they_are_put_right(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """No number, below the log, above the log: the others flow, the page says what to do, and doing it helps at once."""
    cluster = shared_clusters(release)
    topic, expired, group = unique("spoilt"), unique("expired"), unique("spoilt")
    cluster.create_topic(topic, 3)
    cluster.create_topic(expired, segment_bytes="1000")
    produce(cluster, topic, numbered("v", 300), 3)
    produce(cluster, expired, numbered("v", 100), 1, batch_size="200")
    start = cluster.expire(expired)
    node = f"/consumers/{group}/offsets/{{}}/{{}}".format
    with open_registry(cluster.zookeeper) as registry:
        spoilt = {node(topic, 0): b"three", node(expired, 0): b"0", node(topic, 1): b"5000", node(topic, 2): b"60"}
        for path, text in spoilt.items():
            registry.client.create(path, text, makepath=True)
        with Daemon(tmp_path, "member", settings_for(cluster.zookeeper, group, topics=(topic, expired))) as member:
            member.wait(lambda: states(member) == {"stopped": 3, "running": 1}, "three are stopped")
            code, reasons = member.get("/readyz")
            assert code == 200
            assert "reads 'three'" in reasons
            assert reasons.count("say where to go on with `consumerd offsets set") == 2
            assert "consumerd_stopped_partitions 3.0" in member.get("/metrics")[1]
            member.wait(lambda: registry.client.get(node(topic, 2))[0] == b"100", "the fourth flows and is committed")
            for path, text in {node(topic, 0): 40, node(expired, 0): start, node(topic, 1): 90}.items():
                registry.client.set(path, b"%d" % text)
            member.wait_ready()
            member.wait(lambda: total(member, "committed") == 400, "all are delivered")
            assert member.terminate() == 0

    delivered = Counter((one.topic, one.partition) for one in member.deliveries)
    assert delivered == {(topic, 0): 60, (topic, 1): 10, (topic, 2): 40, (expired, 0): 100 - start}


@pytest.mark.timeout(240)
def test_a_partition_that_moved_goes_on_while_its_old_leader_hangs(
    release: str, own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """SIGSTOP of a broker: its connections stay open and silent, and it may be the one that is asked who leads now."""
    cluster = own_cluster(release, 2)
    topic, group = unique("hangs"), unique("hangs")
    cluster.create_topic(topic, 6, 2)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 300}
    ledger = produce(cluster, topic, numbered("before", 60), 6)
    with (
        open_registry(cluster.zookeeper) as registry,
        Daemon(tmp_path, "member", settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)) as member,
    ):
        member.wait(lambda: total(member, "committed") == 60, "landed")
        broker = cluster.processes["broker-1"]
        broker.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: _leaders(registry, topic, 6) == {0}, "broker 0 leads all", 30)
            survivor = f"127.0.0.1:{cluster.ports[0]}"
            # Producers of 0.8 wait for ever for a broker that hangs: the survivor must have heard that it leads. The controller
            # of 0.8 tells the one that hangs first, for 30 s or more.
            wait_until(lambda: find_missing(survivor, topic, 6) is None, "broker 0 says so", 120)
            ledger |= produce(cluster, topic, numbered("after", 60), 6, bootstrap_servers=survivor)
            # far less than the 30 s for which a request may wait
            member.wait(lambda: total(member, "acknowledged") == 120, "all are fetched from broker 0", 10)
            assert member.get("/readyz")[0] == 200
        finally:
            broker.send_signal(signal.SIGCONT)
        assert member.terminate() == 0
    check_landing(landing, ledger)


def _leaders(registry: Registry, topic: str, partitions: int) -> set[int]:
    paths = [f"/brokers/topics/{topic}/partitions/{partition}/state" for partition in range(partitions)]
    return {json.loads(registry.client.get(path)[0])["leader"] for path in paths}


@pytest.mark.timeout(60)
def test_a_path_that_goes_away_and_comes_back_costs_nothing_but_time(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A volume that was unmounted: nothing is written beside it, it is told once a partition, and all of it shows."""
    cluster = shared_clusters(release)
    topic, group = unique("volume"), unique("volume")
    cluster.create_topic(topic, 2)
    landing, away = tmp_path / "landing", tmp_path / "away"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 300}
    ledger = produce(cluster, topic, numbered("before", 100))
    with Daemon(tmp_path, "member", settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)) as member:
        member.wait(lambda: total(member, "committed") == 100, "landed")
        landing.rename(away)
        ledger |= produce(cluster, topic, numbered("after", 100))
        member.wait(lambda: states(member) == {"failing": 2}, "both fail")
        member.wait(lambda: _sink_errors(member) > 6, "it is tried again and again")
        assert "mounted" in member.status()["partitions"][0]["reason"]
        assert "sink failed" in told(member)
        assert not landing.exists()
        away.rename(landing)
        member.wait(lambda: total(member, "committed") == 200, "the rest has landed")
        member.wait(lambda: states(member) == {"running": 2}, "all is well")
        assert len(member.events("delivery_failing")) == len(member.events("delivery_recovered")) == 2
        assert member.terminate() == 0
    check_landing(landing, ledger)


def _sink_errors(member: Daemon) -> float:
    found = re.search(r'consumerd_sink_errors_total{retriable="true",sink="out"} (\S+)', member.get("/metrics")[1])
    return float(found[1]) if found else 0.0


@pytest.mark.full
@pytest.mark.timeout(60)
def test_another_groups_path_is_refused_and_left_alone(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Two groups in one path would take each other's positions for their own."""
    cluster = shared_clusters(release)
    topic, first, second = unique("path"), unique("first"), unique("second")
    cluster.create_topic(topic, 2)
    landing = tmp_path / "landing"
    sink = {"type": "parquet", "path": str(landing), "roll_ms": 300}
    ledger = produce(cluster, topic, numbered("v", 100))
    with Daemon(tmp_path, "one", settings_for(cluster.zookeeper, first, topics=(topic,), sink=sink)) as one:
        one.wait(lambda: total(one, "committed") == 100, "landed")
        with Daemon(tmp_path, "two", settings_for(cluster.zookeeper, second, topics=(topic,), sink=sink)) as two:
            assert two.wait_end() == 2
            assert f"belongs to group {first!r}" in two.log()
        assert one.terminate() == 0
    check_landing(landing, ledger)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_zookeeper_that_has_lost_its_data_ends_the_daemon_and_the_path_stays_the_old_clusters(
    release: str, own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """It counts from the beginning, so that topics seem older than what has landed of them."""
    cluster = own_cluster(release)
    topic, group = unique("wiped"), unique("wiped")
    cluster.create_topic(unique("earlier"), 20)
    cluster.create_topic(topic, 2)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 300}
    ledger = produce(cluster, topic, numbered("before", 100))
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
    with Daemon(tmp_path, "member", settings) as member:
        member.wait(lambda: total(member, "committed") == 100, "landed")
        cluster.stop("broker-0")
        cluster.kill_zookeeper()
        shutil.rmtree(cluster.directory / "zookeeper")
        shutil.rmtree(cluster.directory / "log-0")
        cluster.start_zookeeper()
        cluster.start_broker(0)
        cluster.create_topic(topic, 2)
        assert member.wait_end(60) == 1
        assert "/brokers/topics was made by" in member.log()
    with Daemon(tmp_path, "again", settings) as again:
        assert again.wait_end() == 2
        assert f"belongs to group {group!r} of cluster" in again.log()
    check_landing(landing, ledger)


@pytest.mark.timeout(120)
def test_what_a_java_member_consumed_while_we_were_away_is_a_gap_of_exactly_that(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """It keeps no files: the chain says which offsets somebody else has had, no more and no less, and goes on behind."""
    cluster = shared_clusters(release)
    topic, group, landing = unique("elsewhere"), unique("elsewhere"), tmp_path / "landing"
    cluster.create_topic(topic, 2)
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 300}
    with open_registry(cluster.zookeeper) as registry:

        def land(values: list[bytes], turn: str) -> set[Place]:
            with Daemon(tmp_path, turn, settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)) as member:
                sent = produce(cluster, topic, values)
                ends = log_ends(sent)
                member.wait(
                    lambda: registry.offsets(group, topic) == {number: ends[topic, number] for number in range(2)},
                    "landed and committed",
                )
                assert member.terminate() == 0
            return sent

        ours = land(numbered("before", 101), "before")
        java = cluster.java_consumer(group, topic)
        try:
            theirs = produce(cluster, topic, numbered("java", 61))
            ends = log_ends(theirs)
            wait_until(
                lambda: registry.offsets(group, topic) == {number: ends[topic, number] for number in range(2)},
                "Java has consumed and committed",
            )
            java.terminate()
        finally:
            if java.process.poll() is None:
                java.kill()
        ours |= land(numbered("after", 41), "after")

    assert {(name, partition, offset) for name, partition, offset, _ in java.records()} == theirs
    read = read_landing(landing)
    assert read.problems == []
    found = [(one.topic, int(one.partition), offset) for one in read.partitions.values() for offset in one.offsets]
    assert sorted(found) == sorted(ours)
    gaps = {int(one.partition): one.gaps for one in read.partitions.values()}
    assert gaps == {
        number: [{"start": start, "end": end, "reason": "consumed elsewhere", "offsets": end - start}]
        for number in range(2)
        for start, end in [(min(o for _, p, o in theirs if p == number), log_ends(theirs)[topic, number])]
    }
