# SPDX-License-Identifier: Apache-2.0
"""A ZooKeeper session over connections that come and go: identity, lease, reconnecting, deadlines, standing watches.

Theory
------
A *session* lives in the ensemble and has an id; a *connection* carries it. Losing a connection loses no session: the next
connection names the id and goes on, unless the ensemble has ended the session meanwhile, which only the ensemble can
say, and only on a connection. So:

* An *epoch* begins whenever an established connection turns out to carry another session id than the last one; nothing
  else begins one, and no event is waited for.
* The id and its password are kept through every failure, until the ensemble itself says that the session is over.
* What is known without the ensemble is time: the :class:`~consumerd.zk.lease.Lease`, renewed by every answer that comes
  from the leader: to writes, and to the probe (``sync`` every sixth of a timeout). Reads are answered by whatever server
  we are connected to, also by one that has lost its leader. A connection on which no answer came for the time of two
  probes is given up, while there is still time to reach another server in the same session.
* A connection belongs to one epoch, and a write is put on the wire in the same step of the event loop in which its
  epoch was compared. There is no queue in between, so no write can slip into a later session.
* An answer that will never come is known to be lost when the connection ends: reads are asked again on the next one,
  writes are reported as of unknown outcome.

Times in fractions of the session timeout S: probe every S/6; connection given up after two unanswered probes; an attempt
to connect is bounded by S/6, doubled with each fruitless round up to S/2; between rounds a pause of S/10, with jitter.

Knows no serialisation: :class:`SessionCodec` is given. Source: ZooKeeper's programmer's guide (Sessions), ``ClientCnxn.java``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConfigError, ConsumerdError, SessionLost
from consumerd.model import NO_SESSION, SessionEpoch
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.connect_string import Server
from consumerd.zk.connection import Listener, ZkConnection, ZkReply, ZkRequest
from consumerd.zk.lease import Lease
from consumerd.zk.port import LeasePhase, NotConnected, OutcomeUnknown, SessionState
from consumerd.zk.watch import Arming, Change, WatchTable

_PROBE: Final = 1 / 6
# less than two probes by half of one, so that the second tick after an unanswered probe ends it, whatever a timer's error
_PATIENCE: Final = 1.5 * _PROBE
_ATTEMPT: Final = 1 / 6
_ATTEMPT_MAX: Final = 1 / 2
_PAUSE: Final = 1 / 10
_WATCH_RENEWAL_S: Final = 30.0
_MIN_WAIT_S: Final = 0.001

_NO_NODE: Final = -101
_AUTH_XID: Final = -4
_OUTCOME_UNKNOWN: Final = frozenset({-4, -7})
"""ConnectionLoss and OperationTimeout, when a server itself reports them."""
_SESSION_EXPIRED: Final = -112
_SESSION_MOVED: Final = -118

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Credential:
    """What the session authenticates with, on every connection; for ``digest`` the value is ``user:password``."""

    scheme: str
    value: bytes

    def __repr__(self) -> str:
        return f"Credential(scheme={self.scheme!r}, value=...)"


@dataclass(frozen=True, slots=True)
class Identity:
    """What names a session to the ensemble; id 0 asks for a new one."""

    session_id: int = 0
    password: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's greeting; session id 0 says that the session asked for is over."""

    identity: Identity
    timeout_s: float


class SessionCodec(Protocol):
    """The serialisation of what a session itself sends and receives. Readers raise ValueError on nonsense."""

    @property
    def root_path(self) -> str:
        """The root of our tree: the chroot, or ``/``."""

    def connect(self, identity: Identity, *, timeout_s: float, last_zxid: int) -> bytes:
        """Return the first frame of a connection."""

    def read_welcome(self, frame: bytes) -> Welcome:
        """Read the server's greeting."""

    def authenticate(self, credential: Credential) -> ZkRequest:
        """Return the request that authenticates the connection."""

    def root(self) -> ZkRequest:
        """Return the request that tells whether the root of our tree exists."""

    def probe(self) -> ZkRequest:
        """Return a cheap request that only the leader can answer."""

    def arm(self, arming: Arming) -> ZkRequest:
        """Return the request that sets watches."""

    def close(self) -> ZkRequest:
        """Return the request that ends the session."""

    def read_change(self, body: bytes) -> tuple[Change, str] | None:
        """Read a watch event; None for one that is about no node."""


