# SPDX-License-Identifier: Apache-2.0
"""How connections are authenticated: as real brokers were seen to want it, and what their refusals are told as."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import structlog

from consumerd.aio.timeouts import timeout
from consumerd.errors import AuthenticationFailed, ConfigError, ConnectionLost
from consumerd.net.address import Address
from consumerd.net.authentication import Authenticator
from consumerd.net.sasl_dialer import SaslDialer
from consumerd.net.versions import Origin, VersionMemory, assume_release
from consumerd.sasl.client import SaslClient
from consumerd.sasl.plain import PlainClient
from consumerd.sasl.scram import ScramClient
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from consumerd.wire.modern.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.support import virtual_time
from tests.support.sasl_broker import Inline, PlayedClient, RecordedBroker, authenticate_as
from tests.support.sasl_recordings import PASSWORDS, read_broker
from tests.support.scripted_broker import Answer, Body, FakeNetwork, Late, Peer, Reaction, ScriptedBroker, listing

ADDRESS = Address(host="b", port=9093)
LISTED = ListOffsetsResponse(topics=())
RANGES = {ApiKey.LIST_OFFSETS: (0, 2), ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
VERSIONS = listing(RANGES)
HANDSHAKE = SaslHandshakeResponse(mechanisms=("PLAIN",))
PINNED = {release: assume_release(release, Origin.PINNED) for release in ((0, 8, 2), (0, 9), (0, 10, 2), (1, 1))}


class Told(Hooks):
    def __init__(self) -> None:
        self.troubles: list[tuple[Trouble, str]] = []

    def trouble(self, kind: Trouble, detail: str, partition: object = None) -> None:
        self.troubles.append((kind, detail))


class Scene:
    """A dialer in a network with one broker."""

    def __init__(self, peer: Peer | None, authenticator: Authenticator | None = None, **options: Any) -> None:
        self.network = FakeNetwork()
        if peer is not None:
            self.network.brokers[ADDRESS] = peer
        self.hooks = Told()
        self.memory = VersionMemory()
        self._authenticator = authenticator or authenticate_as()
        self._options = options

    def run(self, scenario: Callable[[SaslDialer], Awaitable[None]]) -> None:
        async def play() -> None:
            now = asyncio.get_running_loop().time
            options = {"client_id": "t", "now": now, "hooks": self.hooks, "memory": self.memory} | self._options
            await scenario(SaslDialer(self.network, self._authenticator, **options))

        virtual_time.run(play())

    def refuse(self) -> str:
        """Dial and return the text of the refusal."""
        said = ""

        async def scenario(dialer: SaslDialer) -> None:
            nonlocal said
            with pytest.raises(AuthenticationFailed) as refused:
                await dialer.dial(ADDRESS)
            said = str(refused.value)

        self.run(scenario)
        assert self.left_open == 0
        assert [(Trouble.AUTHENTICATION_REFUSED, said)] == self.hooks.troubles
        return said

    @property
    def left_open(self) -> int:
        return sum(not stream.closed for stream in self.network.streams)


def scripted(
    *answers: Answer, handshake: Answer = HANDSHAKE, versions: Answer = VERSIONS, alive: Answer = LISTED
) -> ScriptedBroker:
    """Answer SaslAuthenticate one by one by ``answers``, the last for ever."""
    queue = list(answers or [SaslAuthenticateResponse()])
    return ScriptedBroker(
        {
            ApiVersionsRequest: lambda _request, _version: versions,
            SaslHandshakeRequest: lambda _request, _version: handshake,
            SaslAuthenticateRequest: lambda _request, _version: queue.pop(0) if len(queue) > 1 else queue[0],
            ListOffsetsRequest: lambda _request, _version: alive,
        }
    )


def play(release: str, scenario: str, **options: Any) -> tuple[RecordedBroker, Scene]:
    """Return a broker that plays a recording, and a scene with a client that was there."""
    mechanism = scenario.partition(": ")[2].partition(",")[0]
    broker = RecordedBroker(release, scenario)
    sent = [frame.request for frame in read_broker(release)[scenario] if frame.api is None]
    if not sent:
        bodies = [frame.request for frame in read_broker(release)[scenario] if frame.api == ApiKey.SASL_AUTHENTICATE]
        sent = [body[17:] for body in bodies]  # header with the client id "raw", and the token's size
    if mechanism.startswith("SCRAM"):
        user, nonce = (part.partition("=")[2] for part in sent[0].decode().split(",")[2:])
        password = "wrong" if "wrong" in scenario else PASSWORDS.get(user, "x")
        make: Callable[[Address], SaslClient] = lambda _address: ScramClient(mechanism, user, password, lambda: nonce)  # noqa: E731
    elif mechanism == "PLAIN":
        _, user, password = sent[0].decode().split("\0")
        make = lambda _address: PlainClient(user, password)  # noqa: E731
    else:
        tokens = [*sent, b"", b"choice"][: max(3, len(sent))]  # refusals come after the first
        make = lambda _address: PlayedClient(mechanism, tokens)  # noqa: E731
    scene = Scene(broker, authenticate_as(make, mechanism), **options)
    return broker, scene


ACCEPTED = [
    ("0.9.0.1", "no handshake (0.9): GSSAPI"),
    *(
        ("0.10.2.2", f"handshake v0, raw tokens: {mechanism}")
        for mechanism in ("GSSAPI", "PLAIN, with ApiVersions", "SCRAM-SHA-256", "SCRAM-SHA-512")
    ),
    *(
        ("1.1.1", f"handshake v1, SaslAuthenticate v0: {mechanism}")
        for mechanism in ("GSSAPI", "PLAIN, with ApiVersions", "SCRAM-SHA-256", "SCRAM-SHA-512")
    ),
    ("3.9.1", "handshake v1, SaslAuthenticate v1: PLAIN"),
]


@pytest.mark.parametrize(("release", "scenario"), ACCEPTED)
def test_real_brokers_accepted_these_bytes(release: str, scenario: str) -> None:
    """Framing by the release, every token in its place; and requests follow."""
    broker, scene = play(release, scenario)

    async def dial(dialer: SaslDialer) -> None:
        connection = await dialer.dial(ADDRESS)
        assert await connection.request(ListOffsetsRequest(topics=()), timeout_s=1) == LISTED
        assert str(connection.versions) == ("assumed 0.9" if release == "0.9.0.1" else "negotiated")

    scene.run(dial)
    assert list(broker.left) == []
    assert broker.tokens
    assert scene.left_open == 1
    assert scene.hooks.troubles == []


REFUSED = [
    (
        "0.9.0.1",
        "no handshake (0.9): GSSAPI, ticket for another service",
        "brokers of 0.9 refuse so, or the broker went",
    ),
    ("0.10.2.2", "handshake v0, raw tokens: GSSAPI, ticket for another service", "check cluster.sasl.service_name"),
    ("0.10.2.2", "handshake v0, raw tokens: PLAIN, wrong password", "check the user name and the password"),
    ("0.10.2.2", "handshake v0, raw tokens: SCRAM-SHA-256, wrong password", "if it refuses, the password is wrong"),
    ("0.10.2.2", "handshake v0, raw tokens: SCRAM-SHA-512, unknown user", "if it refuses, it does not know the user"),
    (
        "0.10.2.2",
        "handshake v0, raw tokens: unknown mechanism",
        "it has PLAIN, SCRAM-SHA-512, GSSAPI, SCRAM-SHA-256: change",
    ),
    ("1.1.1", "handshake v1, SaslAuthenticate v0: PLAIN, wrong password", "(error 58): Authentication failed: Invalid"),
    ("1.1.1", "handshake v1, SaslAuthenticate v0: SCRAM-SHA-256, wrong password", "invalid credentials with SASL"),
    ("1.1.1", "handshake v1, SaslAuthenticate v0: SCRAM-SHA-512, unknown user", "invalid credentials with SASL"),
    (
        "1.1.1",
        "handshake v1, SaslAuthenticate v0: GSSAPI, ticket for another service",
        "a name in the broker's Kerberos",
    ),
    ("1.1.1", "handshake v1, SaslAuthenticate v0: unknown mechanism", "change cluster.sasl.mechanism"),
    ("3.9.1", "handshake v1, SaslAuthenticate v1: PLAIN, wrong password", "(error 58): Authentication failed: Invalid"),
]


@pytest.mark.parametrize(("release", "scenario", "reason"), REFUSED)
def test_refusals_of_real_brokers_are_told_apart(release: str, scenario: str, reason: str) -> None:
    """As far as the release lets one; one trouble each."""
    mechanism = "OAUTHBEARER" if "unknown mechanism" in scenario else ""
    broker, scene = play(release, scenario)
    if mechanism:
        named = read_broker(release)[scenario][0].request[15:].decode()
        scene = Scene(broker, authenticate_as(lambda _address: PlayedClient(named, [b"x"]), named))

    said = scene.refuse()

    assert reason in said
    assert said.startswith("b:9093: ")


def test_broker_is_asked_for_its_versions_once() -> None:
    """Brokers since 1.0 close on a second time before the authentication, and on one after the handshake."""
    broker = scripted()

    async def scenario(dialer: SaslDialer) -> None:
        await dialer.dial(ADDRESS)

    Scene(broker).run(scenario)
    kinds = [type(request).__name__ for request, _ in broker.requests]
    assert kinds == ["ApiVersionsRequest", "SaslHandshakeRequest", "SaslAuthenticateRequest"]
    assert [version for _, version in broker.requests] == [0, 1, 1]


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ((0, 10, 2), [("SaslHandshakeRequest", 0)]),
        ((1, 1), [("SaslHandshakeRequest", 1), ("SaslAuthenticateRequest", 0)]),
    ],
)
def test_pinned_release_decides_the_framing(release: tuple[int, ...], expected: list[tuple[str, int]]) -> None:
    """It is not asked."""
    broker = scripted(handshake=Reaction.CLOSE if release < (1,) else HANDSHAKE)
    scene = Scene(broker, pinned=PINNED[release])

    async def scenario(dialer: SaslDialer) -> None:
        if release < (1,):
            with pytest.raises(AuthenticationFailed, match="ended during SaslHandshake"):
                await dialer.dial(ADDRESS)
        else:
            await dialer.dial(ADDRESS)

    scene.run(scenario)
    assert expected == [(type(request).__name__, version) for request, version in broker.requests]


def test_release_without_sasl_is_told() -> None:
    """Nothing is sent to it."""
    broker = scripted()

    assert "Kafka 0.8 have no SASL" in Scene(broker, pinned=PINNED[0, 8, 2]).refuse()
    assert broker.requests == []


def test_listener_without_sasl_is_told() -> None:
    """The port of PLAINTEXT answers so, since 0.10."""
    said = Scene(scripted(handshake=SaslHandshakeResponse(error_code=34, mechanisms=()))).refuse()

    assert "the listener has no SASL (error 34)" in said


def test_broker_that_lists_no_handshake_is_told() -> None:
    """It is none of Kafka's since 0.10."""
    said = Scene(scripted(versions=listing({ApiKey.LIST_OFFSETS: (0, 2)}))).refuse()

    assert "lists no SaslHandshake" in said


