# SPDX-License-Identifier: Apache-2.0
"""Users, rights and secrets of the secured demo, and the trial of what they protect.

There are two users. Services log in as ``services`` and may write to the topics; the daemons log in as ``lake`` and may
read them. Passwords are random, and in files of mode 0600; they are removed with the brokers' logs.

The trial asks the running broker for what must be refused: a wrong password, a record written by ``lake``, and a record
read by ``services``.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.access.sasl_login import SaslLogin
from consumerd.aio.clock import monotonic
from consumerd.client.opening import open_simple_consumer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.record_writer import RecordWriter
from consumerd.errors import AuthenticationFailed, BrokerError, ConsumerdError, ProduceError
from consumerd.mirror.positions import make_target_directory
from consumerd.model import TopicPartition
from consumerd.net.authentication import Authenticator, TokenFraming
from consumerd.net.connection import BrokerConnection
from consumerd.net.stream import TcpConnector
from consumerd.net.versions import assume_release
from consumerd.sasl.plain import PLAIN, PlainClient
from consumerd.sasl.scram import SCRAM_SHA_256
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.records import NewRecord
from consumerd.wire.sasl_tokens import TokenSession

SERVICES_USER: Final = "services"
LAKE_USER: Final = "lake"
_TRIAL_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES: Final = 1 << 16
_RELEASE: Final = (1, 1)
"""Release that the demo's broker passes for."""


class DemoSecurity:
    """Users and rights of the secured demo.

    Args:
        folder: Folder for the files, which need not exist.
        topics: Topics that services write and the daemons read.
    """

    def __init__(self, folder: Path, topics: Collection[str]) -> None:
        self._folder = folder
        self._topics = sorted(topics)

    def write_files(self) -> None:
        """Write users, rights and password files."""
        self._folder.mkdir(parents=True, exist_ok=True)
        passwords = {user: secrets.token_urlsafe() for user in (SERVICES_USER, LAKE_USER)}
        self._write("users", "".join(f"{user}:{password}\n" for user, password in passwords.items()))
        for user, password in passwords.items():
            self._write(f"password-{user}", f"{password}\n")
        rules = [
            f"allow User:{user} {operation} Topic:{topic}\n"
            for topic in self._topics
            for user, operation in ((SERVICES_USER, "Write"), (LAKE_USER, "Read"))
        ]
        self._write("acls", "".join(rules))

    @property
    def broker_options(self) -> tuple[str, ...]:
        """Options of ``consumerd broker``."""
        return ("--users", str(self._folder / "users"), "--acls", str(self._folder / "acls"))

    def login(self, user: str) -> SaslLogin:
        """Return the identity of a user."""
        return SaslLogin(mechanism=SCRAM_SHA_256, username=user, password_file=self._folder / f"password-{user}")

    @property
    def member_settings(self) -> Mapping[str, Any]:
        """The daemons' section ``cluster.sasl``."""
        file = self._folder / f"password-{LAKE_USER}"
        return {"mechanism": SCRAM_SHA_256, "username": LAKE_USER, "password_file": str(file)}

    async def try_out(self, address: ClusterAddress) -> Sequence[str]:
        """Ask for what must be refused; return a line for each refusal.

        Args:
            address: Address of the brokers, with any identity.

        Raises ConsumerdError if something is allowed that should not be.
        """
        topic = self._topics[0]
        lake = replace(address, sasl=self.login(LAKE_USER))
        services = replace(address, sasl=self.login(SERVICES_USER))
        return [
            await _try_login(address),
            await _try_write(lake, topic),
            await _try_read(services, topic),
        ]

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text(text)


async def _try_login(address: ClusterAddress) -> str:
    """Log in with a wrong password."""
    # below the clients, which would tell the refusal in the demo's own log
    (broker,) = address.first_brokers()
    authenticator = Authenticator(lambda _address: PlainClient(LAKE_USER, "wrong"), PLAIN)
    connector = TcpConnector(max_frame_bytes=_ANSWER_BYTES)
    session = TokenSession(address.client_id)
    try:
        client, first = await authenticator.prepare(broker.address)
        connection = await BrokerConnection.open(
            connector, session, broker.address, broker=None, now=monotonic, hooks=Hooks()
        )
        try:
            connection.adopt(assume_release(_RELEASE))
            await authenticator.authenticate(connection, client, first, TokenFraming.REQUEST)
        finally:
            connection.close()
    except AuthenticationFailed:
        return f"a wrong password of {LAKE_USER}: refused (error 58)"
    finally:
        await authenticator.aclose()
    raise ConsumerdError("the broker takes a wrong password")


async def _try_write(address: ClusterAddress, topic: str) -> str:
    settings = ProducerSettings(delivery_timeout_s=_TRIAL_TIMEOUT_S, request_timeout_s=_TRIAL_TIMEOUT_S / 2)
    record = NewRecord(b"a record that must not be there")
    try:
        # without a producer, which would tell the refusal in the demo's own log
        async with open_cluster(address, wait_s=None) as cluster:
            directory = make_target_directory(cluster)
            directory.follow((topic,))
            await directory.refresh("the trial of a write")
            writer = RecordWriter(cluster.pool, directory, settings, random=random.random)
            await writer.write(TopicPartition.modern(topic, 0), lambda _magic: [record])
    except ProduceError as error:
        if _is_denied(error):
            return f"a record written to {topic} as {LAKE_USER}: refused by the ACLs (error 29)"
        raise
    raise ConsumerdError(f"the broker lets {LAKE_USER} write")


async def _try_read(address: ClusterAddress, topic: str) -> str:
    try:
        async with open_simple_consumer(address, timeout_s=_TRIAL_TIMEOUT_S) as consumer:
            await consumer.fetch(TopicPartition.modern(topic, 0), 0)
    except BrokerError as error:
        if _is_denied(error):
            return f"a record read from {topic} as {SERVICES_USER}: refused by the ACLs (error 29)"
        raise
    raise ConsumerdError(f"the broker lets {SERVICES_USER} read")


def _is_denied(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, BrokerError) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return True
        error = error.__cause__
    return False