class ChrootMissing(ConfigError):
    """The chroot does not exist: a wrong one, or that of a cluster whose brokers have not started yet."""


class _AttachFailed(ConsumerdError):
    """This server could not give us a connection with a session."""


class _HungUp(_AttachFailed):
    """The server closed the connection instead of greeting: it does not serve, or knows less than we have seen."""


class _Expired(_AttachFailed):
    """The ensemble says that our session is over."""


class ZkSession:
    """Keeps a session while :meth:`run` runs; everything else may be called from any task of the loop."""

    def __init__(
        self,
        servers: Sequence[Server],
        codec: SessionCodec,
        *,
        timeout_s: float,
        call_timeout_s: float,
        now: Callable[[], float],
        random: Callable[[], float],
        credentials: Sequence[Credential] = (),
        hooks: Hooks | None = None,
    ) -> None:
        self._servers = sorted(servers, key=lambda _: random())
        self._codec = codec
        self._asked_timeout_s = timeout_s
        self._call_timeout_s = call_timeout_s
        self._now = now
        self._random = random
        self._credentials = tuple(credentials)
        self._hooks = hooks if hooks is not None else Hooks()

        self._identity = Identity()
        self._epoch = NO_SESSION
        self._lease: Lease | None = None
        self._connection: ZkConnection | None = None
        self._connections = 0
        self._last_zxid = 0
        self._closing = False
        self._changed = asyncio.Event()
        self._refusal: ConfigError | None = None
        self._next_server = 0
        self._away_since: float | None = None
        self._watches_renewed_at = 0.0
        self.watches = WatchTable(arm=self._arm, soon=lambda callback: asyncio.get_running_loop().call_soon(callback))
        """The standing watches."""

    # -- what is known

    @property
    def state(self) -> SessionState:
        """The session as known at this moment."""
        return SessionState(
            epoch=self._epoch,
            session_id=self._identity.session_id,
            timeout_s=self._timeout_s,
            phase=LeasePhase.NONE if self._lease is None else self._lease.phase(self._now()),
            connected=self._connection is not None,
            connections=self._connections,
        )

    async def wait_state(self, seen: SessionState) -> SessionState:
        """Wait until the state differs from ``seen``; wakes by itself when the lease's phase changes. Unbounded."""
        while (state := self.state) == seen:
            changed = self._changed
            wait_s = math.inf if self._lease is None else max(_MIN_WAIT_S, self._lease.next_change_s(self._now()))
            with contextlib.suppress(TimeoutError):
                async with timeout(None if math.isinf(wait_s) else wait_s):
                    await changed.wait()
        return state

    async def wait_connected(self) -> None:
        """Wait for a connection. Unbounded. Raises ConfigError for refused credentials, ChrootMissing (the
        session is there all the same: everything below the chroot may yet be created by others).
        """
        while self._connection is None and self._refusal is None:
            await self._changed.wait()
        if self._refusal is not None:
            raise self._refusal

    # -- calls

    async def read(self, request: ZkRequest, what: str) -> ZkReply:
        """Ask until answered, on one connection after the other. Raises NotConnected after the call timeout."""
        try:
            async with timeout(self._call_timeout_s):
                while True:
                    connection = await self._connected(None)
                    reply = await self._submit(connection, request, proves_session=False)
                    if reply is not None and self._belongs_here(connection, reply):
                        return reply
        except TimeoutError:
            raise NotConnected(f"{what}: no answer from ZooKeeper within {self._call_timeout_s} s") from None

    async def write(self, request: ZkRequest, what: str, epoch: SessionEpoch | None) -> ZkReply:
        """Send once, in session ``epoch`` or not at all.

        Raises SessionLost and NotConnected (not sent, or refused: it had no effect), OutcomeUnknown. Cancelled after
        sending, its outcome is unknown too.
        """
        sent = False
        try:
            async with timeout(self._call_timeout_s):
                connection = await self._connected(epoch)
                # no await between the comparison of epochs, which was the last thing done, and the wire
                answer = self._submit(connection, request, proves_session=True)
                sent = True
                reply = await answer
        except TimeoutError:
            if sent:
                raise OutcomeUnknown(f"{what}: sent, but no answer within {self._call_timeout_s} s") from None
            raise NotConnected(f"{what}: not sent, no connection within {self._call_timeout_s} s") from None
        if reply is None:
            raise OutcomeUnknown(f"{what}: sent, but the connection broke ({connection.reason})")
        if reply.error in _OUTCOME_UNKNOWN:
            raise OutcomeUnknown(f"{what}: the server lost it on its way (error {reply.error})")
        if not self._belongs_here(connection, reply):
            if reply.error == _SESSION_EXPIRED:
                raise SessionLost(f"{what}: refused, the session is over")
            raise NotConnected(f"{what}: refused, the session has moved to another connection")
        return reply

    async def _connected(self, epoch: SessionEpoch | None) -> ZkConnection:
        """Wait for a connection, of session ``epoch`` if one is given; the caller bounds it. Raises SessionLost."""
        while True:
            if epoch is not None and (epoch != self._epoch or self._lease is None):
                raise SessionLost(f"session {epoch} is over (now: {self._epoch if self._lease else 'none'})")
            if self._connection is not None:
                return self._connection
            await self._changed.wait()

    def _submit(
        self, connection: ZkConnection, request: ZkRequest, *, proves_session: bool
    ) -> asyncio.Future[ZkReply | None]:
        self.watches.flush()
        return connection.submit(request, proves_session=proves_session)

    def _belongs_here(self, connection: ZkConnection, reply: ZkReply) -> bool:
        """Whether the answer is one; a session that is over or has moved makes the connection useless."""
        # several answers may say so; by the second one there may be a new session already
        if reply.error == _SESSION_EXPIRED and connection is self._connection:
            self._end_session()
        if reply.error in {_SESSION_EXPIRED, _SESSION_MOVED}:
            connection.abort(f"the session is no longer here (error {reply.error})")
            return False
        return True

    # -- the loop

    async def run(self) -> None:
        """Connect, attend, reconnect; until cancelled or closed."""
        while not self._closing:
            await self._attend(await self._connect())

    async def close(self) -> None:
        """End the session in order if there is a connection, within S/3; else leave it to expire. Idempotent."""
        self._closing = True
        connection = self._connection
        if connection is None:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with timeout(self._timeout_s / 3):
                    await connection.submit(self._codec.close())
        finally:
            self._end_session()
            connection.abort("closed by us")
        await connection.wait_lost()

    async def _attend(self, connection: ZkConnection) -> None:
        """Probe a connection until it ends."""
        while not connection.lost:
            with contextlib.suppress(TimeoutError):
                async with timeout(self._timeout_s * _PROBE):
                    await connection.wait_lost()
                    return
            if (stalled_s := connection.stalled_s()) > self._timeout_s * _PATIENCE:
                connection.abort(f"no answer for {stalled_s:.1f} s")
                return
            connection.submit(self._codec.probe(), proves_session=True)
            if self._now() - self._watches_renewed_at > _WATCH_RENEWAL_S:
                self._renew_watches()

    async def _connect(self) -> ZkConnection:
        """Try the servers, round after round. Unbounded: it ends with a connection, or is cancelled."""
        for rounds in itertools.count():
            bound_s = self._timeout_s * min(_ATTEMPT * 2.0 ** min(rounds, 8), _ATTEMPT_MAX)
            connection = await self._try_all(bound_s)
            if connection is not None:
                return connection
            await asyncio.sleep(self._timeout_s * _PAUSE * (0.5 + 0.5 * self._random()))
        raise AssertionError("the rounds never end")

    async def _try_all(self, bound_s: float) -> ZkConnection | None:
        """Try each server once, beginning after the last one that served us."""
        failures: dict[Server, _AttachFailed] = {}
        attempts = len(self._servers)
        while attempts > 0:
            server = self._servers[self._next_server]
            try:
                return await self._attach(server, bound_s)
            except _Expired:
                # the same server, at once: it has just shown that it works
                continue
            except _AttachFailed as error:
                failures[server] = error
                attempts -= 1
                self._next_server = (self._next_server + 1) % len(self._servers)
        self._report_away(failures)
        self._doubt_history(failures)
        return None

    def _doubt_history(self, failures: dict[Server, _AttachFailed]) -> None:
        """Stop insisting on what we have seen when, past the session's end, every server hangs up on us.

        A server refuses a client that has seen more than itself. For a moment that is a server which lags behind; for
        longer than a session it is an ensemble that was set up anew, and would refuse us for ever.
        """
        over = self._lease is None or self._lease.age(self._now()) > self._lease.timeout_s
        if self._last_zxid and over and all(isinstance(error, _HungUp) for error in failures.values()):
            log.warning("zookeeper_history_forgotten", last_zxid=self._last_zxid)
            detail = "every server has seen less than we have: it was set up anew, or from a backup"
            self._hooks.trouble(Trouble.ZOOKEEPER_HISTORY_FORGOTTEN, detail)
            self._last_zxid = 0

    async def _attach(self, server: Server, bound_s: float) -> ZkConnection:
        """Connect to a server and take up the session there, or begin a new one. Raises _AttachFailed."""
        loop = asyncio.get_running_loop()
        listener = Listener(answered=self._on_answer, changed=self._on_change, lost=self._on_lost)
        connection: ZkConnection | None = None
        greeted = False
        try:
            async with timeout(bound_s):
                _, connection = await loop.create_connection(
                    lambda: ZkConnection(self._now, listener), server.host, server.port
                )
                sent_at = self._now()
                welcome = await self._greet(connection)
                await self._authenticate(connection)
                rooted = await self._ask(connection, self._codec.root())
            greeted = True
        except TimeoutError as error:
            raise _AttachFailed(f"no answer within {bound_s:.1f} s") from error
        except (OSError, UnicodeError) as error:
            # UnicodeError: a host name that is none
            raise _AttachFailed(str(error)) from error
        finally:
            if connection is not None and not greeted:
                connection.abort("not established")
        self._refusal = None
        if rooted.error == _NO_NODE:
            reason = f"the chroot {self._codec.root_path} does not exist: create it, or correct cluster.zookeeper"
            self._refuse(reason, server, ChrootMissing)
        self._establish(connection, server, welcome, sent_at)
        return connection

    async def _greet(self, connection: ZkConnection) -> Welcome:
        frame = await connection.greet(
            self._codec.connect(self._identity, timeout_s=self._asked_timeout_s, last_zxid=self._last_zxid)
        )
        if frame is None:
            raise _HungUp(connection.reason)
        try:
            welcome = self._codec.read_welcome(frame)
        except ValueError as error:
            raise _AttachFailed(f"no ZooKeeper server: {error}") from error
        if welcome.identity.session_id == 0 or welcome.timeout_s <= 0:
            if self._identity.session_id == 0:
                raise _AttachFailed("the server gives no session")
            if self._lease is not None:
                log.warning("zookeeper_session_expired", epoch=self._epoch, session=hex(self._identity.session_id))
            self._end_session()
            raise _Expired("the session has expired")
        return welcome

    async def _authenticate(self, connection: ZkConnection) -> None:
        for credential in self._credentials:
            reply = await connection.submit(self._codec.authenticate(credential), xid=_AUTH_XID)
            if reply is None or reply.error:
                self._refuse(f"it refuses the credentials of scheme {credential.scheme!r}")
                raise _AttachFailed("authentication refused")

    async def _ask(self, connection: ZkConnection, request: ZkRequest) -> ZkReply:
        reply = await connection.submit(request)
        if reply is None:
            raise _AttachFailed(connection.reason)
        return reply

    def _refuse(self, reason: str, server: Server | None = None, kind: type[ConfigError] = ConfigError) -> None:
        if self._refusal is None:
            # a chroot may yet be made; whoever cannot wait for it says so to the user
            report = log.warning if kind is ChrootMissing else log.error
            report("zookeeper_unusable", reason=reason, server=str(server or self._servers[self._next_server]))
            self._hooks.trouble(Trouble.ZOOKEEPER_UNUSABLE, reason)
        self._refusal = kind(f"ZooKeeper {','.join(map(str, self._servers))}: {reason}")
        self._notify()

    def _establish(self, connection: ZkConnection, server: Server, welcome: Welcome, sent_at: float) -> None:
        """Make a greeted connection the session's own; from here on its epoch is the session's."""
        resumed = self._lease is not None and welcome.identity.session_id == self._identity.session_id
        if resumed:
            assert self._lease is not None
            self._lease.timeout_s = welcome.timeout_s
            self._lease.renew(sent_at)
        else:
            self._epoch = SessionEpoch(self._epoch + 1)
            self._lease = Lease(welcome.timeout_s, sent_at)
        self._identity = welcome.identity
        away_s = 0.0 if self._away_since is None else self._now() - self._away_since
        self._away_since = None
        log.info(
            "zookeeper_connected",
            server=str(server),
            epoch=self._epoch,
            session=hex(welcome.identity.session_id),
            timeout_s=welcome.timeout_s,
            resumed=resumed,
            away_s=round(away_s, 3),
        )
        if connection.lost:
            # it ended between its last answer and this line: the session is known, its connection is gone
            return
        self._connection = connection
        self._connections += 1
        self._renew_watches()
        self._notify()

    def _renew_watches(self) -> None:
        self._watches_renewed_at = self._now()
        self.watches.renew()

    def _end_session(self) -> None:
        """The session is over, by the ensemble's word or by ours; the next established connection begins an epoch."""
        self._identity = Identity()
        self._lease = None
        self._notify()

    # -- what a connection tells us

    def _on_answer(self, reply: ZkReply, sent_at: float | None) -> None:
        if reply.zxid > 0:
            self._last_zxid = max(self._last_zxid, reply.zxid)
        # while a connection is being established, it is not yet known whose session it carries
        if sent_at is None or self._lease is None or self._connection is None or reply.error == _SESSION_EXPIRED:
            return
        before = self._lease.phase(self._now())
        self._lease.renew(sent_at)
        if self._lease.phase(self._now()) is not before:
            self._notify()

    def _on_change(self, body: bytes) -> None:
        try:
            change = self._codec.read_change(body)
        except ValueError:
            # all watches are set again now and then; one event that cannot be read costs a delay
            log.warning("zookeeper_event_unreadable")
            self._hooks.trouble(Trouble.ZOOKEEPER_EVENT_UNREADABLE, "watches are set again now and then")
            return
        if change is not None:
            self.watches.fired(*change)

    def _on_lost(self) -> None:
        connection = self._connection
        if connection is None or not connection.lost:
            return
        self._connection = None
        self._notify()
        if not self._closing:
            self._away_since = self._now()
            self._next_server = (self._next_server + 1) % len(self._servers)
            log.warning(
                "zookeeper_disconnected",
                reason=connection.reason,
                epoch=self._epoch,
                session=hex(self._identity.session_id),
            )

    def _report_away(self, failures: dict[Server, _AttachFailed]) -> None:
        """Say once that nobody can be reached; a lost connection has been reported already."""
        if self._away_since is None:
            self._away_since = self._now()
            log.warning("zookeeper_unreachable", failures={str(server): str(why) for server, why in failures.items()})

    def _arm(self, arming: Arming) -> None:
        if self._connection is not None:
            self._connection.submit(self._codec.arm(arming))

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def _timeout_s(self) -> float:
        return self._asked_timeout_s if self._lease is None else self._lease.timeout_s
