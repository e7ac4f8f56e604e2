# SPDX-License-Identifier: Apache-2.0
"""The connections to a cluster's brokers: one for control, one for producing and one per sink for fetches, per broker.

- Connecting is single-flight: who asks meanwhile shares the attempt, and its failure.
- After a failure the next attempt to that broker waits: exponential backoff with jitter, so that the members of a group
  do not knock in step at a broker that comes up.
- Connections that are closed, idle for long, or lead to an address that the broker has left are replaced or dropped at
  the next :meth:`ConnectionPool.get`. A dead connection is noticed by the connection itself; no task is needed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout
from consumerd.errors import ConnectionLost
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection

_CLOSE_TIMEOUT_S: Final = 5.0


class Purpose(enum.StrEnum):
    """What a connection is for: answers come in order, so a long poll delays what is behind it."""

    FETCH = "fetch"
    CONTROL = "control"
    PRODUCE = "produce"
    """An acknowledgement may take as long as the slowest replica."""


class PooledBroker(Protocol):
    """A broker as the pool sees it."""

    @property
    def id(self) -> BrokerId:
        """Who it is; stays the same when it moves."""

    @property
    def address(self) -> Address:
        """Where it listens now."""


class BrokerDialer(Protocol):
    """Opens connections that are ready for use; ``net.dialer.Dialer``."""

    async def dial(self, address: Address, broker: BrokerId | None = None) -> BrokerConnection:
        """Return a new connection. Raises ConnectionLost."""


class _Slot:
    """One broker and purpose: its connection, if any, and the attempt that makes the next one."""

    def __init__(self) -> None:
        self.connection: BrokerConnection | None = None
        self.connecting = asyncio.Lock()
        self.failures = 0
        self.last_failure: ConnectionLost | None = None

    def find(self, address: Address) -> BrokerConnection | None:
        """Return the connection if it can be used and leads to ``address``."""
        usable = self.connection is not None and not self.connection.closed and self.connection.address == address
        return self.connection if usable else None

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class _Patience:
    """When the next attempt to a broker may be made, as long as it stays at one address."""

    def __init__(self, address: Address, backoff: Backoff) -> None:
        self.address = address
        self.backoff = backoff
        self.not_before = 0.0


class ConnectionPool:
    """Connections by broker and purpose; ``async with`` closes them all at its end."""

    def __init__(
        self,
        dialer: BrokerDialer,
        *,
        now: Callable[[], float],
        random: Callable[[], float],
        idle_timeout_s: float = 540.0,
        backoff_initial_s: float = 0.1,
        backoff_maximum_s: float = 10.0,
    ) -> None:
        # 540 s: Java clients' connections.max.idle.ms, a minute less than the brokers' own, so that we close first
        self._dialer = dialer
        self._now = now
        self._random = random
        self._idle_timeout_s = idle_timeout_s
        self._backoff_initial_s = backoff_initial_s
        self._backoff_maximum_s = backoff_maximum_s
        self._slots: dict[tuple[BrokerId, Purpose, str], _Slot] = {}
        self._patience: dict[BrokerId, _Patience] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        open_now = sorted(
            f"{broker}/{purpose}{share and '/'}{share}"
            for (broker, purpose, share), slot in self._slots.items()
            if slot.connection
        )
        return f"<ConnectionPool {', '.join(open_now) or 'empty'}>"

    def waits_s(self, broker: PooledBroker) -> float:
        """Return how long :meth:`get` would wait before it tries this broker; 0 for one that is not failing."""
        patience = self._patience.get(broker.id)
        if patience is None or patience.address != broker.address:
            return 0.0
        return max(0.0, patience.not_before - self._now())

    async def get(self, broker: PooledBroker, purpose: Purpose, share: str = "") -> BrokerConnection:
        """Return a connection that was usable a moment ago, made now if need be; each ``share`` has one of its own.

        Bounded by the longest backoff and the dialer's own bounds. Cancel freely: whoever else waits for the same
        connection takes the attempt over. Raises ConnectionLost.
        """
        self._drop_idle()
        slot = self._slots.setdefault((broker.id, purpose, share), _Slot())
        if (connection := slot.find(broker.address)) is not None:
            return connection
        failures = slot.failures
        async with slot.connecting:
            if (connection := slot.find(broker.address)) is not None:
                return connection
            if slot.failures > failures and slot.last_failure is not None:
                # the attempt that we have waited for is over: its failure is ours
                raise ConnectionLost(str(slot.last_failure)) from slot.last_failure
            await self._wait_turn(broker)
            slot.drop()
            return await self._connect(slot, broker)

    async def aclose(self) -> None:
        """Close every connection; whoever waits on one hears ConnectionLost, and so does whoever calls :meth:`get`."""
        self._closed = True
        connections = [slot.connection for slot in self._slots.values() if slot.connection is not None]
        for slot in self._slots.values():
            slot.drop()
        with contextlib.suppress(TimeoutError):
            async with timeout(_CLOSE_TIMEOUT_S):
                for connection in connections:
                    await connection.wait_closed()

    async def _connect(self, slot: _Slot, broker: PooledBroker) -> BrokerConnection:
        self._raise_closed()
        try:
            connection = await self._dialer.dial(broker.address, broker.id)
        except ConnectionLost as error:
            slot.failures += 1
            slot.last_failure = error
            self._note_failure(broker)
            raise
        if self._closed:
            connection.close()
        self._raise_closed()
        self._patience.pop(broker.id, None)
        slot.connection = connection
        return connection

    async def _wait_turn(self, broker: PooledBroker) -> None:
        rest = self.waits_s(broker)
        if rest > 0:
            await asyncio.sleep(rest)

    def _note_failure(self, broker: PooledBroker) -> None:
        patience = self._patience.get(broker.id)
        if patience is None or patience.address != broker.address:
            backoff = Backoff(initial_s=self._backoff_initial_s, maximum_s=self._backoff_maximum_s, random=self._random)
            patience = self._patience[broker.id] = _Patience(broker.address, backoff)
        patience.not_before = self._now() + patience.backoff.next()

    def _drop_idle(self) -> None:
        for slot in self._slots.values():
            if slot.connection is not None and slot.connection.idle_s > self._idle_timeout_s:
                slot.drop()

    def _raise_closed(self) -> None:
        if self._closed:
            raise ConnectionLost("the connection pool is closed")


class PoolShare:
    """A pool's connections for one user alone, whose long polls and large answers hold up nobody else's."""

    def __init__(self, pool: ConnectionPool, name: str) -> None:
        self._pool = pool
        self._name = name

    async def get(self, broker: PooledBroker, purpose: Purpose) -> BrokerConnection:
        """See :meth:`ConnectionPool.get`. Raises ConnectionLost."""
        return await self._pool.get(broker, purpose, self._name)
