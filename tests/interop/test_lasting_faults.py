# SPDX-License-Identifier: Apache-2.0
"""Faults of real brokers that last: what page, API, probe, lag, metrics, log and events say of them, and after them.

``tests/component/daemon/test_lasting_faults.py`` has the same for every fault and for ten minutes of it, in virtual time.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.interop.conftest import MAIN_RELEASE, require
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, Sent

pytestmark = [pytest.mark.records, pytest.mark.drawn]

Place = tuple[str, int]

TOLD_S = 60.0
"""Generous: the broker's session of 6 s must end first, and a probe fails after 30 s."""
SPOILT, FLOWING = "spoilt", "flowing"


@contextlib.contextmanager
def running(brokers: int) -> Iterator[Cluster]:
    """Run brokers whose authorizer lets everybody do what no rule is about."""
    require(MAIN_RELEASE)
    properties = {
        "authorizer.class.name": "kafka.security.auth.SimpleAclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Cluster(MAIN_RELEASE, brokers, properties=properties) as cluster:
        yield cluster


def create_on(cluster: Cluster, topic: str, broker: int) -> None:
    """Create a topic of one partition, with its only replica on that broker."""
    cluster.run_tool(
        "kafka.admin.TopicCommand", "--zookeeper", cluster.zookeeper, "--create", "--topic", topic,
        "--replica-assignment", str(broker),
    )  # fmt: skip
    cluster.wait_topic(topic, 1)


def change_acl(cluster: Cluster, change: str, topic: str) -> None:
    """Add or remove rules that let everybody describe and write a topic, and us not read it.

    A topic with any rule is closed to what none of them allows.
    """
    for rule in (("--allow-principal", "User:*", "Describe", "Write"), ("--deny-principal", "User:ANONYMOUS", "Read")):
        whom, operations = rule[:2], [word for one in rule[2:] for word in ("--operation", one)]
        cluster.run_tool(
            "kafka.admin.AclCommand", "--authorizer-properties", f"zookeeper.connect={cluster.zookeeper}", change,
            *(["--force"] if change == "--remove" else []), *whom, *operations, "--topic", topic,
        )  # fmt: skip


def produce(cluster: Cluster, topic: str, count: int) -> None:
    """Write records and wait until they are acknowledged."""
    producer = cluster.ledger_producer()
    producer.send(Sent(topic=topic, partition=0, key=None, value=b"%d" % number) for number in range(count))
    producer.finish()


def acknowledged(daemon: Daemon, topic: str) -> int:
    """Return the next offset after what has been delivered of a topic's one partition."""
    return next((one["acknowledged"] or 0 for one in daemon.status()["partitions"] if one["topic"] == topic), 0)


def gauge(daemon: Daemon, name: str, topic: str | None = None) -> float:
    """Return a gauge, of a topic's one partition where a topic is given."""
    (value,) = [
        sample.value
        for family in text_string_to_metric_families(daemon.get("/metrics")[1])
        for sample in family.samples
        if sample.name == name and sample.labels.get("topic") == topic
    ]
    return value


def check_told(daemon: Daemon, topic: str, reason: str, *, lag: float | None = None) -> None:
    """Wait until everything says of a topic's partition that it fails, and why.

    Its ``lag`` is unknown, or what ListOffsets says where that is answered: then it is waited for.
    """

    def partition() -> dict[str, object]:
        (found,) = [one for one in daemon.status()["partitions"] if one["topic"] == topic]
        return dict(found)

    daemon.wait(
        lambda: partition()["state"] == "failing" and re.search(reason, str(partition()["reason"])) is not None,
        f"{topic} is failing: {reason}",
        TOLD_S,
    )
    assert re.search(reason, daemon.get("/")[1]), "the page says why"
    daemon.wait(lambda: partition()["lag"] == lag, f"the lag is {lag}", TOLD_S)
    measured = gauge(daemon, "consumerd_lag_records", topic)
    assert math.isnan(measured) if lag is None else measured == lag
    assert gauge(daemon, "consumerd_partition_failing_seconds", topic) > 0
    assert gauge(daemon, "consumerd_failing_partitions") >= 1
    daemon.wait(lambda: f"{topic}/0" in daemon.get("/readyz")[1], "the probe names it", TOLD_S)
    assert daemon.get("/readyz")[0] == 200, "a partition's trouble does not make the member unready"
    # by now for longer than all that is tried again is apart: one fault, one event
    told = [one for one in daemon.events("delivery_failing") if one["topic"] == topic]
    assert len(told) == 1, told
    shown = [one for one in daemon.status()["events"] if one["kind"] == "delivery failing"]
    assert [one["count"] for one in shown] == [1], shown


def check_well(daemon: Daemon, topics: dict[str, int]) -> None:
    """Wait until everything is delivered, and said to be well."""
    for topic, end in topics.items():
        daemon.wait(lambda topic=topic, end=end: acknowledged(daemon, topic) == end, f"{topic} is delivered", TOLD_S)  # type: ignore[misc]  # bound now
    daemon.wait(lambda: daemon.get("/readyz") == (200, "ok\n"), "ready, and nothing in trouble", TOLD_S)
    daemon.wait(lambda: all(one["lag"] == 0 for one in daemon.status()["partitions"]), "lag is known, and 0", TOLD_S)
    assert gauge(daemon, "consumerd_failing_partitions") == 0
    assert {one["state"] for one in daemon.status()["partitions"]} == {"running"}


@pytest.mark.timeout(300)
def test_a_cluster_that_was_killed_is_told_for_as_long_as_it_is_away(tmp_path: Path) -> None:
    """Refused connections are no requests that fail, and nobody is left to take the leader's name away."""
    with running(1) as cluster:
        create_on(cluster, SPOILT, 0)
        produce(cluster, SPOILT, 10)
        with Daemon(tmp_path, "d", settings_for(cluster.zookeeper, "faults", topics=(SPOILT,))) as daemon:
            check_well(daemon, {SPOILT: 10})
            cluster.kill_broker(0)
            check_told(daemon, SPOILT, r"broker 0 at|has no leader")
            cluster.start_broker(0)
            cluster.wait_topic(SPOILT, 1)
            produce(cluster, SPOILT, 5)
            check_well(daemon, {SPOILT: 15})
            assert daemon.terminate() == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["no leader", "ACL revoked"])
