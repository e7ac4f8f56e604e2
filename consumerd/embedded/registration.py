# SPDX-License-Identifier: Apache-2.0
"""The embedded broker in ZooKeeper: its registration, and its role as controller.

Ephemeral nodes live in one ZooKeeper session. In a new session (``epoch``) they are created again, and the controller
is elected again. A node of an earlier session (of a killed broker, or of a session that the ensemble has not ended yet)
is waited for, as long as a session can linger. If it still exists then, it belongs to another living process:
:class:`BrokerIdTaken`. If another broker is the controller, it stays so, and is succeeded when its node goes.

Sources: Kafka's ``ZkUtils.registerBrokerInZk``, ``KafkaZkClient.scala``, ``ZookeeperLeaderElector.scala`` and
``KafkaController.scala`` (0.8.2 to 1.1); KIP-78 for the cluster id.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

import structlog

from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.embedded.znodes import (
    CONTROLLER_EPOCH,
    FIRST_CONTROLLER_EPOCH,
    PRODUCER_ID_BLOCK,
    BrokerAddress,
    encode_broker,
    encode_cluster_id,
    encode_controller,
    encode_producer_ids,
    has_cluster_id,
    has_producer_ids,
    next_epoch,
    next_producer_ids,
    parse_controller_epoch,
    persistent_paths,
)
from consumerd.errors import ConsumerdError, CoordinationError, SessionLost
from consumerd.model import SessionEpoch
from consumerd.net.versions import Release
from consumerd.zk.layout import CLUSTER_ID, broker_path
from consumerd.zk.layout_modern import CONTROLLER
from consumerd.zk.port import BadVersion, NodeExists, NoNode, WatchKind, ZkClient
from consumerd.zk.znodes import MalformedZnode, parse_broker, parse_cluster_id

_RETRY_S: Final = 1.0
_LINGERING: Final = 2.0
"""Session timeouts for which a node of an ended session can remain.

