# SPDX-License-Identifier: Apache-2.0
"""Steps of SASL mechanisms, each in a thread and within a time limit.

Brokers and ZooKeeper have steps of their own: a Kerberos server that is silent to one of them must not delay the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from consumerd.aio.threads import WorkThreads
from consumerd.aio.timeouts import timeout
from consumerd.errors import AuthenticationFailed, ConfigError
from consumerd.net.address import Address
from consumerd.sasl.client import SaslClient, Token

T = TypeVar("T")

MakeSaslClient = Callable[[Address], SaslClient]
"""Function that makes the client's side of one authentication with the server at an address.

Called in a thread. Raises AuthenticationFailed, or ConfigError, if the credentials cannot be read.
"""

_CLOSE_TIMEOUT_S: Final = 0.1


class StepThreads(Protocol):
    """Threads that run the computations of mechanisms; see ``WorkThreads``."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread, and return its result or raise its error."""

    async def close(self, *, timeout_s: float) -> None:
        """End the threads; those that have not ended after ``timeout_s`` seconds are left running."""


class Tickets(Protocol):
    """Kerberos tickets that are fetched and renewed ahead of connections."""

    async def wait_ticket(self, timeout_s: float) -> None:
        """Wait for a ticket, for at most ``timeout_s`` seconds. Raises AuthenticationFailed without one."""

    def note_refusal(self) -> None:
        """Note that a server has refused an authentication with the ticket."""


class SaslSteps:
    """Runs the steps of authentications with the servers of one cluster.

    Args:
        make_client: Makes the client's side of one authentication.
        name: Name of the thread.
        thread_timeout_s: Time limit, in seconds, of each step. A Kerberos server that is silent keeps GSSAPI's for most
            of a minute.
        threads: Run the steps; None for a thread of its own.
        tickets: Kerberos tickets that are renewed ahead; None for none.
    """

    def __init__(
        self,
        make_client: MakeSaslClient,
        *,
        name: str,
        thread_timeout_s: float = 20.0,
        threads: StepThreads | None = None,
        tickets: Tickets | None = None,
    ) -> None:
        self._make_client = make_client
        self._thread_timeout_s = thread_timeout_s
        self._tickets = tickets
        # one: neither a Kerberos server nor a processor serves several connections any sooner
        self._threads = threads or WorkThreads(name=name, count=1)

    async def aclose(self) -> None:
        """End the thread; one that waits for a Kerberos server is left behind."""
        await self._threads.close(timeout_s=_CLOSE_TIMEOUT_S)

    async def first(self, address: Address, where: str) -> tuple[SaslClient, Token]:
        """Begin an authentication; return the client's side of it, and its first token.

        Raises AuthenticationFailed, which begins with ``where``.
        """

        def begin() -> tuple[SaslClient, Token]:
            client = self._make_client(address)
            return client, client.first()

        if self._tickets is not None:
            try:
                await self._tickets.wait_ticket(self._thread_timeout_s)
            except AuthenticationFailed as error:
                raise AuthenticationFailed(f"{where}: {error}") from error
        return await self._compute(begin, where)

    async def next(self, client: SaslClient, challenge: bytes, where: str) -> Token | None:
        """Return the token that answers a server's; None at the end.

        Raises AuthenticationFailed, which begins with ``where``; RemoteProtocolError for a token that the mechanism
        does not allow.
        """
        return await self._compute(partial(client.next, challenge), where)

    def note_refusal(self) -> None:
        """Note that a server has refused an authentication."""
        if self._tickets is not None:
            self._tickets.note_refusal()

    async def _compute(self, work: Callable[[], T], where: str) -> T:
        """Run a step of a mechanism in the thread. Raises AuthenticationFailed."""
        abandoned = threading.Event()

        def run() -> T:
            if abandoned.is_set():
                # its caller has given up: with a silent Kerberos server such steps would queue up
                raise AuthenticationFailed("given up")
            return work()

        try:
            async with timeout(self._thread_timeout_s):
                return await self._threads.run(run)
        except TimeoutError:
            raise AuthenticationFailed(
                f"{where}: no token within {self._thread_timeout_s:g} s: is the Kerberos server (kdc of krb5.conf) "
                "reachable from here?"
            ) from None
        except ConfigError as error:
            raise AuthenticationFailed(str(error)) from error
        except AuthenticationFailed as error:
            raise AuthenticationFailed(f"{where}: {error}") from error
        finally:
            abandoned.set()
