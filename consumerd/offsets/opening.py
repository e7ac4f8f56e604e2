# SPDX-License-Identifier: Apache-2.0
"""Functions that open a group's stored positions, to read or to commit them.

All parts of consumerd obtain readers and stores of positions here: commands, the doctor and Spark to read them, the
daemon to commit them. A further kind of store is added here and in ``positions``.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from consumerd.client.coordinator import CoordinatorFinder
from consumerd.client.group_coordinators import NO_GROUP, GroupDetails, describe_group, read_description
from consumerd.cluster.view import Broker
from consumerd.errors import ConnectionLost
from consumerd.model import TopicPartition
from consumerd.offsets.dual import DualOffsetStore
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.kafka import OFFSETS_TOPIC, KafkaPositions
from consumerd.offsets.kafka_obstacles import find_coordinated_members, find_old_brokers
from consumerd.offsets.kafka_store import KafkaOffsetStore, MemberGeneration
from consumerd.offsets.kafka_writer import KafkaOffsetWriter
from consumerd.offsets.store import MemberRequests, OffsetStore, Place
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.telemetry.hooks import Hooks

if TYPE_CHECKING:
    from consumerd.access.opening import ClusterConnections

_PATIENCE_S: Final = 3.0
"""Time limit for the group's coordinator, in seconds. A command shows positions in ZooKeeper without it."""


def open_positions(
    cluster: ClusterConnections,
    group: str,
    *,
    patience_s: float = _PATIENCE_S,
    coordinator: Broker | None = None,
    every_partition: Collection[TopicPartition] | None = None,
) -> GroupPositions:
    """Return a reader of a group's stored positions, for use while the cluster is open.

    Brokers are asked only if the cluster has the topic ``__consumer_offsets``. Without ZooKeeper, only positions in
    Kafka are read.

    Args:
        patience_s: Time limit of a read of positions in Kafka, in seconds.
        coordinator: The group's coordinator, if the caller knows it. Otherwise, or if the coordinator has moved, the
            reader looks for it.
        every_partition: All partitions of the cluster, if the caller knows them; None to read them when they are
            needed.
    """
    finder, request_timeout_s = _make_finder(cluster, group, patience_s, coordinator)
    topics = cluster.topics
    kafka = KafkaPositions(topics, finder, group, request_timeout_s=request_timeout_s, every_partition=every_partition)
    return GroupPositions(cluster.session, group, kafka, topics=topics, principal=cluster.address.principal)


def open_store(
    cluster: ClusterConnections,
    group: str,
    places: Collection[Place],
    *,
    requests: MemberRequests,
    hooks: Hooks,
    denied: Callable[[str], None],
    generation: MemberGeneration | None = None,
) -> OffsetStore:
    """Return the store in which a member commits its positions.

    It can be used while the cluster is open.

    Args:
        places: The stores of the positions: ZooKeeper, Kafka, or both.
        requests: Operators' requests, which commits carry out.
        denied: Called with each topic for which commits are refused for lack of permission.
        generation: The generation of a member that brokers coordinate, which commits to Kafka only; None if ZooKeeper
            coordinates the group.
    """
    if Place.KAFKA not in places:
        return ZooKeeperOffsetStore(cluster.zk, group, hooks=hooks, denied=denied)
    kafka = open_kafka_store(cluster, group, requests=requests, denied=denied, generation=generation)
    if Place.ZOOKEEPER not in places:
        return kafka
    zookeeper = ZooKeeperOffsetStore(cluster.zk, group, hooks=hooks, denied=denied)
    return DualOffsetStore(zookeeper, kafka, cluster.topics.find_incarnations)


