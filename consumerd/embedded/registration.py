# SPDX-License-Identifier: Apache-2.0
"""The embedded broker in ZooKeeper: its registration, and its role as controller.

In a new session (``registered_node``) the controller is elected again. If another broker is the controller, it stays
controller. This broker takes over when that broker's node disappears.

Sources: Kafka's ``ZkUtils.registerBrokerInZk``, ``KafkaZkClient.scala``, ``ZookeeperLeaderElector.scala`` and
``KafkaController.scala`` (0.8.2 to 1.1); KIP-78 for the cluster id.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable

import structlog

from consumerd.embedded.nodes import Nodes
from consumerd.embedded.registered_node import RegisteredNode
from consumerd.embedded.znodes import (
    CONTROLLER_EPOCH,
    FIRST_CONTROLLER_EPOCH,
    PRODUCER_ID_BLOCK,
    BrokerAddress,
    encode_broker,
    encode_cluster_id,
    encode_controller,
    encode_producer_ids,
    next_epoch,
    next_producer_ids,
    parse_controller_epoch,
    persistent_paths,
)
from consumerd.model import SessionEpoch
from consumerd.net.versions import Release
from consumerd.zk.layout import CLUSTER_ID, broker_path
from consumerd.zk.layout_modern import CONTROLLER
from consumerd.zk.port import BadVersion, NodeExists, NoNode, WatchKind, ZkClient
from consumerd.zk.znodes import parse_broker, parse_cluster_id

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BrokerNode(RegisteredNode):
    """Registration of a broker in ZooKeeper, while an ``async with`` block runs.

    Args:
        random_bytes: Returns random bytes, for the id of a cluster that has none yet.
        nodes: Is told when this broker becomes the controller, or is the controller no longer.
    """

    def __init__(
        self,
        zk: ZkClient,
        *,
        address: BrokerAddress,
        release: Release,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        nodes: Nodes | None = None,
    ) -> None:
        super().__init__(zk, address)
        self._nodes = nodes
        self._release = release
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self.cluster_id: str | None = None
        """The cluster's id; None for releases without one."""
        self.is_controller = False
        """True if this broker is the controller, and has stored its epoch."""

    def abandon(self) -> None:
        """Leave the broker's ephemeral nodes behind at the end, as a kill does.

        ZooKeeper deletes them when the session has expired.
        """
        super().abandon()
        self._note_controller(elected=False)

    # -- registering

    async def _create(self, epoch: SessionEpoch) -> None:
        """Create all nodes that a broker creates at its start."""
        for path in persistent_paths(self._release):
            await self._zk.ensure_path(path)
        if self._release >= (0, 10, 1):  # KIP-78
            self.cluster_id = await self._agree_on_cluster_id()
        await self._ephemeral.create_broker_node(self._address, self._encode(), epoch, parse_broker)
        await self._update(epoch)
        if self._release >= (0, 11):  # KIP-98: the release assigns producer ids
            await self._claim_producer_ids()
        log.info("broker_registered", broker=self._address.broker_id, controller=self.is_controller)

    def _encode(self) -> bytes:
        return encode_broker(self._address, self._release, timestamp_ms=self._now_ms())

    async def _update(self, epoch: SessionEpoch) -> None:
        """Become the controller if there is none: create the node, then store the next epoch."""
        data = encode_controller(self._address.broker_id, timestamp_ms=self._now_ms())
        elected = await self._ephemeral.create(CONTROLLER, data, epoch)
        if elected and not self.is_controller:
            await self._store_next_epoch()
        self.is_controller = elected
        self._note_controller(elected=elected)

    def _note_controller(self, *, elected: bool) -> None:
        if self._nodes is not None:
            self._nodes.set_controller(self._address.broker_id, elected=elected)

    async def _store_next_epoch(self) -> None:
        """Store the next controller epoch; repeat it if another broker changes the node meanwhile."""
        while True:
            try:
                node = await self._zk.find(CONTROLLER_EPOCH)
                if node is None:
                    await self._zk.create(CONTROLLER_EPOCH, b"%d" % FIRST_CONTROLLER_EPOCH)
                else:
                    following = next_epoch(parse_controller_epoch(node[0]))
                    await self._zk.set(CONTROLLER_EPOCH, b"%d" % following, version=node[1].version)
            except (NodeExists, BadVersion, NoNode):
                continue
            return

    async def _agree_on_cluster_id(self) -> str:
        """Return the cluster's id, created by its first broker.

        It has 16 random bytes in URL-safe base 64.
        """
        while (node := await self._zk.find(CLUSTER_ID)) is None:
            chosen = base64.urlsafe_b64encode(self._random_bytes(16)).rstrip(b"=").decode()
            await self._zk.ensure_path(CLUSTER_ID, encode_cluster_id(chosen))
        return parse_cluster_id(node[0])

    async def _claim_producer_ids(self) -> None:
        """Claim the next block of producer ids, as brokers do at their start."""
        while True:
            await self._zk.ensure_path(PRODUCER_ID_BLOCK)
            (data, stat) = await self._zk.get(PRODUCER_ID_BLOCK)
            block = encode_producer_ids(self._address.broker_id, next_producer_ids(data))
            with contextlib.suppress(BadVersion):
                await self._zk.set(PRODUCER_ID_BLOCK, block, version=stat.version)
                return

    # -- keeping it

    async def _keep(self, epoch: SessionEpoch) -> None:
        """Also become controller when the controller's node disappears."""
        watch = self._zk.watch(CONTROLLER, WatchKind.DATA, self._changed.set)
        try:
            await super()._keep(epoch)
        finally:
            watch.close()

    def _forget_session(self) -> None:
        self.is_controller = False
        self._note_controller(elected=False)

    def _list_own(self) -> tuple[str, ...]:
        return broker_path(self._address.broker_id), CONTROLLER

    async def _unregister(self) -> None:
        self._note_controller(elected=False)
        await super()._unregister()
