# SPDX-License-Identifier: Apache-2.0
"""Reads the cluster from ZooKeeper: registered brokers, topics, partitions, leaders.

Reads ``/brokers/ids/*``, ``/brokers/topics/T`` and ``/brokers/topics/T/partitions/P/state`` ("Kafka 0.10
implementation", ZooKeeper Directories), with a bounded number of reads in parallel. A topic's incarnation is the
``czxid`` of its node.

Nodes that cannot be parsed are left out, with one warning each; the content of other nodes stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

import structlog

from consumerd.aio.parallel import map_bounded
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, CLUSTER_ID, broker_path, topic_path
from consumerd.zk.layout_modern import CONTROLLER, partition_state_path
from consumerd.zk.port import NoNode, NotConnected, Stat, ZkClient
from consumerd.zk.znodes import (
    BrokerRegistration,
    MalformedZnode,
    find_broker_id,
    parse_broker,
    parse_cluster_id,
    parse_controller,
    parse_partition_state,
    parse_topic,
)

T = TypeVar("T")

_Nodes = Mapping[str, tuple[bytes, Stat] | None]

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"


class ZooKeeperSource:
    """Reads the cluster through a ZooKeeper session.

    Args:
        protocol: Security protocol of the wanted listeners, PLAINTEXT or SSL. Brokers without one are left out.
        parallel: Largest number of concurrent reads.
    """

    def __init__(
        self, zk: ZkClient, *, protocol: str = PLAINTEXT, parallel: int = 64, hooks: Hooks | None = None
    ) -> None:
        self._zk = zk
        self._protocol = protocol
        self._parallel = parallel
        self._hooks = hooks if hooks is not None else Hooks()
        self._log = structlog.get_logger(__name__)
        self._complaints: set[tuple[str, str]] = set()

    async def read(self, topics: Collection[str] | None, *, leaders: bool = True) -> ClusterView:
        """Read the cluster; without ``leaders``, skip the read per partition for its leader.

        Each ZooKeeper call is bounded. Raises CoordinationError.
        """
        if not self._zk.state.connected:
            # do not wait for a server: callers can use Metadata meanwhile
            raise NotConnected("ZooKeeper: not connected")
        ids = [broker for name in await self._children(BROKER_IDS) if (broker := find_broker_id(name)) is not None]
        names = sorted(await self._children(BROKER_TOPICS) if topics is None else topics)
        nodes = await self._find_all(
            [CLUSTER_ID, CONTROLLER, *map(broker_path, ids), *(topic_path(name) for name in names)]
        )
        assigned = {name: self._parse(nodes, topic_path(name), parse_topic) for name in names}
        paths = [
            partition_state_path(TopicPartition(name, key))
            for name, partitions in assigned.items()
            for key in partitions or ()
        ]
        states = await self._find_all(paths) if leaders else dict.fromkeys(paths)
        found = (self._make_broker(broker, nodes) for broker in sorted(ids))
        return ClusterView(
            brokers={broker.id: broker for broker in found if broker is not None},
            topics={
                name: self._make_topic(name, nodes, partitions, states)
                for name, partitions in assigned.items()
                if partitions is not None
            },
            cluster_id=self._parse(nodes, CLUSTER_ID, parse_cluster_id),
            controller=self._parse(nodes, CONTROLLER, parse_controller),
        )

    # -- values

    def _make_broker(self, broker: BrokerId, nodes: _Nodes) -> Broker | None:
        path = broker_path(broker)
        registration = self._parse(nodes, path, lambda data: parse_broker(broker, data))
        if registration is None:
            return None
        endpoint = registration.find_endpoint(self._protocol)
        if endpoint is None:
            self._complain(path, self._explain_listeners(registration))
            return None
        return Broker(
            id=broker, host=endpoint.host, port=endpoint.port, tls=self._protocol == SSL, rack=registration.rack
        )

    def _explain_listeners(self, registration: BrokerRegistration) -> str:
        offered = {one.protocol for one in registration.endpoints}
        other = SSL if self._protocol == PLAINTEXT else PLAINTEXT
        if other in offered:
            advice = (
                f"cluster.tls.enabled is {'true' if self._protocol == SSL else 'false'}: {other} needs the other value"
            )
        else:
            advice = "SASL is not supported yet: the broker needs a listener of PLAINTEXT or SSL"
        return f"no {self._protocol} listener, only {', '.join(sorted(offered))}; {advice}"

    def _make_topic(
        self, name: str, nodes: _Nodes, assigned: Mapping[PartitionKey, tuple[BrokerId, ...]], states: _Nodes
    ) -> TopicView:
        node = nodes[topic_path(name)]
        assert node is not None, "it was parsed"
        partitions = {}
        for key, replicas in assigned.items():
            state = self._parse(states, partition_state_path(TopicPartition(name, key)), parse_partition_state)
            if state is None:  # assigned, and not created yet
                partitions[key] = PartitionView(leader=None, replicas=replicas)
            else:
                partitions[key] = PartitionView(
                    leader=state.leader, leader_epoch=state.leader_epoch, replicas=replicas, isr=state.isr
                )
        return TopicView(name=name, partitions=partitions, incarnation=Incarnation(node[1].czxid))

    def _parse(self, nodes: _Nodes, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the parsed content of a node, or None if it is missing or malformed."""
        node = nodes[path]
        if node is None:
            return None
        try:
            return parse(node[0])
        except MalformedZnode as error:
            self._complain(path, str(error))
            return None

    def _complain(self, path: str, what: str) -> None:
        if (path, what) not in self._complaints:
            self._complaints.add((path, what))
            self._log.warning("znode_ignored", path=path, reason=what)
            self._hooks.trouble(Trouble.ZNODE_IGNORED, f"{path}: {what}")

    # -- reads

    async def _children(self, path: str) -> list[str]:
        try:
            return (await self._zk.children(path))[0]
        except NoNode:
            return []  # a cluster that has never had a broker, or an unused chroot

    async def _find_all(self, paths: Iterable[str]) -> _Nodes:
        """Read nodes in parallel; the first failure ends all. Raises CoordinationError."""
        return await map_bounded(paths, self._zk.find, in_flight=self._parallel)
