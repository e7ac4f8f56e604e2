# SPDX-License-Identifier: Apache-2.0
"""Readers of topics' partitions and settings: from ZooKeeper, or from brokers.

ZooKeeper has the settings of a topic in ``/config/topics/T`` since Kafka 0.8.1 (``LogConfig.scala``,
``TopicCommand.scala``). Brokers tell them since 0.11, by DescribeConfigs. Topics of Kafka 0.6 and 0.7 have none: all
settings there are the brokers'.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from consumerd.client.opening import ClusterAccess
from consumerd.client.remedies import advise_right
from consumerd.client.topic_admin import TopicAdmin
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.topic_description import TopicDescription, TopicDescriptions
from consumerd.cluster.view import ClusterSource
from consumerd.errors import BrokerError, UnsupportedVersion
from consumerd.model import Generation
from consumerd.wire.errorcodes import ErrorCode
from consumerd.zk.layout import CLUSTER_ID, topic_settings_path
from consumerd.zk.port import ZkClient
from consumerd.zk.registry_layout import RegistryLayout
from consumerd.zk.znodes import parse_cluster_id, parse_topic_settings


class ZooKeeperDescriptions:
    """Descriptions of the topics of a cluster with ZooKeeper, of any release."""

    def __init__(self, zk: ZkClient, layout: RegistryLayout) -> None:
        self._zk = zk
        self._layout = layout

    async def find_cluster_id(self) -> str | None:
        """Return the id in ``/cluster/id``; None for releases before 0.10.1. Raises CoordinationError."""
        found = await self._zk.find(CLUSTER_ID)
        return None if found is None else parse_cluster_id(found[0])

    async def describe(self, topic: str) -> TopicDescription | None:
        """Return the description of a topic; None if the topic does not exist. Raises CoordinationError."""
        node = await self._layout.read_topic(self._zk, topic)
        if node is None:
            return None
        is_legacy = self._layout.generation is Generation.LEGACY
        found = None if is_legacy else await self._zk.find(topic_settings_path(topic))
        return TopicDescription(
            name=topic,
            partitions=tuple(node.replicas),
            replication_factor=None if is_legacy else max(map(len, node.replicas.values()), default=None),
            settings={} if found is None else parse_topic_settings(found[0]),
        )


class BrokerDescriptions:
    """Descriptions of the topics of a cluster without ZooKeeper.

    Args:
        source: Reads partitions and replicas, by Metadata.
        admin: Reads settings, by DescribeConfigs.
    """

    def __init__(self, source: ClusterSource, admin: TopicAdmin) -> None:
        self._source = source
        self._admin = admin

    async def find_cluster_id(self) -> str | None:
        """Return the id that brokers name; None for releases before 0.10.1. Raises ConnectionLost."""
        return (await self._source.read(())).cluster_id

    async def describe(self, topic: str) -> TopicDescription | None:
        """Return the description of a topic; None if the topic does not exist.

        Raises ConnectionLost.
        """
        view = (await self._source.read({topic})).topics.get(topic)
        if view is None:
            return None
        settings, untold = await self._read_settings(topic)
        return TopicDescription(
            name=topic,
            partitions=tuple(view.partitions),
            replication_factor=max((len(one.replicas) for one in view.partitions.values()), default=None),
            settings=settings,
            untold=untold,
        )

    async def _read_settings(self, topic: str) -> tuple[Mapping[str, str], str | None]:
        """Return a topic's own settings, or why they are not told."""
        try:
            shown = (await self._admin.describe_topics([topic]))[topic]
        except UnsupportedVersion as error:
            return {}, f"{error}; name the cluster's ZooKeeper in cluster.zookeeper, which has them"
        if isinstance(shown, BrokerError):
            is_denied = shown.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            advice = f": {advise_right('DescribeConfigs', topic, self._admin.principal)}" if is_denied else ""
            return {}, f"{shown}{advice}"
        return {name: one.value for name, one in shown.items() if one.is_own and one.value is not None}, None


def make_topic_descriptions(access: ClusterAccess) -> TopicDescriptions:
    """Return the reader of topics' descriptions that fits a cluster."""
    if access.has_zookeeper:
        return ZooKeeperDescriptions(access.zk, access.layout)
    timeout_s = access.cluster.address.request_timeout_s
    source = BrokerSource(access.pool, access.cluster.list_known, random=random.random, timeout_s=timeout_s)
    admin = TopicAdmin(
        access.pool,
        access.directory,
        random=random.random,
        request_timeout_s=timeout_s,
        principal=access.cluster.address.principal,
    )
    return BrokerDescriptions(source, admin)
