# SPDX-License-Identifier: Apache-2.0
"""The context of a request, and the contract between handlers and the server.

A handler gets one decoded request at a time per connection; requests of different connections run concurrently. It
returns the response of the same version, or a ``FileResponse`` with file ranges. For a client's mistake with an error
code, it raises nothing; it raises :class:`ConnectionRefused` if a broker would close the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from consumerd.errors import ConsumerdError


class ConnectionRefused(ConsumerdError):
    """The connection is to be closed: no response can express the error."""


class Hangup:
    """Notifies those that wait on a connection's behalf when its peer has disconnected."""

    def __init__(self) -> None:
        self._happened = False
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    @property
    def happened(self) -> bool:
        """True if the peer has disconnected."""
        return self._happened

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when the peer disconnects, at once if it has.

        Returns a function that removes the callback.
        """
        if self._happened:
            callback()
            return lambda: None
        key, self._next = self._next, self._next + 1
        self._callbacks[key] = callback

        def remove() -> None:
            self._callbacks.pop(key, None)

        return remove

    def happen(self) -> None:
        """Report that the peer has disconnected."""
        self._happened = True
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The context of a request."""

    version: int
    client_id: str | None
    peer_host: str
    """The peer's address, shown as ``/host`` by DescribeGroups."""
    connection_id: str
    """Unique among the broker's connections."""
    hangup: Hangup = field(default_factory=Hangup)
    """Happens when the peer disconnects during the request, whose result is then not needed."""


Handler: TypeAlias = Callable[[Any, RequestContext], Awaitable[object]]
"""Handles one kind of request; ``Any`` is the request class that it is registered for."""