@pytest.mark.parametrize("reaction", [Reaction.CLOSE, Reaction.SILENT])
def test_end_without_a_word_before_the_authentication_is_no_refusal(reaction: Reaction) -> None:
    """A broker that goes down, or a listener of TLS; nothing is concluded of its release."""
    scene = Scene(scripted(versions=reaction))

    async def scenario(dialer: SaslDialer) -> None:
        with pytest.raises(ConnectionLost) as lost:
            await dialer.dial(ADDRESS)
        assert not isinstance(lost.value, AuthenticationFailed)
        assert scene.memory.find(ADDRESS, 0.0) is None

    scene.run(scenario)
    assert scene.left_open == 0
    assert scene.hooks.troubles == []


def test_0_9_is_remembered_only_when_it_has_accepted() -> None:
    """A broker that is restarted closes, too; another release may come up behind it."""
    _, refusing = play("0.9.0.1", "no handshake (0.9): GSSAPI, ticket for another service")
    refusing.refuse()
    assert refusing.memory.find(ADDRESS, 0.0) is None
    broker, accepting = play("0.9.0.1", "no handshake (0.9): GSSAPI")
    broker.left.extend([*broker.left])

    async def scenario(dialer: SaslDialer) -> None:
        await dialer.dial(ADDRESS)
        await dialer.dial(ADDRESS)

    accepting.run(scenario)
    assert len(accepting.network.attempts) == 3  # asked, authenticated, and authenticated at once


