# SPDX-License-Identifier: Apache-2.0
"""Reads from ZooKeeper how a cluster and its topics are identified there and by brokers.

Brokers of 2.8 and later keep their cluster id and the topic ids in ZooKeeper. A topic's node has the topic id as its
content, and is itself the topic's identity by the transaction that created it. So one read of the node tells both, and
a topic that is re-created meanwhile cannot be confused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumerd.admin.positions import read_cluster
from consumerd.aio.parallel import map_bounded
from consumerd.client.opening import ClusterAccess
from consumerd.cluster.identities import ClusterIdentities
from consumerd.errors import ConfigError
from consumerd.model import Incarnation
from consumerd.zk.layout import BROKER_TOPICS, CLUSTER_ID, topic_path
from consumerd.zk.port import list_names
from consumerd.zk.znodes import MalformedZnode, parse_cluster_id, parse_topic_id


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundIdentities:
    """Identities of a cluster in ZooKeeper.

    Attributes:
        identities: The cluster, and the topics that have topic ids.
        without_id: Topics that have no topic id, sorted.
    """

    identities: ClusterIdentities
    without_id: Sequence[str]


async def find_identities(access: ClusterAccess) -> FoundIdentities:
    """Read the identities of the cluster and of all its topics.

    Args:
        access: A cluster with ZooKeeper.

    Raises ConfigError if this is no cluster, or if its brokers are too old to have a cluster id and topic ids;
    CoordinationError if ZooKeeper does not answer.
    """
    cluster, zk = await read_cluster(access), access.zk
    node = await zk.find(CLUSTER_ID)
    if node is None:
        raise ConfigError(f"there is no {CLUSTER_ID}: brokers before 0.10.1 have no cluster id, nor topic ids")
    try:
        cluster_id = parse_cluster_id(node[0])
    except MalformedZnode as error:
        raise ConfigError(f"{CLUSTER_ID}: {error}") from error
    names = sorted(await list_names(zk, BROKER_TOPICS))
    nodes = await map_bounded(names, lambda topic: zk.find(topic_path(topic)))
    topics, without_id = {}, []
    for topic, found in nodes.items():
        if found is None:
            continue
        try:
            topic_id = parse_topic_id(found[0])
        except MalformedZnode as error:
            raise ConfigError(f"{topic_path(topic)}: {error}") from error
        if topic_id is None:
            without_id.append(topic)
        else:
            topics[topic, Incarnation.parse_topic(topic_id)] = Incarnation(found[1].czxid)
    if without_id and not topics:
        raise ConfigError(
            f"none of the {len(without_id)} topics has a topic id: brokers of 2.8 and later give them, also to "
            "existing topics, once inter.broker.protocol.version is 2.8 or later"
        )
    identities = ClusterIdentities(cluster=cluster, cluster_id=cluster_id, topics=topics)
    return FoundIdentities(identities=identities, without_id=without_id)
