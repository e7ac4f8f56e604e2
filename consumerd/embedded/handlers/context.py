# SPDX-License-Identifier: Apache-2.0
"""What a handler is told of a request besides its body, and what it is to the server that calls it.

A handler is given one decoded request at a time per connection; requests of several connections run at once. It returns
the response value of the same version, or a ``server.FileResponse`` that was encoded already. It raises nothing for what
a client does wrong that has an error code; :class:`ConnectionRefused` where a broker closes the connection instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from consumerd.errors import ConsumerdError


class ConnectionRefused(ConsumerdError):
    """What was asked is answered by closing the connection, as brokers do where no answer could say it."""


class Hangup:
    """Says that a connection's peer has gone, to whoever waits on its behalf."""

    def __init__(self) -> None:
        self._happened = False
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    @property
    def happened(self) -> bool:
        """Whether the peer has gone."""
        return self._happened

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when the peer goes, at once if it has gone; returns what takes that back."""
        if self._happened:
            callback()
            return lambda: None
        key, self._next = self._next, self._next + 1
        self._callbacks[key] = callback

        def remove() -> None:
            self._callbacks.pop(key, None)

        return remove

    def happen(self) -> None:
        """The peer has gone."""
        self._happened = True
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """A request's circumstances."""

    version: int
    client_id: str | None
    peer_host: str
    """The address that the connection comes from; what DescribeGroups shows as ``/host``."""
    connection_id: str
    """Unique among the broker's connections."""
    hangup: Hangup = field(default_factory=Hangup)
    """Happens when the peer goes while the request waits: whoever waits for its sake may stop."""


Handler: TypeAlias = Callable[[Any, RequestContext], Awaitable[object]]
"""Answers one kind of request; ``Any`` is the request class that it is registered for."""
