# SPDX-License-Identifier: Apache-2.0
"""SASL and TLS at a real server: on every connection, before everything else; and what refusals are told as.

AIOZK numbers are those of docs/aiozk.md.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from consumerd.access.address import ClusterAddress, TlsFiles
from consumerd.access.opening import open_cluster
from consumerd.access.sasl_login import ZooKeeperLogin
from consumerd.access.zookeeper_session import LoginTokens
from consumerd.aio.timeouts import timeout
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ConfigError, CoordinationError
from consumerd.net.sasl_steps import SaslSteps
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.authentication import SASL_REQUIRED, IdentityRefused
from consumerd.zk.node_acl import AclProfile
from consumerd.zk.port import NotPermitted, WatchKind
from tests.support.scripted_zookeeper import ScriptedZooKeeper, reply
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import EXISTS, SASL, SET_WATCHES, make_client, opcode, run_server

CONNECT = 0
PASSWORD = "right-secret"
WRONG = "wrong-secret"


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedZooKeeper]:
    """A server that knows the user lake."""
    with run_server(users={"lake": PASSWORD}) as zookeeper:
        yield zookeeper


@pytest.fixture
async def way(secured: EmbeddedZooKeeper) -> AsyncIterator[TcpProxy]:
    """A way to that server that can be disturbed."""
    async with TcpProxy(secured.port) as between:
        yield between


@asynccontextmanager
async def connect(
    connect_string: str, *, password: str = PASSWORD, acl: AclProfile = AclProfile.JAVA
) -> AsyncIterator[AiozkClient]:
    """Connect as lake."""
    login = ZooKeeperLogin(mechanism="DIGEST-MD5", username="lake", password=password)
    steps = SaslSteps(login.make_client, name="test")
    try:
        async with make_client(connect_string, sasl=LoginTokens(login, steps), acl=acl) as zk:
            yield zk
    finally:
        await steps.aclose()


async def acl_of(zk: AiozkClient, path: str) -> list[str]:
    return sorted(map(str, await zk.get_acl(path)))


async def test_o6_sasl_comes_before_everything_else_on_every_connection(way: TcpProxy, root: str) -> None:
    """AIOZK O6: a session that is resumed has no rights before SASL, so its watches and requests wait for it."""
    asked: list[int] = []

    def note(direction: Direction, frame: bytes) -> Action:
        if direction is Direction.TO_SERVER:
            asked.append(opcode(frame))
        return Action.FORWARD

    way.on_frame = note
    path = f"/consumers{root}/owners"
    async with connect(way.connect_string) as zk:
        await zk.ensure_path(path)
        await zk.create(f"{path}/own", b"1", ephemeral=True)
        rung = asyncio.Event()
        zk.watch(f"{path}/own", WatchKind.DATA, rung.set)
        before = zk.state
        first = asked.copy()
        asked.clear()
        rung.clear()
        way.cut()
        await until(lambda: way.accepted == 2)
        await zk.set(f"{path}/own", b"2")
        async with timeout(10):
            await rung.wait()

        assert zk.state.session_id == before.session_id
        assert zk.state.epoch == before.epoch
        assert first[:4] == [CONNECT, SASL, SASL, EXISTS]
        assert asked[:4] == [CONNECT, SASL, SASL, EXISTS]
        assert SET_WATCHES in asked[4:]
        async with make_client(way.connect_string) as stranger:
            with pytest.raises(NotPermitted, match=r"cluster\.zookeeper_sasl"):
                await stranger.set(f"{path}/own", b"3")


@pytest.mark.parametrize(
    ("acl", "directories", "claims"),
    [
        (AclProfile.OPEN, ["world:anyone:cdrwa"], ["world:anyone:cdrwa"]),
        (AclProfile.JAVA, ["world:anyone:cdrwa"], ["sasl:lake:cdrwa", "world:anyone:r"]),
        (AclProfile.PRIVATE, ["sasl:lake:cdrwa"], ["sasl:lake:cdrwa"]),
    ],
    ids=lambda value: value.value if isinstance(value, AclProfile) else "",
)
async def test_nodes_carry_the_acls_of_the_profile(
    secured: EmbeddedZooKeeper, root: str, acl: AclProfile, directories: list[str], claims: list[str]
) -> None:
    """A member that comes first decides who can work in the group after it."""
    group = f"/consumers{root}-{acl.value}"
    async with connect(secured.connect_string, acl=acl) as zk:
        for parent in ("ids", "owners/t", "offsets/t"):
            await zk.ensure_path(f"{group}/{parent}")
        await zk.create(f"{group}/ids/one", b"", ephemeral=True)
        await zk.create(f"{group}/owners/t/0", b"", ephemeral=True)

        assert await acl_of(zk, "/consumers") == ["world:anyone:cdrwa"]
        for path in (group, f"{group}/ids", f"{group}/ids/one"):
            assert await acl_of(zk, path) == directories
        for path in (f"{group}/owners", f"{group}/owners/t", f"{group}/owners/t/0", f"{group}/offsets/t"):
            assert await acl_of(zk, path) == claims


async def test_wrong_password_is_told_without_it(secured: EmbeddedZooKeeper) -> None:
    """The user is named, and what to look at; the password is in no message."""
    async with connect(secured.connect_string, password=WRONG) as zk, timeout(10):
        with pytest.raises(IdentityRefused, match=r"it refuses sasl:lake by DIGEST-MD5 \(error -1[12][0-9]\)") as told:
            await zk.wait_connected()

    assert "check username and password of cluster.zookeeper_sasl" in str(told.value)
    assert WRONG not in str(told.value)


async def test_server_without_sasl_is_told(server: EmbeddedZooKeeper) -> None:
    """It answers null to any token, and would serve us as world:anyone."""
    async with connect(server.connect_string) as zk, timeout(10):
        with pytest.raises(IdentityRefused, match="it has no SASL, and would serve us as world:anyone"):
            await zk.wait_connected()


async def test_connection_that_ends_during_sasl_is_a_refusal_the_second_time_only(way: TcpProxy) -> None:
    """ZooKeeper 3.4 refuses by closing, and so does one that goes down: once is tried again without a word."""
    cuts = 1

    def cut(direction: Direction, frame: bytes) -> Action:
        nonlocal cuts
        if direction is Direction.TO_SERVER and opcode(frame) == SASL and cuts:
            cuts -= 1
            return Action.CUT
        return Action.FORWARD

    way.on_frame = cut
    async with connect(way.connect_string) as zk, timeout(10):
        await zk.wait_connected()
    cuts = 2
    async with connect(way.connect_string) as zk, timeout(10):
        with pytest.raises(IdentityRefused, match=r"ZooKeeper 3\.4 refuses so, or the server went down"):
            await zk.wait_connected()
        await zk.wait_connected(patient=True)
        assert zk.why_away == ""


async def test_server_that_wants_sasl_is_told_to_a_client_without() -> None:
    """The setting that is missing is named; and it is not asked again at once, for ever."""
    server = ScriptedZooKeeper()
    server.refused = SASL_REQUIRED
    async with server.running() as address, make_client(address) as zk, timeout(10):
        with pytest.raises(IdentityRefused, match=r"serves no client without SASL: set cluster\.zookeeper_sasl"):
            await zk.wait_connected()
        assert "without SASL" in zk.why_away
        server.refused = 0
        await zk.wait_connected(patient=True)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda xid, _: reply(xid, body=struct.pack("!i", 5) + b"short"[:2]), "are no answer to a token"),
        (lambda xid, _: reply(xid, body=struct.pack("!i", 5) + b"x=y,z"), "expected name=value at character 4"),
        (lambda xid, _: reply(xid, -4), r"refuses sasl:lake by DIGEST-MD5 \(error -4\)"),
    ],
    ids=["cut off", "no challenge", "another error"],
)
async def test_answers_that_no_server_gives_are_refusals(answer: Callable[[int, int], bytes], reason: str) -> None:
    """Never an identity, and never an error that ends the session's task."""
    server = ScriptedZooKeeper()
    server.answers = [answer]
    async with server.running() as address, connect(address) as zk, timeout(10):
        with pytest.raises(IdentityRefused, match=reason):
            await zk.wait_connected()


