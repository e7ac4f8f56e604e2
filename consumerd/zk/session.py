# SPDX-License-Identifier: Apache-2.0
"""A ZooKeeper session over changing connections: identity, lease, reconnecting, deadlines, standing watches.

Theory
------
A *session* lives in the ensemble and has an id; a *connection* carries it. The end of a connection does not end the
session: the next connection names the id and continues it, unless the ensemble has ended the session meanwhile. Only
the ensemble can say so, and only on a connection. It follows:

* An *epoch* begins whenever an established connection turns out to carry another session id than the last one. Nothing
  else begins one, and no event is waited for.
* The id and its password are kept through every failure, until the ensemble itself says that the session is over.
* Without the ensemble, only time is known: the :class:`~consumerd.zk.lease.Lease`. Answers from the leader renew it: to
  writes, and to the probe (``sync`` every sixth of a timeout). Reads do not, since any server answers them, even one
  that has lost its leader. A connection on which no answer came for the time of two probes is given up, while there
  is still time to reach another server in the same session.
* A connection belongs to one epoch, and a write is put on the wire in the same step of the event loop in which its
  epoch was compared. There is no queue in between, so no write can slip into a later session.
* When a connection ends, its pending answers are known to be lost: reads are asked again on the next one, writes are
  reported as of unknown outcome.

Times in fractions of the session timeout S: a probe every S/6; a connection is given up after two unanswered probes; an
attempt to connect is bounded by S/6, doubled with each fruitless round up to S/2; a pause of S/10, with jitter, between
rounds.

The identity belongs to the connection, not to the session, so each connection is authenticated before it becomes the
session's own (``zk.authentication``). A server that refuses us is left alone for 1 to 60 s. Each attempt keeps the
session alive in the ensemble, so the session of a member that every server refuses ends once these pauses exceed S. Its
partitions go to other members then.

Serialisation is in the given :class:`SessionCodec`. Source: ZooKeeper's programmer's guide (Sessions),
``ClientCnxn.java``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from consumerd.aio.timeouts import timeout, wait_set
from consumerd.errors import ConfigError, ConsumerdError, SessionLost
from consumerd.model import NO_SESSION, SessionEpoch
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.authentication import (
    SASL_REQUIRED,
    ConnectionLogin,
    IdentityRefused,
    LoginFailed,
    RefusingServers,
    SaslTokens,
)
from consumerd.zk.connect_string import Server
from consumerd.zk.connection import Listener, ZkConnection, ZkReply, ZkRequest
from consumerd.zk.lease import Lease
from consumerd.zk.port import LeasePhase, NotConnected, OutcomeUnknown, SessionState
from consumerd.zk.session_codec import Credential, Identity, SessionCodec, Welcome
from consumerd.zk.watch import Arming, WatchTable

_PROBE: Final = 1 / 6
# less than two probes by half of one, so that the second tick after an unanswered probe ends it despite timer errors
_PATIENCE: Final = 1.5 * _PROBE
_ATTEMPT: Final = 1 / 6
_ATTEMPT_MAX: Final = 1 / 2
_PAUSE: Final = 1 / 10
_WATCH_RENEWAL_S: Final = 30.0
_MIN_WAIT_S: Final = 0.001

_NO_NODE: Final = -101
_OUTCOME_UNKNOWN: Final = frozenset({-4, -7})
"""ConnectionLoss and OperationTimeout, when a server itself reports them."""
_SESSION_EXPIRED: Final = -112
_SESSION_MOVED: Final = -118

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ChrootMissing(ConfigError):
    """Raised if the chroot of the connect string does not exist.

    It is wrong, or belongs to a cluster whose brokers have not started yet.
    """


class _AttachFailed(ConsumerdError):
    """The attempt to connect to one server and establish the session there failed."""


class _HungUp(_AttachFailed):
    """The server closed the connection instead of greeting.

    It is not ready, or has seen fewer transactions than this client.
    """


class _Refused(_AttachFailed):
    """The server refuses our identity, or there are no credentials to show.

    ``certain`` is False if it only closed the connection.
    """

    def __init__(self, cause: LoginFailed) -> None:
        super().__init__(str(cause))
        self.certain = cause.certain


class _Expired(_AttachFailed):
    """The ensemble says that our session is over."""


class ZkSession:
    """A ZooKeeper session over changing connections; it is kept alive while :meth:`run` runs.

    The session connects and reconnects only while :meth:`run` runs. Other methods may be called from any task.

    Args:
        timeout_s: Session timeout to ask the server for, in seconds.
        call_timeout_s: Longest wait of each read or write, in seconds.
        now: Clock of the lease, in seconds.
        random: Returns numbers in ``[0, 1)``, for the order of servers and the pauses between attempts to connect.
        credentials: Sent on every connection.
        sasl: Authenticates every connection by SASL; None for none.
        tls: TLS to the servers; None for plain text.
    """

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
        sasl: SaslTokens | None = None,
        tls: ssl.SSLContext | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._servers = sorted(servers, key=lambda _: random())
        self._codec = codec
        self._asked_timeout_s = timeout_s
        self._call_timeout_s = call_timeout_s
        self._now = now
        self._random = random
        self._login = ConnectionLogin(codec, credentials=credentials, sasl=sasl)
        self._tls = tls
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
        self._refusing = RefusingServers(random)
        self._failures: dict[Server, _AttachFailed] = {}
        self._next_server = 0
        self._away_since: float | None = None
        self._watches_renewed_at = 0.0
        self.watches = WatchTable(arm=self._arm, soon=lambda callback: asyncio.get_running_loop().call_soon(callback))
        """Standing watches of the session, which are set again after each reconnect."""

    # -- what is known

    @property
    def state(self) -> SessionState:
        """State of the session now; each access computes the lease's phase."""
        return self._describe(self._now())

    def _describe(self, now: float) -> SessionState:
        return SessionState(
            epoch=self._epoch,
            session_id=self._identity.session_id,
            timeout_s=self._timeout_s,
            phase=LeasePhase.NONE if self._lease is None else self._lease.phase(now),
            connected=self._connection is not None,
            connections=self._connections,
        )

    async def wait_state(self, seen: SessionState) -> SessionState:
        """Wait until the session's state differs from ``seen``, and return it. No timeout.

        The passing of time counts, too: a lease that goes from FRESH to PAUSED or SUSPENDED ends the wait.
        """
        # one reading of the clock for both: between two, the last phase may have begun, which has no end to wait for
        while (state := self._describe(now := self._now())) == seen:
            changed = self._changed
            wait_s = math.inf if self._lease is None else max(_MIN_WAIT_S, self._lease.next_change_s(now))
            await wait_set(changed, wait_s)
        return state

    async def wait_connected(self, *, patient: bool = False) -> None:
        """Wait until there is a connection to a ZooKeeper server. No timeout.

        Raises IdentityRefused, and ChrootMissing. After ChrootMissing the session exists, and the chroot may be created
        later.

        Args:
            patient: True to wait while servers refuse our identity. It is tried again, and may be mended meanwhile.
        """
        while self._connection is None:
            if self._refusal is not None and not (patient and isinstance(self._refusal, IdentityRefused)):
                raise self._refusal
            await self._changed.wait()
        if self._refusal is not None:
            raise self._refusal

    @property
    def why_away(self) -> str:
        """Reasons for which no server could be used last; empty while connected."""
        failures = {} if self._connection is not None else self._failures
        return "; ".join(f"{server}: {reason}" for server, reason in failures.items())

    # -- calls

    async def read(self, request: ZkRequest, what: str) -> ZkReply:
        """Send a read request and return the response; send it again if the connection fails.

        ``what`` names the request in errors. Raises NotConnected if there is no response within the call timeout.
        """
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
        """Send a write request once; return the response.

        Args:
            what: Name of the request in errors.
            epoch: Number of the session in which the request must be sent; None for any session.

        Raises SessionLost if the session is over; NotConnected if there was no connection within the call timeout, or
        the session has moved to another connection; the request then had no effect. Raises OutcomeUnknown if the
        request was sent and may have had an effect. After a cancellation the outcome is unknown, too.
        """
        sent = False
        try:
            async with timeout(self._call_timeout_s):
                connection = await self._connected(epoch)
                # there must be no await between the comparison of epochs in _connected and the write
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
        """Wait for a connection, of session ``epoch`` if given; the caller sets a timeout.

        Raises SessionLost.
        """
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
        """Return True unless the answer says that the session is over or has moved.

        Such a session makes the connection useless, so it is closed.
        """
        # several answers may say so; at the second one there may be a new session already
        if reply.error == _SESSION_EXPIRED and connection is self._connection:
            self._end_session()
        if reply.error in {_SESSION_EXPIRED, _SESSION_MOVED}:
            connection.abort(f"the session is no longer here (error {reply.error})")
            return False
        return True

    # -- the loop

    async def run(self) -> None:
        """Connect, send probes and reconnect, until cancelled or until :meth:`close` is called.

        A probe is a request that only ZooKeeper's leader can answer; its response renews the lease.
        """
        while not self._closing:
            await self._attend(await self._connect())

    async def close(self) -> None:
        """Ask the server to end the session; wait a third of its timeout at most.

        Without a connection, or without a response in that time, the session is left to expire. Idempotent.
        """
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

    def abandon(self) -> None:
        """Close the connection and never connect again; the server ends the session when it expires."""
        self._closing = True
        if self._connection is not None:
            self._connection.abort("abandoned")

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
        """Try the servers in turn, until one gives a connection. No timeout."""
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
                connection = await self._attach(server, bound_s)
            except _Expired:
                # try the same server again at once: it has just shown that it works
                continue
            except _AttachFailed as error:
                failures[server] = error
                attempts -= 1
                self._next_server = (self._next_server + 1) % len(self._servers)
            else:
                self._refusing.forget(server)
                return connection
        self._failures = failures
        self._report_away(failures)
        self._report_refusals(failures)
        self._doubt_history(failures)
        return None

    def _doubt_history(self, failures: dict[Server, _AttachFailed]) -> None:
        """Forget the last zxid if every server closes our connections after the session's end.

        A server refuses a client that has seen a higher zxid than its own. A server that lags behind refuses briefly.
        If refusals last longer than a session, the ensemble was created anew, and would refuse us forever.
        """
        over = self._lease is None or self._lease.age(self._now()) > self._lease.timeout_s
        if self._last_zxid and over and all(isinstance(error, _HungUp) for error in failures.values()):
            log.warning("zookeeper_history_forgotten", last_zxid=self._last_zxid)
            detail = "every server has seen less than we have: it was re-created, or restored from a backup"
            self._hooks.trouble(Trouble.ZOOKEEPER_HISTORY_FORGOTTEN, detail)
            self._last_zxid = 0

    async def _attach(self, server: Server, bound_s: float) -> ZkConnection:
        """Connect to a server; resume the session there or begin one. Raises _AttachFailed."""
        if (past := self._refusing.find(server, self._now())) is not None:
            raise _Refused(past)
        loop = asyncio.get_running_loop()
        listener = Listener(answered=self._on_answer, changed=self._on_change, lost=self._on_lost)
        connection: ZkConnection | None = None
        greeted = False
        try:
            token = await self._login.prepare(server)  # it has a time limit of its own
            async with timeout(bound_s):
                _, connection = await loop.create_connection(
                    lambda: ZkConnection(self._now, listener),
                    server.host,
                    server.port,
                    ssl=self._tls,
                    server_hostname=server.host if self._tls is not None else None,
                )
                sent_at = self._now()
                welcome = await self._greet(connection)
                await self._login.authenticate(connection, token)
                rooted = await self._ask_root(connection)
            greeted = True
        except LoginFailed as error:
            self._refusing.note(server, error, self._now())
            raise _Refused(error) from error
        except TimeoutError as error:
            raise _AttachFailed(f"no answer within {bound_s:.1f} s") from error
        except (OSError, UnicodeError) as error:
            # UnicodeError: a malformed host name
            raise _AttachFailed(str(error) if self._tls is None else f"TLS: {error}") from error
        finally:
            if connection is not None and not greeted:
                connection.abort("not established")
        self._refusal = None
        if rooted.error == _NO_NODE:
            reason = f"the chroot {self._codec.root_path} does not exist: create it, or correct cluster.zookeeper"
            self._refuse(reason, server, ChrootMissing)
        self._establish(connection, server, welcome, sent_at)
        return connection

    async def _ask_root(self, connection: ZkConnection) -> ZkReply:
        """Send the first request after authentication: whether the chroot exists."""
        reply = await connection.submit(self._codec.root())
        if reply is None:
            raise _AttachFailed(connection.reason)
        if reply.error == SASL_REQUIRED:
            raise LoginFailed("it serves no client without SASL: set cluster.zookeeper_sasl")
        return reply

    async def _greet(self, connection: ZkConnection) -> Welcome:
        frame = await connection.greet(
            self._codec.connect(self._identity, timeout_s=self._asked_timeout_s, last_zxid=self._last_zxid)
        )
        if frame is None:
            raise _HungUp(
                f"{connection.reason}, and not greeted: it is not ready, or it "
                + ("has TLS only (cluster.zookeeper_tls)" if self._tls is None else "wants a client certificate")
            )
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

    def _refuse(self, reason: str, server: Server, kind: type[ConfigError]) -> None:
        if self._refusal is None:
            # a chroot may be created later; callers that cannot wait for it report it to the user
            report = log.warning if kind is ChrootMissing else log.error
            report("zookeeper_unusable", reason=reason, server=str(server))
            self._hooks.trouble(Trouble.ZOOKEEPER_UNUSABLE, reason)
        self._refusal = kind(f"ZooKeeper {','.join(map(str, self._servers))}: {reason}")
        self._notify()

    def _establish(self, connection: ZkConnection, server: Server, welcome: Welcome, sent_at: float) -> None:
        """Make a greeted connection the session's own; from here on it has the session's epoch."""
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
            # it ended after its last answer: the session is known, and has no connection
            return
        self._connection = connection
        self._connections += 1
        self._renew_watches()
        self._notify()

    def _renew_watches(self) -> None:
        self._watches_renewed_at = self._now()
        self.watches.renew()

    def _end_session(self) -> None:
        """End the session; the next established connection begins an epoch."""
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
            # all watches are renewed from time to time, so an unreadable event only costs a delay
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

    def _report_refusals(self, failures: dict[Server, _AttachFailed]) -> None:
        """Report that no server takes our identity.

        Servers that only close the connection may have gone down: they are reported from the second round on.
        """
        for server, error in failures.items():
            if isinstance(error, _Refused) and (error.certain or self._refusing.count(server) > 1):
                self._refuse(str(error), server, IdentityRefused)
                return

    def _report_away(self, failures: dict[Server, _AttachFailed]) -> None:
        """Log once that no server can be reached; a lost connection was logged already."""
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