def open_kafka_store(
    cluster: ClusterConnections,
    group: str,
    *,
    requests: MemberRequests,
    denied: Callable[[str], None],
    generation: MemberGeneration | None = None,
) -> KafkaOffsetStore:
    """Return the store of a member with positions in Kafka.

    It can be used while the cluster is open. Without ZooKeeper it keeps the truncations of logs, too.

    Args:
        denied: Called with each topic of which a position could not be written for an ACL.
        generation: That of a member that brokers coordinate; None if ZooKeeper coordinates.
    """
    # a claim may be used until half a session timeout has passed since the last answer. A request that is sent
    # then, and given up after the other half, is answered or given up before another member can own the partition
    coordinator, request_timeout_s = _make_finder(cluster, group, cluster.address.session_timeout_s / 2)
    return KafkaOffsetStore(
        cluster.topics,
        coordinator,
        KafkaPositions(
            cluster.topics,
            coordinator,
            group,
            request_timeout_s=request_timeout_s,
            keeps_failure=False,
            is_kept=generation is not None,
        ),
        group,
        request_timeout_s=request_timeout_s,
        new_id=_new_id,
        requests=requests,
        denied=denied,
        generation=generation,
        keeps_truncations=cluster.session is None,
        principal=cluster.address.principal,
    )


def open_kafka_writer(cluster: ClusterConnections, group: str, *, patience_s: float = _PATIENCE_S) -> KafkaOffsetWriter:
    """Return a writer that sets positions in Kafka for an operator.

    It can be used while the cluster is open.

    Args:
        patience_s: Time limit of each write, in seconds.
    """
    coordinator, request_timeout_s = _make_finder(cluster, group, patience_s)
    positions = None
    if cluster.session is None:
        positions = KafkaPositions(cluster.topics, coordinator, group, request_timeout_s=request_timeout_s)
    return KafkaOffsetWriter(
        coordinator,
        group,
        request_timeout_s=request_timeout_s,
        new_id=_new_id,
        positions=positions,
        principal=cluster.address.principal,
    )


async def find_kafka_obstacle(cluster: ClusterConnections, group: str, *, patience_s: float = _PATIENCE_S) -> str:
    """Return the reason why Kafka cannot keep the positions of a ZooKeeper-coordinated group.

    Empty if no reason is known. Raises CoordinationError.

    Args:
        patience_s: Time limit for the brokers' answers, in seconds.
    """
    try:
        old = await find_old_brokers(cluster.pool, await cluster.find_registered())
    except ConnectionLost as error:
        return str(error)
    positions = open_positions(cluster, group, patience_s=patience_s)
    if old or not await positions.may_be_in_kafka():
        return old
    coordinator, request_timeout_s = _make_finder(cluster, group, patience_s)
    return await find_coordinated_members(coordinator, group, timeout_s=request_timeout_s)


async def read_coordinated_group(
    cluster: ClusterConnections, group: str, *, patience_s: float = _PATIENCE_S
) -> GroupDetails:
    """Return the description of a group that brokers coordinate, with its members.

    No broker is asked without the topic ``__consumer_offsets``, because the request would create it.

    Args:
        patience_s: Time limit for the coordinator, in seconds.

    Raises BrokerError, ConnectionLost, ProtocolError, CoordinationError.
    """
    coordinator, request_timeout_s = _make_finder(cluster, group, patience_s)
    if (await cluster.topics.find_incarnations((OFFSETS_TOPIC,)))[OFFSETS_TOPIC] is None:
        return NO_GROUP
    found = await coordinator.ask(lambda one: describe_group(one, group, timeout_s=request_timeout_s))
    return read_description(found, group, None, cluster.address.principal)


def _new_id() -> str:
    return secrets.token_hex(4)


def _make_finder(
    cluster: ClusterConnections, group: str, patience_s: float, found: Broker | None = None
) -> tuple[CoordinatorFinder, float]:
    """Return a finder of the group's coordinator, and the request timeout in seconds."""
    # so that a broker that does not answer leaves time for another
    request_timeout_s = min(cluster.address.request_timeout_s, patience_s / 2)
    finder = CoordinatorFinder(
        cluster.pool,
        group,
        cluster.find_brokers,
        random=random.random,
        patience_s=patience_s,
        request_timeout_s=request_timeout_s,
        found=found,
    )
    return finder, request_timeout_s
