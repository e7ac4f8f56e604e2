# SPDX-License-Identifier: Apache-2.0
"""Dialer of brokers of Kafka 0.6 and 0.7: opens connections, and asks for nothing.

These brokers have no versions and no request that lists them, and would take such a request for another one. So the
first bytes on a connection are those of the caller's request. The generation must be known before the first connection
(``cluster.generation``). The dialer of later brokers is ``net.dialer.Dialer``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consumerd.errors import UnsupportedVersion
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.stream import StreamConnector
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.legacy.messages import LegacyRequest
from consumerd.wire.legacy.session import LegacyClientSession
from consumerd.wire.legacy.wire_types import VERSION
from consumerd.wire.schema import Request


class LegacyVersions:
    """Versions of requests to brokers of Kafka 0.6 and 0.7: one each."""

    def __str__(self) -> str:
        return "of Kafka 0.6 or 0.7"

    def choose(self, request: type[Request[Any]], *, at_most: int | None = None) -> int:  # noqa: ARG002 - one version
        """Return 0, the only version.

        Raises UnsupportedVersion for a request of later releases.
        """
        if not issubclass(request, LegacyRequest):
            raise UnsupportedVersion(f"{request.__name__}: brokers of Kafka 0.6 and 0.7 do not know it")
        return VERSION

    @property
    def mutes_after_answer(self) -> bool:
        """False: these brokers have no quotas."""
        return False


class LegacyDialer:
    """Opens connections to brokers of Kafka 0.6 and 0.7.

    Args:
        connector: Opens the streams, and limits the time for that.
        now: Monotonic clock, in seconds.
    """

    def __init__(self, connector: StreamConnector, *, now: Callable[[], float], hooks: Hooks | None = None) -> None:
        self._connector = connector
        self._now = now
        self._hooks = hooks or Hooks()

    async def dial(self, address: Address, broker: BrokerId | None = None) -> BrokerConnection:
        """Return a new connection, on which nothing was sent. Safe to cancel.

        The caller closes it. Raises ConnectionLost; ConfigError for TLS without settings.
        """
        connection = await BrokerConnection.open(
            self._connector, LegacyClientSession(), address, broker=broker, now=self._now, hooks=self._hooks
        )
        connection.adopt(LegacyVersions())
        return connection
