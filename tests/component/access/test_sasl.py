# SPDX-License-Identifier: Apache-2.0
"""A cluster opened over SASL on real sockets, with TLS: what tests/interop has from real brokers, in miniature."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from consumerd.access.address import ClusterAddress, TlsFiles
from consumerd.access.opening import open_cluster
from consumerd.access.sasl_login import SaslLogin
from consumerd.errors import AuthenticationFailed, ConfigError
from consumerd.net.pool import Purpose
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from consumerd.wire.modern.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.support.scripted_broker import Answer, ScriptedBroker, ScriptedServer

RANGES = {ApiKey.LIST_OFFSETS: (0, 2), ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
LISTED = ListOffsetsResponse(topics=())
REFUSED = SaslAuthenticateResponse(error_code=58, error_message="Invalid username or password")


def broker(password: str) -> ScriptedBroker:
    """Return a broker that knows one user."""

    def judge(request: SaslAuthenticateRequest, _version: int) -> Answer:
        return SaslAuthenticateResponse() if request.auth_bytes == f"\0lake\0{password}".encode() else REFUSED

    return ScriptedBroker(
        {
            SaslHandshakeRequest: lambda _request, _version: SaslHandshakeResponse(mechanisms=("PLAIN",)),
            SaslAuthenticateRequest: judge,
            ListOffsetsRequest: lambda _request, _version: LISTED,
        },
        ranges=RANGES,
    )


def secret(folder: Path, password: str) -> Path:
    path = folder / "password"
    path.touch(mode=0o600)
    path.write_text(f"{password}\n")
    return path


async def ask(address: ClusterAddress) -> ListOffsetsResponse:
    async with open_cluster(address, wait_s=5) as cluster:
        (found,) = address.first_brokers()
        connection = await cluster.pool.get(found, Purpose.CONTROL)
        return await connection.request(ListOffsetsRequest(topics=()), timeout_s=5)


async def test_password_of_a_file_opens_a_cluster_over_tls(tmp_path: Path) -> None:
    """And a wrong one is told; the file is read again for the next connection."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with ScriptedServer(broker("right"), tls=context) as server:
        address = ClusterAddress(
            bootstrap=str(server.address),
            client_id="t",
            tls=TlsFiles(trusted=tmp_path / "ca.pem"),
            sasl=SaslLogin(mechanism="PLAIN", username="lake", password_file=secret(tmp_path, "wrong")),
        )
        with pytest.raises(AuthenticationFailed, match=r"\(error 58\): Invalid username or password; check the user"):
            await ask(address)
        secret(tmp_path, "right")

        assert await ask(address) == LISTED


async def test_files_are_checked_before_anything_is_connected_to(tmp_path: Path) -> None:
    """A process with settings that cannot work does not start."""
    exposed = secret(tmp_path, "right")
    exposed.chmod(0o644)
    async with ScriptedServer(broker("right")) as server:
        login = SaslLogin(mechanism="SCRAM-SHA-256", username="lake", password_file=exposed)
        with pytest.raises(ConfigError, match=r"cluster\.sasl\.password_file: .* can be read by everybody"):
            await ask(ClusterAddress(bootstrap=str(server.address), client_id="t", sasl=login))

        assert server.accepted == 0
