# SPDX-License-Identifier: Apache-2.0
"""Ephemeral nodes by which a broker registers in ZooKeeper.

A node lives in one session. A node of the same name may be left from an earlier session: of a killed broker, or of a
session that the ensemble has not ended yet. It is waited for, as long as a session can linger. If it still exists then,
it belongs to another living process.

Source: Kafka's ``ZkUtils.registerBrokerInZk`` and ``KafkaZkClient.scala``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from consumerd.aio.timeouts import timeout, wait_set
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import ConsumerdError, CoordinationError
from consumerd.model import BrokerId, SessionEpoch
from consumerd.zk.layout import broker_path
from consumerd.zk.port import NodeExists, SessionState, WatchKind, ZkClient
from consumerd.zk.znodes import BrokerRegistration, MalformedZnode

RETRY_S: Final = 1.0
"""Interval, in seconds, at which a failed registration is tried again, and a lingering node is looked up."""
_LINGERING: Final = 2.0
"""Session timeouts for which a node of an ended session can remain.

The ensemble counts one timeout from the session's last request, and checks in steps of a tick.
"""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BrokerIdTaken(ConsumerdError):
    """Another process is registered with this broker's id; the message has its address."""


class EphemeralNodes:
    """Creates and deletes the ephemeral nodes of one broker, in the sessions of ``zk``."""

    def __init__(self, zk: ZkClient) -> None:
        self._zk = zk

    async def wait_state(self, reached: Callable[[SessionState], bool]) -> None:
        """Wait for a state of the session.

        There is no timeout: the broker can do nothing without ZooKeeper.
        """
        state = self._zk.state
        while not reached(state):
            state = await self._zk.wait_state(state)

    async def create_broker_node(
        self,
        address: BrokerAddress,
        data: bytes,
        epoch: SessionEpoch,
        parse: Callable[[BrokerId, bytes], BrokerRegistration],
    ) -> None:
        """Create ``/brokers/ids/N``, waiting for an earlier one for twice the session timeout at most.

        Raises BrokerIdTaken, CoordinationError.

        Args:
            data: The node's content.
            epoch: The session that is to own it.
            parse: Reads the content of another broker's node, for the message of an error.
        """
        path = broker_path(address.broker_id)
        try:
            await self.create_when_free(path, data, epoch)
        except TimeoutError:
            raise BrokerIdTaken(
                f"broker {address.broker_id} is registered already, by a process at "
                f"{await self._describe(address.broker_id, parse)}: stop it, or give this broker another id"
            ) from None

    async def create_when_free(self, path: str, data: bytes, epoch: SessionEpoch) -> None:
        """Create a node, once another session's node of this name is gone.

        Raises TimeoutError if that is still there after twice the session timeout; CoordinationError.
        """
        async with timeout(_LINGERING * self._zk.state.timeout_s):
            while not await self.create(path, data, epoch):
                log.info("registration_lingers", path=path)
                await self._wait_gone(path)

    async def create(self, path: str, data: bytes, epoch: SessionEpoch) -> bool:
        """Create a node of this session; return False while another session owns it.

        Raises CoordinationError (SessionLost if the session is no longer that of ``epoch``).
        """
        try:
            await self._zk.create(path, data, ephemeral=True, epoch=epoch)
        except NodeExists:
            stat = await self._zk.exists(path)
            # it may be ours, from an earlier try whose reply was lost
            return stat is not None and stat.ephemeral_owner == self._zk.state.session_id
        return True

    async def delete_own(self, path: str) -> None:
        """Delete a node if this session owns it.

        Failures are ignored: the node ends with the session.
        """
        with contextlib.suppress(CoordinationError):
            stat = await self._zk.exists(path)
            if stat is not None and stat.ephemeral_owner == self._zk.state.session_id:
                await self._zk.delete(path, epoch=self._zk.state.epoch)

    async def _describe(self, broker: BrokerId, parse: Callable[[BrokerId, bytes], BrokerRegistration]) -> str:
        try:
            (data, _) = await self._zk.get(broker_path(broker))
            endpoint = parse(broker, data).endpoints[0]
        except (CoordinationError, MalformedZnode):
            return "an address that cannot be read"
        return f"{endpoint.host}:{endpoint.port}"

    async def _wait_gone(self, path: str) -> None:
        """Wait until a node is deleted. The caller sets a timeout."""
        changed = asyncio.Event()
        watch = self._zk.watch(path, WatchKind.DATA, changed.set)
        try:
            while await self._zk.exists(path) is not None:
                await wait_set(changed, RETRY_S)
                changed.clear()
        finally:
            watch.close()
