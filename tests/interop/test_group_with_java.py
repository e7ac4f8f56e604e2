# SPDX-License-Identifier: Apache-2.0
"""Groups in which our members sit beside the real Java high-level consumer.

Java is the oracle: every Java thread owns what Java computed, we own what we computed, and where every partition is
owned and nobody is refused, the two are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator

import pytest

from consumerd.group.assignors import Strategy
from consumerd.group.plan import DisagreementKind
from consumerd.group.subscription import Subscription
from consumerd.group.transitions import MemberState
from tests.interop.conftest import ClusterFactory
from tests.support.group_member import GroupMember, join_group, start_member
from tests.support.kafka import Cluster, JavaConsumer, parse_release
from tests.support.registry import Registry, open_registry
from tests.support.waiting import until
from tests.support.zookeeper import make_client

pytestmark = [pytest.mark.timeout(240), pytest.mark.drawn]

GAVE_UP = "can't rebalance after"
HANDOVER_S = 12.0
"""A JVM starts, tries in vain, and tries again 2 and 4 s later; the machine may be busy."""
REST_S = 1.0
CRASH_S = 40.0
"""A session ends, and a Java member that gave up begins anew."""


@contextlib.contextmanager
def java_member(
    cluster: Cluster, group: str, topics: str, *, streams: int = 1, **properties: str
) -> Iterator[JavaConsumer]:
    consumer = cluster.java_consumer(group, topics, streams=streams, **properties)
    try:
        yield consumer
    finally:
        if consumer.process.poll() is None:
            consumer.kill()


def roundrobin_of(release: str) -> Strategy:
    return Strategy.ROUNDROBIN_1_0 if parse_release(release) >= (1, 0) else Strategy.ROUNDROBIN_0_8


async def come_to_rest(
    registry: Registry,
    group: str,
    topics: dict[str, int],
    *,
    members: int,
    ours: Collection[GroupMember] = (),
    within_s: float = HANDOVER_S,
) -> None:
    """Wait until so many members own every partition, each by a node of its own session, and ours all of theirs."""

    def look() -> bool:
        alive = registry.members(group)
        owned = {(topic, p): o for topic in topics for p, o in registry.owners(group, topic).items()}
        return (
            len(alive) == members
            and len(owned) == sum(topics.values())
            and all(
                alive.get(owner.thread.rpartition("-")[0], {}).get("session") == owner.session
                for owner in owned.values()
            )
            and all(is_in_step(member) for member in ours)
        )

    since: float | None = None

    async def settled() -> bool:
        # a new member is listed before anybody has moved: only what lasts is rest
        nonlocal since
        now = time.monotonic()
        since = (now if since is None else since) if await asyncio.to_thread(look) else None
        return since is not None and now - since > REST_S

    await until(settled, within_s=within_s)
    for member in ours:
        status = member.status
        for partition, thread in status.owned.items():
            owners = await asyncio.to_thread(registry.owners, group, partition.topic)
            assert owners[partition.partition.number].thread == thread
        assert dict(status.owned) == dict(status.desired)


def is_in_step(member: GroupMember) -> bool:
    status = member.status
    return status.state is MemberState.FOLLOWING and status.ready and not status.moving


async def is_range(registry: Registry, group: str, topics: dict[str, int]) -> bool:
    def look() -> bool:
        return all(registry.is_settled(group, topic, partitions) for topic, partitions in topics.items())

    return await asyncio.to_thread(look)


@pytest.mark.smoke
async def test_range_beside_java_over_joins_and_clean_departures(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """Whoever comes and goes, owners are the Java algorithm's, and Java's patience is never used up."""
    cluster = shared_clusters(release)
    group, topics = unique("range"), {unique("t"): 12, unique("u"): 5}
    for topic, partitions in topics.items():
        await asyncio.to_thread(cluster.create_topic, topic, partitions)
    names = ",".join(topics)
    with (
        open_registry(cluster.zookeeper) as registry,
        java_member(cluster, group, names, streams=2) as java,
    ):
        await come_to_rest(registry, group, topics, members=1, within_s=30)
        async with make_client(cluster.zookeeper) as zk_a, make_client(cluster.zookeeper) as zk_b:
            async with join_group(zk_a, group, Subscription.to_topics(dict.fromkeys(topics, 1))) as a:
                await come_to_rest(registry, group, topics, members=2, ours=[a])
                assert await is_range(registry, group, topics)
                async with join_group(zk_b, group, Subscription.to_topics(dict.fromkeys(topics, 2)), drain_s=2.9) as b:
                    await come_to_rest(registry, group, topics, members=3, ours=[a, b])
                    assert await is_range(registry, group, topics)
                    with java_member(cluster, group, names, streams=1) as second:
                        await come_to_rest(registry, group, topics, members=4, ours=[a, b], within_s=30)
                        assert await is_range(registry, group, topics)
                        await asyncio.to_thread(second.terminate)
                        await come_to_rest(registry, group, topics, members=3, ours=[a, b])
                        assert GAVE_UP not in second.log()
                    assert a.status.disagreements == ()
                await come_to_rest(registry, group, topics, members=2, ours=[a])
                assert await is_range(registry, group, topics)
                assert a.listener.lost_ones == b.listener.lost_ones == []
            await come_to_rest(registry, group, topics, members=1)
        assert GAVE_UP not in java.log()


@pytest.mark.smoke
async def test_roundrobin_beside_java_deals_by_the_hash_codes_of_its_release(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """The two forms of round robin differ in most groups: with the wrong one nobody comes to rest."""
    cluster = shared_clusters(release)
    group, topics = unique("robin"), {unique("orders"): 12, unique("clicks"): 7}
    for topic, partitions in topics.items():
        await asyncio.to_thread(cluster.create_topic, topic, partitions)
    strategy = roundrobin_of(release)
    with (
        open_registry(cluster.zookeeper) as registry,
        java_member(
            cluster,
            group,
            ",".join(topics),
            streams=2,
            partition_assignment_strategy="roundrobin",
        ) as java,
    ):
        await come_to_rest(registry, group, topics, members=1, within_s=30)
        async with (
            make_client(cluster.zookeeper) as zk_a,
            make_client(cluster.zookeeper) as zk_b,
            join_group(zk_a, group, Subscription.to_topics(dict.fromkeys(topics, 2)), strategy=strategy) as a,
        ):
            await come_to_rest(registry, group, topics, members=2, ours=[a])
            async with join_group(
                zk_b, group, Subscription.to_topics(dict.fromkeys(topics, 1)), strategy=strategy
            ) as b:
                await come_to_rest(registry, group, topics, members=3, ours=[a, b])
            await come_to_rest(registry, group, topics, members=2, ours=[a])
        assert GAVE_UP not in java.log()


async def test_java_computes_what_our_pattern_leaves_out(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """An excluded topic is a negative look-ahead in what we register: Java shares the rest with us, and has that alone."""
    cluster = shared_clusters(release)
    group, stem = unique("pattern"), unique("p")
    topics = {f"{stem}-a": 4, f"{stem}-b": 3, f"{stem}-debug": 5}
    for topic, partitions in topics.items():
        await asyncio.to_thread(cluster.create_topic, topic, partitions)
    subscription = Subscription.to_white_list([f"{stem}-.*"], 1, exclude=[".*-debug", "other"])
    with open_registry(cluster.zookeeper) as registry:
        java = cluster.java_consumer(group, whitelist=f"{stem}-.*", streams=1)
        try:
            await come_to_rest(registry, group, topics, members=1, within_s=30)
            async with (
                make_client(cluster.zookeeper) as zk,
                join_group(zk, group, subscription) as member,
            ):
                await come_to_rest(registry, group, topics, members=2, ours=[member])
                assert sorted({partition.topic for partition in member.status.owned}) == [f"{stem}-a", f"{stem}-b"]
                excluded = await asyncio.to_thread(registry.owners, group, f"{stem}-debug")
                assert {owner.thread.startswith(member.status.consumer or "?") for owner in excluded.values()} == {
                    False
                }
                # a topic that comes later is shared, too
                later = {f"{stem}-late": 4}
                await asyncio.to_thread(cluster.create_topic, f"{stem}-late", 4)
                await come_to_rest(registry, group, {**topics, **later}, members=2, ours=[member])
                assert f"{stem}-late" in {partition.topic for partition in member.status.owned}
            assert GAVE_UP not in java.log()
        finally:
            java.kill()


@pytest.mark.smoke
async def test_a_black_list_is_shared_with_java_and_registered_as_java_does(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """All topics but some, internal ones left out: both compute the same from the same payload."""
    cluster = shared_clusters(release)
    group, stem = unique("black"), unique("b")
    topics = {f"{stem}-a": 4, f"{stem}-c": 3}
    for topic, partitions in {**topics, f"{stem}-x": 2}.items():
        await asyncio.to_thread(cluster.create_topic, topic, partitions)
    # whatever other tests have left on the cluster is left out, too
    expression = f"(?!{stem}-).*|{stem}-x"
    with open_registry(cluster.zookeeper) as registry:
        java = cluster.java_consumer(group, blacklist=expression, streams=1)
        try:
            await come_to_rest(registry, group, topics, members=1, within_s=30)
            async with (
                make_client(cluster.zookeeper) as zk,
                join_group(zk, group, Subscription.to_black_list([expression], 1)) as member,
            ):
                await come_to_rest(registry, group, topics, members=2, ours=[member])
                assert {partition.topic for partition in member.status.owned} == set(topics)
                assert member.status.disagreements == ()
                ids = f"/consumers/{group}/ids"
                written = {registry.client.get(f"{ids}/{name}")[0] for name in registry.client.get_children(ids)}
                assert len({data.rpartition(b'"timestamp"')[0] for data in written}) == 1, (
                    "but for the time, byte for byte"
                )
                assert await asyncio.to_thread(registry.owners, group, f"{stem}-x") == {}
            assert GAVE_UP not in java.log()
        finally:
            java.kill()


@pytest.mark.smoke
async def test_java_recovers_by_itself_after_a_crash_of_ours(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """Our node under ``ids`` ends with the session, which is the change that a Java member waits for."""
    cluster = shared_clusters(release)
    group, topic = unique("crash"), unique("t")
    await asyncio.to_thread(cluster.create_topic, topic, 6)
    with (
        open_registry(cluster.zookeeper) as registry,
        java_member(cluster, group, topic, streams=2),
        start_member(cluster.zookeeper, group, {topic: 2}) as ours,
    ):
        await come_to_rest(registry, group, {topic: 6}, members=2, within_s=30)
        ours.kill()
        await come_to_rest(registry, group, {topic: 6}, members=1, within_s=CRASH_S)


async def test_we_take_over_from_a_java_member_that_crashed(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """Its owner nodes stay as long as its session: they are watched, and claimed when they go."""
    cluster = shared_clusters(release)
    group, topic = unique("heir"), unique("t")
    await asyncio.to_thread(cluster.create_topic, topic, 6)
    with open_registry(cluster.zookeeper) as registry, java_member(cluster, group, topic) as java:
        await come_to_rest(registry, group, {topic: 6}, members=1, within_s=30)
        async with (
            make_client(cluster.zookeeper) as zk,
            join_group(zk, group, Subscription.to_topics({topic: 1})) as member,
        ):
            await come_to_rest(registry, group, {topic: 6}, members=2, ours=[member])
            java.kill()
            await come_to_rest(registry, group, {topic: 6}, members=1, ours=[member], within_s=CRASH_S)
            assert len(member.listener.claimed_ones) == 6
            assert member.listener.drained == member.listener.lost_ones == []


async def test_a_member_that_nobody_can_read_stops_java_and_not_us(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """pykafka registers a bare topic: each Java member's rebalance fails because of it. What we hold keeps flowing, what is
    Java's stays Java's, and the node is named; once it has gone the group comes to rest by itself.
    """
    cluster = shared_clusters(release)
    group, topic = unique("pykafka"), unique("t")
    await asyncio.to_thread(cluster.create_topic, topic, 6)
    with (
        open_registry(cluster.zookeeper) as registry,
        open_registry(cluster.zookeeper) as foreign,
        java_member(cluster, group, topic) as java,
    ):
        await come_to_rest(registry, group, {topic: 6}, members=1, within_s=30)
        async with (
            make_client(cluster.zookeeper) as zk,
            join_group(zk, group, Subscription.to_topics({topic: 1})) as member,
        ):
            await come_to_rest(registry, group, {topic: 6}, members=2, ours=[member])
            held = dict(member.listener.held)
            junk = f"/consumers/{group}/ids/host:11111111-2222-4333-8444-555555555555"
            await asyncio.to_thread(foreign.client.create, junk, topic.encode(), ephemeral=True)
            await until(lambda: any(one.kind is DisagreementKind.UNREADABLE for one in member.status.disagreements))
            await until(lambda: "exception during rebalance" in java.log(), within_s=20)
            assert is_in_step(member)
            assert dict(member.listener.held) == held
            await asyncio.to_thread(foreign.client.delete, junk)
            await come_to_rest(registry, group, {topic: 6}, members=2, ours=[member], within_s=CRASH_S)
            assert dict(member.listener.held) == held
            assert member.status.disagreements == ()
            assert member.listener.lost_ones == member.listener.drained == []
