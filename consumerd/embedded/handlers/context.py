# SPDX-License-Identifier: Apache-2.0
"""The context of a request, and the contract between handlers and the server.

A handler gets one decoded request at a time per connection; requests of different connections run concurrently. It
returns the response of the same version, or a ``FileResponse`` with file ranges. For a client's mistake with an error
code, it raises nothing; it raises :class:`ConnectionRefused` if a broker would close the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from consumerd.errors import ConsumerdError

ANONYMOUS: Final = "User:ANONYMOUS"
"""Identity of clients that were not authenticated."""


class ConnectionRefused(ConsumerdError):
    """Raised by a handler if the broker must close the connection instead of responding."""


class Hangup:
    """Tells a waiting handler that the client of its connection has disconnected."""

    def __init__(self) -> None:
        self.happened = False
        """True if the peer has disconnected."""
        self._callbacks: dict[object, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when the client disconnects; at once if it has disconnected already.

        Returns a function that removes the callback.
        """
        if self.happened:
            callback()
            return lambda: None
        key = object()
        self._callbacks[key] = callback

        def remove() -> None:
            self._callbacks.pop(key, None)

        return remove

    def happen(self) -> None:
        """Note that the client has disconnected, and call the callbacks."""
        self.happened = True
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Facts about a request besides its content: version and client."""

    version: int
    client_id: str | None
    peer_host: str
    """The client's address, shown as ``/host`` by DescribeGroups."""
    principal: str = ANONYMOUS
    """The client's identity, as ACLs name it."""
    hangup: Hangup = field(default_factory=Hangup)
    """Calls back if the client disconnects during the request, whose result is then not needed."""


Handler: TypeAlias = Callable[[Any, RequestContext], Awaitable[object]]
"""Handles one kind of request; ``Any`` is the request class that it is registered for."""