def test_assumption_does_not_outlive_the_process_that_was_asked() -> None:
    """Nobody listening means that what listens next may be another release, which would refuse bare tokens."""
    _, scene = play("0.9.0.1", "no handshake (0.9): GSSAPI")

    async def scenario(dialer: SaslDialer) -> None:
        await dialer.dial(ADDRESS)
        assert scene.memory.find(ADDRESS, 0.1) is not None
        scene.network.brokers.clear()
        with pytest.raises(ConnectionLost):
            await dialer.dial(ADDRESS)
        assert scene.memory.find(ADDRESS, 0.1) is None

    scene.run(scenario)


def test_missing_rule_for_a_kerberos_principal_is_told() -> None:
    """1.1 accepts the authentication and closes the connection at the first request."""
    client = PlayedClient("GSSAPI", [b"1", b"2"])
    scene = Scene(scripted(alive=Reaction.CLOSE), authenticate_as(lambda _address: client, "GSSAPI"))

    assert "no rule for this principal in sasl.kerberos.principal.to.local.rules" in scene.refuse()


def test_refusal_is_told_once_and_its_end_too() -> None:
    """Attempts go on for hours: one trouble, and two lines in the log."""
    refusal = SaslAuthenticateResponse(error_code=58, error_message="no\x1b[31m")
    scene = Scene(scripted(refusal, refusal, refusal, SaslAuthenticateResponse()))

    async def scenario(dialer: SaslDialer) -> None:
        for _ in range(3):
            with pytest.raises(AuthenticationFailed, match=r"no\?\[31m; check"):
                await dialer.dial(ADDRESS)
        await dialer.dial(ADDRESS)
        await dialer.dial(ADDRESS)

    with structlog.testing.capture_logs() as logs:
        scene.run(scenario)
    assert len(scene.hooks.troubles) == 1
    assert [log["event"] for log in logs] == ["authentication_refused", "authentication_accepted"]


