# SPDX-License-Identifier: Apache-2.0
"""Targets that refuse a mirror: each error says what to do, what it says helps, and nothing is half done before."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from consumerd.errors import ConfigError, RetriableSinkError, SinkError
from consumerd.sinks.kafka.writer import KafkaWriter
from tests.interop.conftest import ClusterFactory, require, start_secured
from tests.support.kafka import Cluster
from tests.support.mirroring import MirrorRig, numbers, open_mirror, read_committed
from tests.support.secure_kafka import SecureCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.timeout(300), pytest.mark.drawn(parts=5)]

RELEASE: Final = "1.1.1"
TOO_OLD: Final = "0.10.2.2"
POSITIONS: Final = "_consumerd_mirror"
TRANSACTIONAL_ID: Final = "consumerd.mirror.2-1700000000000.orders.0"
_ADVICE: Final = re.compile(r"allow `(\w+)`(?: and `(\w+)`)? on `(\w+):([^`]+)`")
_KINDS: Final = {
    "Topic": ResourceType.TOPIC,
    "Cluster": ResourceType.BROKER,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[SecureCluster]:
    """Brokers with an authorizer, where only we ourselves have all rights."""
    require(RELEASE)
    properties = {"authorizer_class_name": "kafka.security.auth.SimpleAclAuthorizer"}
    with closing(start_secured(RELEASE, None, **properties)) as cluster:
        cluster.create_topic("orders")
        yield cluster


def login(cluster: SecureCluster) -> dict[str, Any]:
    """Return the sink's settings with which it is alice."""
    return {
        "mechanism": "PLAIN",
        "username": "alice",
        "password_file": str(cluster.password_file("alice")),
        "allow_plaintext_password": True,
    }


def allow(cluster: SecureCluster, right: str, kind: str, name: str) -> None:
    """Give alice a right."""
    operation = AclOperation[re.sub(r"(?<=.)([A-Z])", r"_\1", right).upper()]
    rule = AclBinding(
        _KINDS[kind], name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW
    )
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for done in client.create_acls([rule]).values():
        done.result(30)


async def mirror(rig: MirrorRig) -> KafkaWriter:
    """Check the target as a daemon does when it starts, and mirror ten records."""
    await rig.sink.check()
    writer = await rig.open()
    await writer.write(numbers(writer.resume_position or 0, 10))
    await writer.flush()
    return writer


async def try_to_mirror(cluster: SecureCluster) -> str | None:
    """Return what refuses it; None if nothing does."""
    options = {"sasl": login(cluster), "request_timeout_ms": 8000}
    async with open_mirror(cluster.sasl_bootstrap(tls=False), **options) as rig:
        try:
            await mirror(rig)
        except (SinkError, ConfigError) as error:
            return str(error)
    return None


async def test_each_missing_right_is_told_and_giving_what_is_told_is_enough(guarded: SecureCluster) -> None:
    """Step by step, from no right at all: the operator needs no knowledge of what a mirror does."""
    given: list[tuple[str, str, str]] = []
    while (refusal := await try_to_mirror(guarded)) is not None:
        told = _ADVICE.findall(refusal)
        rights = [(right, kind, name) for *pair, kind, name in told for right in pair if right]
        assert rights, f"nothing is told after {given}: {refusal}"
        assert not set(rights) & set(given), f"told again after {given}: {refusal}"
        for right in rights:
            await asyncio.to_thread(allow, guarded, *right)
        given += rights
    assert {name for _, kind, name in given if kind == "TransactionalId"} == {TRANSACTIONAL_ID}
    assert 10 == len(await asyncio.to_thread(read_committed, guarded.bootstrap, "orders"))


