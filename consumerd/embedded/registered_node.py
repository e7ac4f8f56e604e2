# SPDX-License-Identifier: Apache-2.0
"""Registration of a broker in ZooKeeper, for brokers of both generations.

The nodes are ephemeral (``ephemeral_nodes``) and live in one ZooKeeper session. In a new session (``epoch``) all of
them are created again. ``registration`` and ``legacy.registration`` know which nodes there are.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import structlog

from consumerd.aio.tasks import alongside
from consumerd.embedded.ephemeral_nodes import RETRY_S, EphemeralNodes
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import CoordinationError, SessionLost
from consumerd.model import SessionEpoch
from consumerd.zk.port import ZkClient

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class RegisteredNode(ABC):
    """Registration of a broker, while an ``async with`` block runs.

    The block must be entered when the broker listens already. If another process takes the broker's id, the block is
    cancelled and raises an ExceptionGroup with BrokerIdTaken.
    """

    def __init__(self, zk: ZkClient, address: BrokerAddress) -> None:
        self._zk = zk
        self._ephemeral = EphemeralNodes(zk)
        self._address = address
        self._changed = asyncio.Event()
        """Set when :meth:`_update` has something to do."""
        self._abandoned = False
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Register the broker in ZooKeeper. Raises BrokerIdTaken, CoordinationError.

        It waits for an earlier registration of this broker id for twice the session timeout at most.
        """
        epoch = await self._register()
        self._running.push_async_callback(self._unregister)
        await self._running.enter_async_context(alongside(self._keep(epoch), name="registration"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the broker's ephemeral nodes, if ZooKeeper is connected.

        Otherwise they end with the session.
        """
        await self._running.__aexit__(kind, error, traceback)

    def abandon(self) -> None:
        """Leave the broker's ephemeral nodes behind at the end, as a kill does.

        ZooKeeper deletes them when the session has expired.
        """
        self._abandoned = True

    # -- the nodes

    @abstractmethod
    async def _create(self, epoch: SessionEpoch) -> None:
        """Create all nodes in a session. Raises BrokerIdTaken, CoordinationError (SessionLost if it has ended)."""

    @abstractmethod
    async def _update(self, epoch: SessionEpoch) -> None:
        """Create what is missing since the last change. Raises CoordinationError."""

    @abstractmethod
    def _forget_session(self) -> None:
        """Forget what was created in a session that has ended."""

    @abstractmethod
    def _list_own(self) -> Iterable[str]:
        """Return the paths of the ephemeral nodes, to delete them in this order."""

    # -- keeping them

    async def _register(self) -> SessionEpoch:
        """Create all nodes; return the epoch of the session that owns them."""
        while True:
            await self._ephemeral.wait_state(lambda state: state.connected)
            epoch = self._zk.state.epoch
            try:
                await self._create(epoch)
            except SessionLost:
                self._forget_session()
                continue  # the session was replaced meanwhile: register in the new one
            return epoch

    async def _keep(self, epoch: SessionEpoch) -> None:
        """Register again in each new session, and update the nodes after changes."""
        while True:
            await self._wait_change(epoch)
            try:
                await self._ephemeral.wait_state(lambda state: state.connected)
                if self._zk.state.epoch != epoch:
                    log.warning("session_replaced", broker=self._address.broker_id)
                    self._forget_session()
                    epoch = await self._register()
                else:
                    await self._update(epoch)
            except CoordinationError as error:
                log.warning("registration_failed", error=str(error))
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _wait_change(self, epoch: SessionEpoch) -> None:
        """Wait for a new session, or something to update."""
        async with asyncio.TaskGroup() as group:
            session = group.create_task(self._ephemeral.wait_state(lambda state: state.epoch != epoch))
            change = group.create_task(self._changed.wait())
            await asyncio.wait([session, change], return_when=asyncio.FIRST_COMPLETED)
            session.cancel()
            change.cancel()
        self._changed.clear()

    async def _unregister(self) -> None:
        if self._abandoned or not self._zk.state.connected:
            return
        for path in self._list_own():
            await self._ephemeral.delete_own(path)