def test_a_partition_that_cannot_be_read_is_told_beside_one_that_flows(fault: str, tmp_path: Path) -> None:
    """Its only replica is on a broker that is gone; or a rule of the authorizer keeps us from it."""
    with running(2) as cluster:
        create_on(cluster, SPOILT, 0)
        create_on(cluster, FLOWING, 1)
        for topic in (SPOILT, FLOWING):
            produce(cluster, topic, 10)
        begin, end, reason, lag = plan_fault(cluster, fault)
        with Daemon(tmp_path, "d", settings_for(cluster.zookeeper, "faults", topics=(SPOILT, FLOWING))) as daemon:
            check_well(daemon, {SPOILT: 10, FLOWING: 10})
            begin()
            check_told(daemon, SPOILT, reason, lag=lag)
            produce(cluster, FLOWING, 10)
            daemon.wait(lambda: acknowledged(daemon, FLOWING) == 20, "the other topic flows", TOLD_S)
            assert gauge(daemon, "consumerd_partition_failing_seconds", FLOWING) == 0
            end()
            produce(cluster, SPOILT, 5)
            written = 15 + int(lag or 0)
            check_well(daemon, {SPOILT: written, FLOWING: 20})
            assert [one.offset for one in daemon.deliveries if one.topic == SPOILT] == list(range(written))
            daemon.wait(lambda: len(daemon.events("delivery_recovered")) == 1, "the log says that it is over", TOLD_S)
            assert daemon.terminate() == 0


def plan_fault(cluster: Cluster, fault: str) -> tuple[Callable[[], None], Callable[[], None], str, float | None]:
    """Return how a fault begins and ends, what is said of it, and the lag, if anybody answers for it."""
    if fault == "ACL revoked":

        def revoke() -> None:
            change_acl(cluster, "--add", SPOILT)
            produce(cluster, SPOILT, 3)  # a lag that was true before the fault is not true any more

        return (
            revoke,
            lambda: change_acl(cluster, "--remove", SPOILT),
            r"TOPIC_AUTHORIZATION_FAILED \(29\)",
            3,  # ListOffsets takes the right to describe alone
        )

    def come_back() -> None:
        cluster.start_broker(0)
        cluster.wait_topic(SPOILT, 1)

    return lambda: cluster.kill_broker(0), come_back, r"has no leader", None
