# SPDX-License-Identifier: Apache-2.0
"""Finds the coordinator of a group or transactional id: the broker that keeps its state.

Any broker can be asked for it (FindCoordinator; Kafka protocol guide, GroupCoordinatorRequest). Requests to the
coordinator are retried for a bounded time, and the coordinator is found again when it has moved:

| code | meaning | what follows |
|---|---|---|
| 14 | it has just become the coordinator, and reads its log | ask the same broker again |
| 15 | ``__consumer_offsets`` (``__transaction_state``) has no leader, or does not exist yet | find it again |
| 16 | another broker is the coordinator now | find the coordinator again |

FindCoordinator makes a broker create that topic if it does not exist. Callers that only read check first that it
exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

from consumerd.client.leaders import Connections
from consumerd.client.retrying import retry_passing
from consumerd.cluster.view import Broker
from consumerd.errors import BrokerError, ConnectionLost, ProtocolError, RemoteProtocolError
from consumerd.model import BrokerId
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import Purpose
from consumerd.wire.checksum import java_hash
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.find_coordinator import (
    GROUP,
    TRANSACTION,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

T = TypeVar("T")

_LAST_PORT: Final = 65535
_SMALLEST_INT32: Final = -(2**31)
_GONE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""Codes after which the coordinator is looked up again."""
_KINDS: Final = {GROUP: "group", TRANSACTION: "transactional id"}


def choose_offsets_partition(group: str, partitions: int) -> int:
    """Return the number of the ``__consumer_offsets`` partition whose leader coordinates the group.

    It is computed as by ``GroupMetadataManager.partitionFor`` of brokers since 0.8.2.

    Args:
        partitions: Number of partitions of ``__consumer_offsets``.
    """
    code = java_hash(group)
    return (0 if code == _SMALLEST_INT32 else abs(code)) % partitions


class CoordinatorFinder:
    """Finds the coordinator of one group or transactional id, and sends it requests.

    Args:
        key: Id of the group, or transactional id.
        key_type: Kind of ``key``, a number of FindCoordinator.
        brokers: Returns the brokers to ask for the coordinator. May raise ConnectionLost and CoordinationError.
        random: Returns floats in [0, 1), for backoffs and the choice of brokers.
        patience_s: Time limit of each call of :meth:`ask`, in seconds.
        request_timeout_s: Time limit of each FindCoordinator request, in seconds.
        found: Broker that was the coordinator when last known, to be asked first; None if no coordinator is known.
        purpose: Which of a broker's connections :meth:`ask` and :meth:`ask_once` use: requests for different purposes
            do not wait for each other's responses.
    """

    def __init__(
        self,
        connections: Connections,
        key: str,
        brokers: Callable[[], Awaitable[Collection[Broker]]],
        *,
        random: Callable[[], float],
        patience_s: float,
        request_timeout_s: float,
        found: Broker | None = None,
        purpose: Purpose = Purpose.CONTROL,
        key_type: int = GROUP,
    ) -> None:
        self._connections = connections
        self._purpose = purpose
        self._key = key
        self._key_type = key_type
        self._brokers = brokers
        self._random = random
        self._patience_s = patience_s
        self._request_timeout_s = request_timeout_s
        self._found = found

    @property
    def coordinator(self) -> Broker | None:
        """Broker that coordinates the key, as last found; None while it is not known."""
        return self._found

    async def ask_once(self, ask: Callable[[BrokerConnection], Awaitable[T]]) -> T:
        """Send one request to the coordinator, which is found first if it is not known.

        Returns the result of ``ask``. If the coordinator has moved, or its connection broke, this call raises, and the
        next call finds the coordinator again. The longest time of a call is that to connect, plus ``request_timeout_s``
        for each broker that is asked for the coordinator, plus the time of ``ask``.

        Args:
            ask: Sends a request over the connection, and returns its result.

        Raises BrokerError, ConnectionLost, ProtocolError, CoordinationError.
        """
        try:
            if self._found is None:
                self._found = await self._find()
            return await ask(await self._connections.get(self._found, self._purpose))
        except ConnectionLost:
            self._found = None
            raise
        except BrokerError as error:
            if error.code in _GONE:
                self._found = None
            raise

    async def ask(self, ask: Callable[[BrokerConnection], Awaitable[T]]) -> T:
        """Send a request to the coordinator until it succeeds; return its result.

        It is sent again after errors that may pass, such as a coordinator that has moved.

        Args:
            ask: Sends the request over a connection. Raises BrokerError for an error code, ConnectionLost,
                ProtocolError.

        Raises BrokerError for a code that does not pass, UnsupportedVersion if no broker knows coordinators,
        RequestTimedOut with the last failure after ``patience_s``, CoordinationError.
        """
        who = f"coordinator of {_KINDS[self._key_type]} {self._key!r}"
        return await retry_passing(
            lambda: self.ask_once(ask), who=who, patience_s=self._patience_s, random=self._random
        )

    async def _find(self) -> Broker:
        """Return the coordinator that the first broker to answer names.

        Raises BrokerError, ConnectionLost, UnsupportedVersion, CoordinationError.
        """
        lost: ConnectionLost | None = None
        refused: ProtocolError | None = None
        for broker in sorted(await self._brokers(), key=lambda _: self._random()):
            try:
                connection = await self._connections.get(broker, Purpose.CONTROL)
                request = FindCoordinatorRequest(key=self._key, key_type=self._key_type)
                response = await connection.request(request, timeout_s=self._request_timeout_s)
                return _read_coordinator(response, asked=broker)
            except ConnectionLost as error:
                lost = error
            except ProtocolError as error:
                refused = error
        # a broker that did not answer may know the coordinator, so it is asked again even if another was too old
        raise lost or refused or ConnectionLost("no broker is known")


def _read_coordinator(response: FindCoordinatorResponse, *, asked: Broker) -> Broker:
    """Return the coordinator, at the listener through which ``asked`` was reached.

    Raises BrokerError, RemoteProtocolError.
    """
    context = f"FindCoordinator at broker {asked}"
    if response.error_code:
        raise broker_error(response.error_code, context)
    if not response.host or not 0 < response.port <= _LAST_PORT or response.node_id < 0:
        found = f"broker {response.node_id} at {response.host[:60]!r}, port {response.port}"
        raise RemoteProtocolError(f"{context}: expected a broker's address, got {found}")
    return Broker(id=BrokerId(response.node_id), host=response.host, port=response.port, tls=asked.tls)
