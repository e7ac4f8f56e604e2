# SPDX-License-Identifier: Apache-2.0
"""Reads the cluster from ZooKeeper: registered brokers, topics, partitions, leaders.

Reads ``/brokers/ids/*``, and topics and leaders as the cluster's registry layout says, with a bounded number of reads
in parallel.

Nodes that cannot be parsed are left out, with one warning each; the content of other nodes stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from consumerd.aio.parallel import map_bounded
from consumerd.cluster.ignored_nodes import IgnoredNodes
from consumerd.cluster.security_protocol import SecurityProtocol
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.model import BrokerId, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, CLUSTER_ID, broker_path, topic_path
from consumerd.zk.layout_modern import CONTROLLER
from consumerd.zk.port import NotConnected, Stat, ZkClient, list_names
from consumerd.zk.registry_layout import RegistryLayout, TopicNode
from consumerd.zk.znodes import (
    BrokerRegistration,
    MalformedZnode,
    PartitionStateNode,
    find_broker_id,
    parse_cluster_id,
    parse_controller,
)

K = TypeVar("K")
T = TypeVar("T")

_Nodes = Mapping[str, tuple[bytes, Stat] | None]


class ZooKeeperSource:
    """Reads brokers, topics and leaders through a ZooKeeper session.

    Args:
        protocol: Security protocol of the wanted listeners. A broker without such a listener is left out.
        parallel: Largest number of concurrent reads.
        layout: Paths and formats of the cluster's nodes in ZooKeeper.
    """

    def __init__(
        self,
        zk: ZkClient,
        *,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        hooks: Hooks | None = None,
        layout: RegistryLayout,
    ) -> None:
        self._zk = zk
        self._layout = layout
        self._protocol = protocol
        hooks = hooks if hooks is not None else Hooks()
        self._ignored = IgnoredNodes(hooks)

    async def read(self, topics: Collection[str] | None, *, leaders: bool = True) -> ClusterView:
        """Return brokers, topics and leaders as registered in ZooKeeper.

        Each ZooKeeper call is bounded. Raises CoordinationError.

        Args:
            topics: Topics to read; None for all.
            leaders: False to skip the read of each partition's leader.
        """
        if not self._zk.state.connected:
            # do not wait for a server: callers can use Metadata meanwhile
            raise NotConnected("ZooKeeper: not connected")
        ids = [
            broker for name in await list_names(self._zk, BROKER_IDS) if (broker := find_broker_id(name)) is not None
        ]
        names = sorted(await list_names(self._zk, BROKER_TOPICS) if topics is None else topics)
        nodes = await map_bounded([CLUSTER_ID, CONTROLLER, *map(broker_path, ids)], self._zk.find)
        topic_nodes = await map_bounded(names, self._read_topic)
        partitions = [TopicPartition(name, key) for name, node in topic_nodes.items() if node for key in node.replicas]
        states = await map_bounded(partitions, self._read_leader) if leaders else {}
        found = (self._make_broker(broker, nodes) for broker in sorted(ids))
        return ClusterView(
            brokers={broker.id: broker for broker in found if broker is not None},
            topics={name: _make_topic(name, node, states) for name, node in topic_nodes.items() if node is not None},
            cluster_id=self._parse(nodes, CLUSTER_ID, parse_cluster_id),
            controller=self._parse(nodes, CONTROLLER, parse_controller),
        )

    # -- values

    def _make_broker(self, broker: BrokerId, nodes: _Nodes) -> Broker | None:
        path = broker_path(broker)
        registration = self._parse(nodes, path, lambda data: self._layout.parse_broker(broker, data))
        if registration is None:
            return None
        endpoint = registration.find_endpoint(self._protocol)
        if endpoint is None:
            self._ignored.tell(path, self._explain_listeners(registration))
            return None
        return Broker(id=broker, host=endpoint.host, port=endpoint.port, tls=self._protocol.tls, rack=registration.rack)

    def _explain_listeners(self, registration: BrokerRegistration) -> str:
        offered = sorted({one.protocol for one in registration.endpoints})
        known = [SecurityProtocol(one) for one in offered if one in SecurityProtocol.__members__]
        if known:
            advice = f"{_name_settings(self._protocol)} asks for it; {known[0].value} needs {_name_settings(known[0])}"
        else:
            advice = f"the broker needs a listener of {self._protocol.value}"
        return f"no {self._protocol.value} listener, only {', '.join(offered)}; {advice}"

    def _parse(self, nodes: _Nodes, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the parsed content of a node, or None if it is missing or malformed."""
        node = nodes[path]
        if node is None:
            return None
        try:
            return parse(node[0])
        except MalformedZnode as error:
            self._ignored.tell(path, str(error))
            return None

    # -- reads

    async def _read_topic(self, topic: str) -> TopicNode | None:
        """Read a topic; None if it does not exist or is malformed."""
        node = await self._layout.read_topic(self._zk, topic)
        if node is None or node.problem is None:
            return node
        self._ignored.tell(topic_path(topic), node.problem)
        return None

    async def _read_leader(self, partition: TopicPartition) -> PartitionStateNode | None:
        """Read a partition's leader; None if it is unknown."""
        try:
            return await self._layout.read_leader(self._zk, partition)
        except MalformedZnode as error:
            self._ignored.tell(self._layout.leader_path(partition), str(error))
            return None


def _name_settings(protocol: SecurityProtocol) -> str:
    """Return the settings by which listeners of a protocol are used."""
    tls = "cluster.tls.enabled: true" if protocol.tls else "cluster.tls.enabled: false"
    return f"{tls} and {'cluster.sasl' if protocol.sasl else 'no cluster.sasl'}"


def _make_topic(name: str, node: TopicNode, states: Mapping[TopicPartition, PartitionStateNode | None]) -> TopicView:
    partitions = {}
    for key, replicas in node.replicas.items():
        state = states.get(TopicPartition(name, key))
        if state is None:  # assigned, and not created yet
            partitions[key] = PartitionView(leader=None, replicas=replicas)
        else:
            partitions[key] = PartitionView(
                leader=state.leader, leader_epoch=state.leader_epoch, replicas=replicas, isr=state.isr
            )
    return TopicView(name=name, partitions=partitions, incarnation=node.incarnation)
