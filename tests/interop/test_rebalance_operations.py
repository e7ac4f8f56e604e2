# SPDX-License-Identifier: Apache-2.0
"""What a rebalance asks of ZooKeeper, beside what Java's high-level consumers ask for the same: counted on the way there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.conftest import ClusterFactory, Figure
from tests.support.counting_proxy import CountingProxy
from tests.support.daemon import Daemon, settings_for
from tests.support.mixed_group import MixedGroup

PARTITIONS = 120
MEMBERS = 3


def count_a_join(group: MixedGroup, counter: Counter[str], start: Callable[[], object]) -> Counter[str]:
    """Start three members, then a fourth, and return the operations of its coming, commits of positions left out."""
    for _ in range(MEMBERS):
        start()
    group.settle(MEMBERS, timeout_s=90)
    counter.clear()
    start()
    group.settle(MEMBERS + 1, timeout_s=90)
    taken = counter.copy()
    del taken["set"]
    return taken


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_rebalance_asks_less_of_zookeeper_than_javas(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Theirs gives up and claims anew everything that there is, at each try; ours what moves."""
    cluster = shared_clusters(release)
    topics = {unique("counted"): PARTITIONS}
    for topic, count in topics.items():
        cluster.create_topic(topic, count)
    taken: dict[str, Counter[str]] = {}
    with CountingProxy(cluster.zk_port) as proxy:
        connect = f"{proxy.connect_string}{cluster.chroot}"
        with MixedGroup(cluster, tmp_path, unique("theirs"), topics) as group:
            taken["java"] = count_a_join(
                group, proxy.counter.requests, lambda: group.start_java(zookeeper_connect=connect)
            )
    with CountingProxy(cluster.zk_port) as proxy, ExitStack() as stack:
        connect = f"{proxy.connect_string}{cluster.chroot}"
        with MixedGroup(cluster, tmp_path, unique("ours"), topics) as group:
            numbers = iter(range(MEMBERS + 1))

            def start() -> None:
                settings = settings_for(connect, group.group, topics=tuple(topics), sink={"type": "null"})
                stack.enter_context(Daemon(tmp_path, f"counted-{next(numbers)}", settings))

            taken["ours"] = count_a_join(group, proxy.counter.requests, start)
    for name, counted in taken.items():
        figure(f"requests to ZooKeeper when a fourth member joins for {PARTITIONS} partitions, {name}", dict(counted))
    assert taken["ours"].total() < taken["java"].total(), taken
