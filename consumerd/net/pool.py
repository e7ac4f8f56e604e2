# SPDX-License-Identifier: Apache-2.0
"""Connections to a cluster's brokers, by broker and purpose.

A broker gets one connection for control, one for producing, one per sink for fetches, and a group's coordinator one
for the membership.

- Connecting is single-flight: concurrent callers share one attempt, and its failure.
- After a failure, the next attempt to that broker waits, with exponential backoff and jitter, so that the members of a
  group do not all dial a starting broker at the same moments.
- A broker that refuses our identity is tried again after 1 to 60 seconds. Such a refusal rarely passes by itself, and
  brokers write a line for each.
- Connections that are closed, idle for long, or lead to an address that the broker has left are replaced or dropped at
  the next :meth:`ConnectionPool.get`. A connection notices its own end, so no task is needed here.
- A connection that the broker is going to close, because it limits lifetimes (KIP-368), is replaced in time. It stays
  open until its pending requests have their responses.
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
from consumerd.errors import AuthenticationFailed, ConnectionLost
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection

_CLOSE_TIMEOUT_S: Final = 5.0
_REFUSED_INITIAL_S: Final = 2.0
"""First delay, in seconds, after a broker has refused our identity; jitter halves it at most."""
_REFUSED_MAXIMUM_S: Final = 60.0
_RETIRED_IDLE_S: Final = 1.0
"""Time without requests, in seconds, after which a replaced connection is closed.

A caller of :meth:`ConnectionPool.get` may send its request a moment later.
"""


class Purpose(enum.StrEnum):
    """Purpose of a connection to a broker: fetching, control, producing, group membership.

    A broker answers the requests of one connection in order. So each purpose has a connection of its own: otherwise a
    long poll would delay all other responses.
    """

    FETCH = "fetch"
    CONTROL = "control"
    PRODUCE = "produce"
    """An acknowledgement may take as long as the slowest replica."""
    GROUP = "group"
    """A group's coordinator answers JoinGroup when all members have joined, which takes up to the rebalance timeout."""


class PooledBroker(Protocol):
    """A broker, with the id and address that :class:`ConnectionPool` needs."""

    @property
    def id(self) -> BrokerId:
        """Id of the broker, which stays the same when the broker's address changes."""

    @property
    def address(self) -> Address:
        """Present address of the broker's listener."""


class BrokerDialer(Protocol):
    """Interface of dialers: they open connections, and find out the request versions of each broker.

    ``net.dialer.Dialer`` is the dialer of brokers of 0.8 and later, ``net.legacy_dialer.LegacyDialer`` that of brokers
    of 0.6 and 0.7, which have no versions.
    """

    async def dial(self, address: Address, broker: BrokerId | None = None) -> BrokerConnection:
        """Return a new connection to a broker, ready for requests. Raises ConnectionLost.

        Args:
            broker: Id of the broker, for reports; None if it is unknown.
        """


class _Slot:
    """Connection of one broker, purpose and share, and the attempt to open the next."""

    def __init__(self) -> None:
        self.connection: BrokerConnection | None = None
        self.connecting = asyncio.Lock()
        self.failures = 0
        self.last_failure: ConnectionLost | None = None

    def find(self, address: Address) -> BrokerConnection | None:
        """Return the connection if it can be used and leads to ``address``."""
        one = self.connection
        usable = one is not None and not one.closed and not one.retiring and one.address == address
        return one if usable else None

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class _Patience:
    """Earliest time of the next attempt to a broker.

    It counts while the broker stays at one address, and fails in one way.
    """

    def __init__(self, address: Address, backoff: Backoff, *, refused: bool) -> None:
        self.address = address
        self.backoff = backoff
        self.refused = refused
        self.not_before = 0.0


