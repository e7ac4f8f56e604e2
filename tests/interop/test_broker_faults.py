# SPDX-License-Identifier: Apache-2.0
"""Brokers die and come back, and topics grow, while records are landed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.landing_check import check_landed_with_resent, check_landing, wait_landed
from tests.support.load import SteadyLoad
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 6
PER_PARTITION = 50


@pytest.mark.smoke
@pytest.mark.timeout(180)
def test_a_leader_killed_and_restarted(
    release: str, own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Replication 2: partitions of the dead broker go on at the other one, the others never stop; then it comes back."""
    cluster = own_cluster(release, 2)
    topic, group = unique("leader"), unique("leader")
    cluster.create_topic(topic, PARTITIONS, 2)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
    producer = cluster.ledger_producer(linger_ms="5", retry_backoff_ms="200", metadata_max_age_ms="2000")
    with Daemon(tmp_path, "member", settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)) as member:
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=PER_PARTITION) as load:
            member.wait_ready()
            member.wait(lambda: _acknowledged(member) > 300, "records land")
            cluster.kill_broker(0)
            killed = _acknowledged(member)
            member.wait(lambda: _all_moved(member, killed), "every partition goes on with one broker", 60)
            assert member.get("/readyz")[0] == 200, "a dead broker must not make the group member unready"
            cluster.start_broker(0)
            back = _acknowledged(member)
            member.wait(lambda: _all_moved(member, back), "every partition goes on with both", 60)
            load.stop()
            ledger = producer.finish()
        wait_landed(landing, ledger)
        assert member.terminate() == 0

    check_landed_with_resent(landing, ledger)


@pytest.mark.timeout(150)
def test_a_topic_that_grows_is_consumed_whole(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """New partitions are claimed by the rule, and read from their beginning although the group starts at the latest."""
    cluster = shared_clusters(release)
    topic, group = unique("grows"), unique("grows")
    cluster.create_topic(topic, 2)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink, offsets={"on_missing": "latest"})
    with Daemon(tmp_path, "one", settings) as one, Daemon(tmp_path, "two", settings) as two:
        one.wait(lambda: len(one.owned()) == len(two.owned()) == 1, "one partition each")
        one.wait_ready()
        two.wait_ready()
        producer = cluster.ledger_producer(linger_ms="5", metadata_max_age_ms="500")
        with SteadyLoad(producer, {topic: 2}, per_second=PER_PARTITION):
            wait_until(lambda: len(producer.acknowledged()) > 50, "records are acknowledged")
            cluster.add_partitions(topic, 5)
            cluster.wait_topic(topic, 5)
        ledger = dict(producer.finish())
        # records that were in the new partitions before anybody owned them count as well
        late = cluster.ledger_producer()
        with SteadyLoad(late, {topic: 5}, per_second=PER_PARTITION):
            one.wait(lambda: len(one.owned()) + len(two.owned()) == 5, "all five are owned", 40)
            wait_until(lambda: len(late.acknowledged()) > 100, "records are acknowledged")
        ledger |= late.finish()
        wait_landed(landing, ledger)
        assert one.terminate() == 0
        assert two.terminate() == 0

    check_landing(landing, ledger)


def _acknowledged(member: Daemon) -> int:
    return sum(one["acknowledged"] or 0 for one in member.status()["partitions"])


def _all_moved(member: Daemon, since: int) -> bool:
    """Whether every partition is delivered again without an error, and a good deal more than before has landed."""
    partitions = member.status()["partitions"]
    return (
        len(partitions) == PARTITIONS
        and all(one["state"] == "running" for one in partitions)
        and _acknowledged(member) > since + 100 * PARTITIONS
    )