async def test_target_without_transactions_is_refused_and_nothing_is_created(
    own_cluster: ClusterFactory,
) -> None:
    """Kafka 0.10 cannot be a target: that is a fault of the configuration, known before anything is written."""
    cluster = await asyncio.to_thread(own_cluster, TOO_OLD)
    await asyncio.to_thread(cluster.create_topic, "orders")
    async with open_mirror(cluster.bootstrap) as rig:
        with pytest.raises(ConfigError, match=r"transactions.*0\.11"):
            await rig.sink.check()
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "looks"})
    topics = await asyncio.to_thread(lambda: consumer.list_topics(timeout=30).topics)
    assert POSITIONS not in topics
    consumer.close()


async def test_transaction_that_times_out_while_we_stall_is_begun_again(own_cluster: ClusterFactory) -> None:
    """The coordinator aborts it and fences its producer; the claim still stands, so the same writer goes on."""
    cluster = await asyncio.to_thread(own_cluster, RELEASE)
    await asyncio.to_thread(cluster.create_topic, "orders")
    async with open_mirror(cluster.bootstrap, transaction_timeout_ms=1000, flush_ms=100, batch_bytes=100) as rig:
        await rig.sink.check()
        writer = await rig.open()
        await writer.write(numbers(0, 10))
        await asyncio.to_thread(wait_aborted, cluster.bootstrap)
        with pytest.raises(RetriableSinkError, match="transaction_timeout_ms") as caught:
            await writer.flush()
        assert 0 == caught.value.resume_position
        await writer.write(numbers(0, 20))
        assert 20 == await writer.flush()
    seen = await asyncio.to_thread(read_committed, cluster.bootstrap, "orders")
    assert list(range(20)) == [int(one.value or b"") for one in seen]


def wait_aborted(bootstrap: str) -> None:
    """Wait until the last stable offset has passed the end of the aborted records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks", "isolation.level": "read_committed"})
    other = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks", "isolation.level": "read_uncommitted"})
    partition = TopicPartition("orders", 0)

    def is_aborted() -> bool:
        stable, high = (one.get_watermark_offsets(partition, timeout=10)[1] for one in (consumer, other))
        return bool(0 < stable == high)

    try:
        wait_until(is_aborted, "the transaction is aborted", 60, 0.2)
    finally:
        consumer.close()
        other.close()


async def test_topics_deleted_in_the_target_are_told_and_mirrored_into_again(own_cluster: ClusterFactory) -> None:
    """The copy: its new topic gets what comes, with a new map. The positions: only a restart may do without them."""
    cluster = await asyncio.to_thread(own_cluster, RELEASE)
    for topic in ("orders", "others"):
        await asyncio.to_thread(cluster.create_topic, topic)
    async with open_mirror(cluster.bootstrap, request_timeout_ms=3000) as rig:
        writer = await mirror(rig)
        await asyncio.to_thread(delete, cluster, "orders")
        await writer.write(numbers(10, 20))
        with pytest.raises(RetriableSinkError, match=r"create orders"):
            await writer.flush()
        await writer.write(numbers(10, 20))
        with pytest.raises(RetriableSinkError, match=r"the target has no topic orders.*create it"):
            await writer.flush()
        await asyncio.to_thread(cluster.create_topic, "orders")
        with pytest.raises(RetriableSinkError) as caught:
            await writer.flush()
        assert 10 == caught.value.resume_position
        await writer.write(numbers(10, 20))
        assert 20 == await writer.flush()
        state = await rig.find()
        assert state is not None
        assert list(range(10)) == [state.offset_map().translate(source).offset for source in range(10, 20)]

        await asyncio.to_thread(delete, cluster, POSITIONS)
        await writer.write(numbers(20, 30))
        with pytest.raises(RetriableSinkError, match=f"create {POSITIONS}"):
            await writer.flush()
    async with open_mirror(cluster.bootstrap, request_timeout_ms=3000) as rig:
        await rig.sink.check()
        writer = await rig.open()
        assert writer.resume_position is None


def delete(cluster: Cluster, topic: str) -> None:
    """Delete a topic, and wait until no broker has it."""
    cluster.delete_topic(topic)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "looks"})
    try:
        wait_until(lambda: topic not in consumer.list_topics(timeout=30).topics, f"{topic} is gone", 60, 0.2)
    finally:
        consumer.close()