async def test_password_that_is_mended_in_its_file_is_used_without_a_restart(
    secured: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """The file is read again for each connection."""
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text(WRONG)
    login = ZooKeeperLogin(mechanism="DIGEST-MD5", username="lake", password_file=path)
    address = ClusterAddress(zookeeper=secured.connect_string, client_id="t", zookeeper_sasl=login)
    with pytest.raises(IdentityRefused, match="it refuses sasl:lake"):
        async with open_cluster(address, wait_s=10):
            pass
    async with open_cluster(address, wait_s=None) as cluster, timeout(10):
        with pytest.raises(IdentityRefused):
            await cluster.zk.wait_connected()
        path.write_text(PASSWORD)
        await cluster.zk.wait_connected(patient=True)
        assert cluster.zk.identity == "sasl:lake"


# -- TLS


@pytest.fixture
async def encrypted(server: EmbeddedZooKeeper, tmp_path: Path) -> AsyncIterator[TcpProxy]:
    """A way to the server over TLS; its authority is in ca.pem."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    async with TcpProxy(server.port, tls=context) as between:
        yield between


async def open_over_tls(connect_string: str, files: TlsFiles | None) -> None:
    address = ClusterAddress(zookeeper=connect_string, client_id="t", zookeeper_tls=files)
    async with open_cluster(address, wait_s=2) as cluster:
        assert await cluster.zk.exists("/zookeeper") is not None


async def test_o6_tls_to_the_servers(encrypted: TcpProxy, tmp_path: Path) -> None:
    """AIOZK O6: the whole session is encrypted, and the server's name is checked."""
    files = TlsFiles(setting="cluster.zookeeper_tls", trusted=tmp_path / "ca.pem")
    context = files.make_context()
    async with make_client(f"localhost:{encrypted.port}", tls=context) as zk:
        await zk.wait_connected()
        before = zk.state
        encrypted.cut()
        await until(lambda: encrypted.accepted == 2)
        assert await zk.exists("/zookeeper") is not None
        assert zk.state.session_id == before.session_id

    with pytest.raises(CoordinationError, match=r"TLS: .*certificate verify failed"):
        await open_over_tls(f"localhost:{encrypted.port}", TlsFiles(setting="cluster.zookeeper_tls"))
    with pytest.raises(CoordinationError, match=r"IP address mismatch, certificate is not valid for '127\.0\.0\.1'"):
        await open_over_tls(encrypted.connect_string, files)


async def test_plain_text_to_a_port_for_tls_is_told_and_the_other_way_round(
    server: EmbeddedZooKeeper, encrypted: TcpProxy, tmp_path: Path
) -> None:
    """One of the two is set here and not there."""
    with pytest.raises(CoordinationError, match=r"it has TLS only \(cluster\.zookeeper_tls\)"):
        await open_over_tls(f"localhost:{encrypted.port}", None)
    with pytest.raises(CoordinationError, match="TLS: "):
        await open_over_tls(server.connect_string, TlsFiles(trusted=tmp_path / "ca.pem"))


async def test_secrets_that_everybody_can_read_are_refused_before_connecting(tmp_path: Path) -> None:
    """The key of the client's certificate is one."""
    key = tmp_path / "client.pem"
    trustme.CA().issue_cert("client").private_key_and_cert_chain_pem.write_to_path(key)
    files = TlsFiles(setting="cluster.zookeeper_tls", certificate=key)
    key.chmod(0o644)
    with pytest.raises(
        ConfigError, match=r"cluster\.zookeeper_tls\.certificate_file: .*client\.pem can be read by everybody"
    ):
        await open_over_tls("h:1", files)
    key.chmod(0o640)
    assert files.make_context().check_hostname