class CountedTickets:
    """Tickets that are always there; counts the refusals."""

    refusals = 0

    async def wait_ticket(self, timeout_s: float) -> None:
        """There is one."""

    def note_refusal(self) -> None:
        self.refusals += 1


@pytest.mark.parametrize(
    ("answers", "alive", "refusals"),
    [
        ([SaslAuthenticateResponse(error_code=58)], LISTED, 1),
        ([SaslAuthenticateResponse()], Reaction.CLOSE, 1),
        ([Body(b"")], LISTED, 1),
        ([SaslAuthenticateResponse()], LISTED, 0),
    ],
    ids=["refused", "no rule", "nonsense", "accepted"],
)
def test_refused_tickets_are_told_to_their_keeper(answers: list[Answer], alive: Answer, refusals: int) -> None:
    """It fetches others: else one from a time when a clock was wrong is shown for hours."""
    tickets = CountedTickets()
    authenticator = Authenticator(
        lambda _address: PlayedClient("GSSAPI", [b"1", b"2"]), "GSSAPI", threads=Inline(), tickets=tickets
    )
    scene = Scene(scripted(*answers, alive=alive), authenticator)

    async def scenario(dialer: SaslDialer) -> None:
        with suppress(AuthenticationFailed):
            await dialer.dial(ADDRESS)

    scene.run(scenario)
    assert refusals == tickets.refusals


def test_endless_tokens_end() -> None:
    """A hostile broker cannot keep a dialer."""
    client = PlayedClient("X", [b"t"] * 1000)

    assert "no end after 16 tokens" in Scene(scripted(), authenticate_as(lambda _address: client, "X")).refuse()


def test_silent_broker_is_left_after_its_time() -> None:
    """Each answer has a bound of its own."""
    scene = Scene(scripted(Reaction.SILENT))

    assert "no answer to SASL_AUTHENTICATE v1 within 10 s" in scene.refuse()


def test_silent_kerberos_server_is_left_after_its_time() -> None:
    """The thread may go on for most of a minute; the broker is not even connected to."""
    threads = Inline()
    threads.delay_s = 50.0
    scene = Scene(scripted(), Authenticator(lambda _address: PlainClient("a", "b"), "PLAIN", threads=threads))

    assert "no token within 20 s" in scene.refuse()
    assert scene.network.attempts == []


def test_credentials_that_cannot_be_read_are_told_as_a_refusal() -> None:
    """The file of a password may be gone while the process runs; it may come back."""

    def make(_address: Address) -> SaslClient:
        raise ConfigError("cluster.sasl.password_file: /x cannot be read: No such file or directory")

    assert Scene(scripted(), authenticate_as(make)).refuse().startswith("cluster.sasl.password_file: /x cannot be read")


@pytest.mark.parametrize(("lifetime_ms", "retired_s"), [(15_000, 12.0), (0, None), (-1, None)])
def test_connection_with_a_lifetime_is_retired_in_time(lifetime_ms: int, retired_s: float | None) -> None:
    """KIP-368: the broker closes it at the first request after its lifetime."""
    scene = Scene(scripted(SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms)))

    async def scenario(dialer: SaslDialer) -> None:
        connection = await dialer.dial(ADDRESS)
        if retired_s is None:
            await asyncio.sleep(1_000_000)
        else:
            await asyncio.sleep(retired_s - 0.1)
            assert not connection.retiring
            await asyncio.sleep(0.2)
        assert connection.retiring is (retired_s is not None)

    scene.run(scenario)


@pytest.mark.parametrize("after_s", [0.0005, 0.0015, 0.0025, 0.5])
def test_cancelled_dial_leaves_no_connection_open(after_s: float) -> None:
    """In any of its steps."""
    scene = Scene(scripted(Late(SaslAuthenticateResponse(), 5.0)))

    async def scenario(dialer: SaslDialer) -> None:
        with pytest.raises(TimeoutError):
            async with timeout(after_s):
                await dialer.dial(ADDRESS)

    scene.run(scenario)
    assert scene.left_open == 0
