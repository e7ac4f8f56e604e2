# SPDX-License-Identifier: Apache-2.0
"""Keeps a Kerberos ticket ahead of the connections that need one.

A Kerberos server that accepts a connection and says nothing holds its client for most of a minute, and servers do not
wait for that long. So tickets are acquired here, in a thread of their own, and connections only use what there is:

- With a keytab, the library fetches the first ticket, and renews it when half of its life has passed. Connections wait
  for the first one, and go on with the present one while a renewal fails.
- Without a keytab, others renew the system's cache. Connections look there themselves, so that a ticket of ``kinit`` is
  used at once; here only its end is watched.

A ticket that a server refuses is replaced: it may be from a time when a clock was wrong, or for a key that the server
no longer has. The first refusal does so at once; the next ones after 5 to 300 s, since most refusals have other causes.

The ticket's end and life are metrics. A ticket that is not renewed in time is a trouble, told once: when less than a
fifth of its life is left, or it has ended.

Example with tickets of 10 hours: they are renewed after 5 hours. If no server answers then, the trouble is told after 8
hours, and connections fail after 10 hours.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from typing import Final

import structlog

from consumerd.aio.tasks import alongside
from consumerd.aio.threads import WorkThreads
from consumerd.aio.timeouts import timeout, wait_set
from consumerd.errors import AuthenticationFailed
from consumerd.net.sasl_steps import MakeSaslClient, StepThreads
from consumerd.sasl.gssapi_client import GssapiClient
from consumerd.sasl.kerberos import KerberosLogin, TicketCache
from consumerd.telemetry.hooks import Hooks, Trouble

_LOOK_S: Final = 30.0
"""Longest time between two looks at the ticket, in seconds."""
_SHORTEST_LOOK_S: Final = 1.0
_RETRY_S: Final = 5.0
"""Time until the next look after a failure, in seconds."""
_WARN_BELOW: Final = 0.2
"""Part of a ticket's life that must be left."""
_SHORTEST_REST_S: Final = 5.0
_LONGEST_REST_S: Final = 300.0
"""Limits of the time, in seconds, between two replacements of a ticket that servers refuse."""
_CLOSE_TIMEOUT_S: Final = 0.1


class TicketKeeper:
    """Watches and renews the ticket of one identity while :meth:`run` runs.

    Args:
        cache: Acquires, renews and replaces the ticket. Its methods are called in a thread.
        threads: Run ``acquire``; None for a thread of its own.
    """

    def __init__(
        self,
        cache: TicketCache,
        *,
        hooks: Hooks | None = None,
        threads: StepThreads | None = None,
    ) -> None:
        self._cache = cache
        self._gates = cache.login.keytab is not None
        self._hooks = hooks or Hooks()
        self._threads = threads or WorkThreads(name="kerberos", count=1)
        self._looked = asyncio.Event()
        self._refused = asyncio.Event()
        self._replaced_at = -math.inf
        self._rest_s = 0.0
        self._failure: AuthenticationFailed | None = None
        self._life_s = 0.0
        self._left_s = 0.0
        self._told = False
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Watch the ticket until cancelled."""
        try:
            while True:
                pause_s = await self._look()
                if await wait_set(self._refused, pause_s):
                    self._refused.clear()
                    await self._replace()
        finally:
            await self._threads.close(timeout_s=_CLOSE_TIMEOUT_S)

    async def wait_ticket(self, timeout_s: float) -> None:
        """Wait for the end of the first attempt to get a ticket.

        Returns at once after that, and without a keytab. Raises AuthenticationFailed with the reason if there is no
        ticket, also after ``timeout_s`` seconds.
        """
        if not self._gates:
            return
        try:
            async with timeout(timeout_s):
                await self._looked.wait()
        except TimeoutError:
            raise AuthenticationFailed(
                f"no Kerberos ticket within {timeout_s:g} s: the Kerberos server (kdc of krb5.conf) does not answer"
            ) from None
        if self._failure is not None:
            raise AuthenticationFailed(str(self._failure)) from self._failure

    def make_clients(self, service_name: str) -> MakeSaslClient:
        """Return a function that makes clients of a service with this ticket."""
        return lambda address: GssapiClient(lambda: self._cache.open_context(service_name, address.host))

    def note_refusal(self) -> None:
        """Have the ticket of a keytab replaced, unless it was just replaced."""
        now = asyncio.get_running_loop().time()
        waited_s = now - self._replaced_at
        if not self._gates or waited_s < self._rest_s:
            return
        is_new = waited_s > 2 * _LONGEST_REST_S
        self._rest_s = _SHORTEST_REST_S if is_new else min(2 * self._rest_s, _LONGEST_REST_S)
        self._replaced_at = now
        self._refused.set()

    async def _replace(self) -> None:
        try:
            await self._threads.run(self._cache.replace)
        except AuthenticationFailed as error:
            # the present ticket stays in use, and its end is watched
            self._log.debug("ticket_not_replaced", reason=str(error))
        else:
            self._log.info("ticket_replaced")

    async def _look(self) -> float:
        """Look at the ticket once; return the seconds until the next look."""
        try:
            left_s = await self._threads.run(self._cache.acquire)
        except AuthenticationFailed as error:
            self._failure = error
            self._left_s = 0.0
            self._tell(str(error))
            self._looked.set()
            return _RETRY_S
        if left_s > self._left_s:
            self._life_s = left_s  # renewed
        self._left_s = left_s
        self._failure = None
        self._looked.set()
        self._hooks.kerberos_ticket_seen(self._cache.login.name, left_s, self._life_s)
        if left_s < _WARN_BELOW * self._life_s:
            self._tell(f"the Kerberos ticket ends in {left_s:.0f} s, and is not renewed")
        elif self._told:
            self._told = False
            self._log.info("ticket_renewed", left_s=round(left_s))
        return min(_LOOK_S, max(_SHORTEST_LOOK_S, left_s / 10))

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            self._log.error("ticket_not_renewed", reason=reason)
            self._hooks.trouble(Trouble.TICKET_NOT_RENEWED, reason)


class TicketKeepers:
    """Keepers of tickets, one for each Kerberos identity.

    Brokers and ZooKeeper may be given the same identity.

    Args:
        stack: Ends the keepers when it is closed.
    """

    def __init__(self, hooks: Hooks, stack: AsyncExitStack) -> None:
        self._hooks = hooks
        self._stack = stack
        self._keepers: dict[KerberosLogin, TicketKeeper] = {}

    async def get(self, login: KerberosLogin) -> TicketKeeper:
        """Return the running keeper of an identity's ticket."""
        if login not in self._keepers:
            keeper = TicketKeeper(TicketCache(login), hooks=self._hooks)
            await self._stack.enter_async_context(alongside(keeper.run(), name="Kerberos ticket"))
            self._keepers[login] = keeper
        return self._keepers[login]
