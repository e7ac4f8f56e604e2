# SPDX-License-Identifier: Apache-2.0
"""Opens the ZooKeeper session of a cluster: its address, with credentials, SASL, TLS and ACLs."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

from consumerd.access.address import ClusterAddress
from consumerd.access.sasl_login import ZooKeeperLogin
from consumerd.access.tickets import TicketKeepers
from consumerd.aio.clock import boottime
from consumerd.net.address import Address
from consumerd.net.sasl_steps import SaslSteps
from consumerd.sasl.client import SaslClient, Token
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.connect_string import Server


async def open_session(
    address: ClusterAddress, hooks: Hooks, stack: AsyncExitStack, keepers: TicketKeepers
) -> AiozkClient:
    """Begin to connect to ZooKeeper; return the session without waiting for it.

    Raises ConfigError for secrets and files of TLS that cannot be read.

    Args:
        address: Address with a connect string of ZooKeeper.
        stack: Closes the session when it is closed.
    """
    assert address.zookeeper is not None, "callers that need ZooKeeper are given its address"
    session = AiozkClient(
        address.zookeeper,
        session_timeout_s=address.session_timeout_s,
        now=boottime,
        random=random.random,
        auth=None if address.zookeeper_auth is None else address.zookeeper_auth.read(),
        sasl=None if address.zookeeper_sasl is None else await _make_tokens(address.zookeeper_sasl, stack, keepers),
        tls=None if address.zookeeper_tls is None else address.zookeeper_tls.make_context(),
        acl=address.node_acl,
        hooks=hooks,
    )
    return await stack.enter_async_context(session)


async def _make_tokens(login: ZooKeeperLogin, stack: AsyncExitStack, keepers: TicketKeepers) -> LoginTokens:
    login.check()
    keeper = None if login.kerberos is None else await keepers.get(login.kerberos)
    make_client = login.make_client if keeper is None else keeper.make_clients(login.service_name)
    steps = SaslSteps(make_client, name="zookeeper-sasl", tickets=keeper)
    stack.push_async_callback(steps.aclose)
    return LoginTokens(login, steps)


class LoginTokens:
    """Tokens of one identity, as :class:`~consumerd.zk.authentication.SaslTokens`.

    Args:
        steps: Runs the mechanism's steps; its owner closes it.
    """

    def __init__(self, login: ZooKeeperLogin, steps: SaslSteps) -> None:
        self.setting = login.setting
        self.identity = login.describe()
        self._mechanism = login.mechanism
        self._steps = steps

    async def first(self, server: Server) -> tuple[SaslClient, Token]:
        """See SaslTokens."""
        return await self._steps.first(Address(host=server.host, port=server.port), self._mechanism)

    async def next(self, client: SaslClient, challenge: bytes) -> Token | None:
        """See SaslTokens."""
        return await self._steps.next(client, challenge, self._mechanism)

    def note_refusal(self) -> None:
        """See SaslTokens."""
        self._steps.note_refusal()