class ConnectionPool:
    """Connections to a cluster's brokers, by broker and purpose.

    ``async with`` closes all connections at its end.

    Args:
        now: Monotonic clock, in seconds.
        random: Returns floats in [0, 1), for jitter.
        idle_timeout_s: Time without requests, in seconds, after which a connection is not used again.
        backoff_initial_s: First wait after a failed attempt to connect, in seconds.
        backoff_maximum_s: Longest wait after failed attempts to connect, in seconds.
    """

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
        self._retired: list[BrokerConnection] = []
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
        """Return the seconds that :meth:`get` would wait before it tries to connect to a broker.

        After failed attempts it is the rest of the backoff; otherwise 0.
        """
        patience = self._patience.get(broker.id)
        if patience is None or patience.address != broker.address:
            return 0.0
        return max(0.0, patience.not_before - self._now())

    async def get(self, broker: PooledBroker, purpose: Purpose, share: str = "") -> BrokerConnection:
        """Return a connection to a broker; open one if necessary.

        Calls with the same broker, ``purpose`` and ``share`` get the same connection. A call takes at most the longest
        backoff plus the dialer's time limits. Safe to cancel: another caller that waits for the same connection
        continues the attempt. Raises ConnectionLost.

        Args:
            share: Name of the user, such as a sink, that needs connections of its own.
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
                # this caller shared the attempt, so it shares the failure
                failure = slot.last_failure
                raise type(failure)(str(failure)) from failure
            if (rest_s := self.waits_s(broker)) > 0:
                await asyncio.sleep(rest_s)
            self._retire(slot)
            slot.drop()
            return await self._connect(slot, broker)

    async def aclose(self) -> None:
        """Close every connection; pending requests, and later calls of :meth:`get`, raise ConnectionLost."""
        self._closed = True
        connections = [slot.connection for slot in self._slots.values() if slot.connection is not None]
        connections += self._retired
        for slot in self._slots.values():
            slot.drop()
        for connection in self._retired:
            connection.close()
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
            self._note_failure(broker, refused=isinstance(error, AuthenticationFailed))
            raise
        if self._closed:
            connection.close()
        self._raise_closed()
        self._patience.pop(broker.id, None)
        slot.connection = connection
        return connection

    def _retire(self, slot: _Slot) -> None:
        """Keep a retiring connection until its pending requests have their responses."""
        if slot.connection is not None and slot.connection.retiring and not slot.connection.closed:
            self._retired.append(slot.connection)
            slot.connection = None

    def _note_failure(self, broker: PooledBroker, *, refused: bool) -> None:
        patience = self._patience.get(broker.id)
        if patience is None or patience.address != broker.address or patience.refused is not refused:
            initial_s = _REFUSED_INITIAL_S if refused else self._backoff_initial_s
            maximum_s = _REFUSED_MAXIMUM_S if refused else self._backoff_maximum_s
            backoff = Backoff(initial_s=initial_s, maximum_s=maximum_s, random=self._random)
            patience = self._patience[broker.id] = _Patience(broker.address, backoff, refused=refused)
        patience.not_before = self._now() + patience.backoff.next()

    def _drop_idle(self) -> None:
        for connection in self._retired:
            if connection.idle_s > _RETIRED_IDLE_S:
                connection.close()
        self._retired = [one for one in self._retired if not one.closed]
        for slot in self._slots.values():
            if slot.connection is not None and slot.connection.idle_s > self._idle_timeout_s:
                slot.drop()

    def _raise_closed(self) -> None:
        if self._closed:
            raise ConnectionLost("the connection pool is closed")


class PoolShare:
    """Connections of a pool for one user, such as a sink's fetches.

    No other user gets these connections, so the user's long polls delay only the user's own requests.
    """

    def __init__(self, pool: ConnectionPool, name: str) -> None:
        self._pool = pool
        self._name = name

    async def get(self, broker: PooledBroker, purpose: Purpose) -> BrokerConnection:
        """Return this user's connection to a broker for a purpose; open one if necessary.

        Safe to cancel. Raises ConnectionLost.
        """
        return await self._pool.get(broker, purpose, self._name)