The ensemble counts one timeout from the session's last request, and checks in steps of a tick.
"""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BrokerIdTaken(ConsumerdError):
    """Another process is registered with our broker id; the message has its address."""


class BrokerNode:
    """Registers a broker on entering, and keeps it registered until left.

    To be entered when the broker listens. If another process takes the broker's id, the block is cancelled and raises
    an ExceptionGroup with BrokerIdTaken.

    Args:
        random_bytes: Source of the id of a cluster that has none yet.
    """

    def __init__(
        self,
        zk: ZkClient,
        *,
        address: BrokerAddress,
        release: Release,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._zk = zk
        self._address = address
        self._release = release
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._cluster_id: str | None = None
        self._is_controller = False
        self._changed = asyncio.Event()
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Register. Raises BrokerIdTaken, CoordinationError.

        Bounded by twice the session timeout, and by the session's calls.
        """
        epoch = await self._register()
        await self._running.enter_async_context(alongside(self._keep(epoch), name="registration"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the ephemeral nodes, if ZooKeeper is connected.

        Otherwise they go with the session.
        """
        try:
            await self._running.__aexit__(kind, error, traceback)
        finally:
            if self._zk.state.connected:
                await self._unregister()

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id; None for releases without one."""
        return self._cluster_id

    @property
    def is_controller(self) -> bool:
        """True if this broker is the controller."""
        return self._is_controller

    # -- registering

    async def _register(self) -> SessionEpoch:
        """Create all nodes that a broker creates at its start.

        Returns the epoch of the session that owns them.
        """
        while True:
            await self._wait_connected()
            epoch = self._zk.state.epoch
            try:
                for path in persistent_paths(self._release):
                    await self._zk.ensure_path(path)
                if has_cluster_id(self._release):
                    self._cluster_id = await self._agree_on_cluster_id()
                await self._create_broker_node(epoch)
                await self._elect(epoch)
                if has_producer_ids(self._release):
                    await self._claim_producer_ids()
            except SessionLost:
                continue  # the session was replaced meanwhile: register in the new one
            log.info("broker_registered", broker=self._address.broker_id, controller=self._is_controller)
            return epoch

    async def _create_broker_node(self, epoch: SessionEpoch) -> None:
        path = broker_path(self._address.broker_id)
        data = encode_broker(self._address, self._release, timestamp_ms=self._now_ms())
        try:
            async with timeout(_LINGERING * self._zk.state.timeout_s):
                while not await self._create_ephemeral(path, data, epoch):
                    log.info("registration_lingers", path=path)
                    await self._wait_gone(path)
        except TimeoutError:
            raise BrokerIdTaken(
                f"broker {self._address.broker_id} is registered already, by a process at {await self._describe(path)}"
                ": stop it, or give this broker another id"
            ) from None

    async def _describe(self, path: str) -> str:
        try:
            (data, _) = await self._zk.get(path)
            endpoint = parse_broker(self._address.broker_id, data).endpoints[0]
        except (CoordinationError, MalformedZnode):
            return "an address that cannot be read"
        return f"{endpoint.host}:{endpoint.port}"

    async def _create_ephemeral(self, path: str, data: bytes, epoch: SessionEpoch) -> bool:
        """Create a node of this session; return False while another session owns it."""
        try:
            await self._zk.create(path, data, ephemeral=True, epoch=epoch)
        except NodeExists:
            stat = await self._zk.exists(path)
            # it may be ours, from an earlier try whose reply was lost
            return stat is not None and stat.ephemeral_owner == self._zk.state.session_id
        return True

    async def _wait_gone(self, path: str) -> None:
        """Wait until a node is deleted. Bounded by the caller."""
        changed = asyncio.Event()
        watch = self._zk.watch(path, WatchKind.DATA, changed.set)
        try:
            while await self._zk.exists(path) is not None:
                with contextlib.suppress(TimeoutError):
                    async with timeout(_RETRY_S):
                        await changed.wait()
                changed.clear()
        finally:
            watch.close()

    async def _elect(self, epoch: SessionEpoch) -> None:
        """Become the controller if there is none: first the node, then the next epoch."""
        data = encode_controller(self._address.broker_id, timestamp_ms=self._now_ms())
        already = self._is_controller
        self._is_controller = await self._create_ephemeral(CONTROLLER, data, epoch)
        if not self._is_controller or already:
            return
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
        """Register again in each new session, and succeed a controller that goes."""
        watch = self._zk.watch(CONTROLLER, WatchKind.DATA, self._changed.set)
        try:
            while True:
                await self._wait_change(epoch)
                try:
                    await self._wait_connected()
                    if self._zk.state.epoch != epoch:
                        log.warning("session_replaced", broker=self._address.broker_id)
                        self._is_controller = False
                        epoch = await self._register()
                    else:
                        await self._elect(epoch)
                except CoordinationError as error:
                    log.warning("registration_failed", error=str(error))
                    await asyncio.sleep(_RETRY_S)
                    self._changed.set()
        finally:
            watch.close()

    async def _wait_change(self, epoch: SessionEpoch) -> None:
        """Wait for a new session, or a change of the controller's node. Unbounded."""
        async with asyncio.TaskGroup() as group:
            session = group.create_task(self._wait_other_session(epoch))
            controller = group.create_task(self._changed.wait())
            await asyncio.wait([session, controller], return_when=asyncio.FIRST_COMPLETED)
            session.cancel()
            controller.cancel()
        self._changed.clear()

    async def _wait_other_session(self, epoch: SessionEpoch) -> None:
        state = self._zk.state
        while state.epoch == epoch:
            state = await self._zk.wait_state(state)

    async def _wait_connected(self) -> None:
        """Wait for a connection. Unbounded: the broker can do nothing without."""
        state = self._zk.state
        while not state.connected:
            state = await self._zk.wait_state(state)

    async def _unregister(self) -> None:
        for path in (broker_path(self._address.broker_id), CONTROLLER):
            with contextlib.suppress(CoordinationError):
                stat = await self._zk.exists(path)
                if stat is not None and stat.ephemeral_owner == self._zk.state.session_id:
                    await self._zk.delete(path, epoch=self._zk.state.epoch)
