# SPDX-License-Identifier: Apache-2.0
"""A ZooKeeper in memory: one tree, many sessions, on a (virtual) event loop's time, deterministic by seed.

What it keeps of the real one, since protocols rest on it:

- One session's requests take effect, and are answered, in the order in which they were sent; a watch event arrives
  before the answer to any later read that shows the change.
- A write whose connection breaks may or may not have taken effect.
- Ephemeral nodes live as long as their session, which the server ends some time after the client was last heard. The
  client learns of it when it is connected again. Its lease, the real one, runs from the last answered probe, which is earlier.

Times are those of the running loop: use :func:`tests.support.virtual_time.run`. Where clients live in processes with loops
of their own (:mod:`tests.support.simulation.processes`), the server and the network are given theirs.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from consumerd.aio.timeouts import timeout, timeout_at
from consumerd.errors import CoordinationError, SessionLost
from consumerd.model import NO_SESSION, SessionEpoch
from consumerd.zk.layout import topic_path
from consumerd.zk.lease import Lease
from consumerd.zk.port import (
    ANY_VERSION,
    Acl,
    BadVersion,
    CheckVersion,
    Create,
    Delete,
    LeasePhase,
    MultiFailed,
    NodeExists,
    NoNode,
    NotConnected,
    NotEmpty,
    NotPermitted,
    Operation,
    OutcomeUnknown,
    Right,
    SessionState,
    SetData,
    Stat,
    Watch,
    WatchKind,
)

T = TypeVar("T")

_ALL = Right.READ | Right.WRITE | Right.CREATE | Right.DELETE | Right.ADMIN
_INSTANT_S = 1e-7
"""Keeps one request or event behind the one before it: timers for the same moment run in any order."""


class _Broken(Exception):
    """The connection broke while a request was in flight."""


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int
    owner: int = 0
    version: int = 0
    cversion: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            pzxid=self.pzxid,
            ctime_ms=self.ctime_ms,
            mtime_ms=self.mtime_ms,
            version=self.version,
            cversion=self.cversion,
            ephemeral_owner=self.owner,
            data_length=len(self.data),
            num_children=len(self.children),
        )


class FakeZooKeeper:
    """The server: its tree, its sessions. The synchronous methods are for scenarios, which act without a session.

    ``latency_s`` bounds each way of each request. ``repeats`` is how often a watch fires once more, some time later, though
    nothing has changed. ``loop`` is where the server and the network live, if not in the running one.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        latency_s: tuple[float, float] = (0.0005, 0.002),
        repeats: float = 0.0,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.latency_s = latency_s
        self.repeats = repeats
        self.writer = 0
        """The session whose request is being carried out; 0: none."""
        self._loop = loop
        self._denied: dict[str, tuple[Right, frozenset[str] | None]] = {}
        """The rights that a node denies, and the clients that it denies them to; None: to all."""
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0, 0, 0)}
        self._zxid = 0
        self._sessions: dict[int, set[str]] = {}
        """The ephemeral nodes of each session that is alive."""
        self._last_session = 0x1000
        self.names_of_sessions: dict[int, str] = {}
        self._clients: list[FakeZkClient] = []
        self.on_change: Callable[[str], None] = lambda path: None
        """Called with each path that is created, changed or deleted, after the fact."""
        self.on_session: Callable[[], None] = lambda: None
        """Called when a client's session or connection may have changed."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where the server and the network live."""
        return self._loop or asyncio.get_running_loop()

    def client(self, name: str, *, session_timeout_s: float = 6.0, call_timeout_s: float = 2.0) -> FakeZkClient:
        """Return a client that is not connected yet."""
        client = FakeZkClient(self, name, session_timeout_s=session_timeout_s, call_timeout_s=call_timeout_s)
        self._clients.append(client)
        return client

    # -- what scenarios do without a session

    def put(self, path: str, data: bytes = b"") -> None:
        """Create a persistent node with what is missing above it, or set its data."""
        if path in self._nodes:
            self.apply_set(path, data, ANY_VERSION)
            return
        self._make_parents(path)
        self.apply_create(path, data, 0)

    def put_topic(self, topic: str, czxid: int) -> None:
        """Create a topic's node as the transaction ``czxid`` would have made it; what follows is younger."""
        self.put(topic_path(topic))
        self._nodes[topic_path(topic)].czxid = czxid
        self._zxid = max(self._zxid, czxid)

    def remove(self, path: str) -> None:
        """Delete a node and everything below it, if it is there."""
        node = self._nodes.get(path)
        if node is None:
            return
        for child in sorted(node.children):
            self.remove(f"{path}/{child}")
        self.apply_delete(path, ANY_VERSION)

    def deny(self, path: str, rights: Right, *clients: str) -> None:
        """Deny rights on a node to the clients of these names, or to all. Scenarios themselves are never denied."""
        self._denied[path] = rights, frozenset(clients) or None

    def grant(self, path: str) -> None:
        """Open a node to everybody again."""
        self._denied.pop(path, None)

    def read_acl(self, path: str) -> tuple[Acl, ...]:
        """Return a node's ACL. Raises NoNode."""
        self.get_node(path)
        if path not in self._denied:
            return (Acl("world", "anyone", _ALL),)
        return Acl("sasl", "owner", _ALL), Acl("world", "anyone", _ALL & ~self._denied[path][0])

    def _require(self, path: str, right: Right) -> None:
        """Refuse what the session whose request this is may not do."""
        rights, clients = self._denied.get(path, (Right(0), None))
        if self.writer and right in rights and (clients is None or self.names_of_sessions[self.writer] in clients):
            raise NotPermitted(f"{path}: NoAuth", path)

    def read(self, path: str) -> tuple[bytes, Stat] | None:
        """Return data and stat, or None."""
        node = self._nodes.get(path)
        return None if node is None else (node.data, node.stat())

    def names(self, path: str) -> list[str]:
        """Return the names of the children, sorted; none where there is no such node."""
        node = self._nodes.get(path)
        return [] if node is None else sorted(node.children)

    def is_alive(self, session_id: int) -> bool:
        """Whether the server still keeps the session."""
        return session_id in self._sessions

    # -- sessions

    def open_session(self, name: str) -> int:
        """Begin a session of the client of that name and return its id."""
        self._last_session += 1
        self.names_of_sessions[self._last_session] = name
        self._sessions[self._last_session] = set()
        return self._last_session

    def end_session(self, session_id: int) -> None:
        """Expire or close a session: its ephemeral nodes go."""
        for path in sorted(self._sessions.pop(session_id, ())):
            self.apply_delete(path, ANY_VERSION)

    # -- the tree

    def get_node(self, path: str) -> _Node:
        """Return a node. Raises NoNode."""
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def apply_create(self, path: str, data: bytes, owner: int) -> None:
        """Create a node, ephemeral if it has an owner."""
        parent, name = _split(path)
        above = self.get_node(parent)
        self._require(parent, Right.CREATE)
        if path in self._nodes:
            raise NodeExists(path)
        now = self._tick()
        self._nodes[path] = _Node(data, self._zxid, self._zxid, self._zxid, now, now, owner)
        above.children.add(name)
        above.cversion += 1
        above.pzxid = self._zxid
        if owner:
            self._sessions[owner].add(path)
        self._notify((path, WatchKind.DATA), (path, WatchKind.CHILDREN), (parent, WatchKind.CHILDREN))
        self.on_change(path)

    def apply_set(self, path: str, data: bytes, version: int) -> Stat:
        """Set the data of a node."""
        node = self.get_node(path)
        self._require(path, Right.WRITE)
        _check_version(path, node, version)
        node.mtime_ms = self._tick()
        node.data, node.mzxid = data, self._zxid
        node.version += 1
        self._notify((path, WatchKind.DATA))
        self.on_change(path)
        return node.stat()

    def apply_delete(self, path: str, version: int) -> None:
        """Delete a node without children."""
        node = self.get_node(path)
        self._require(_split(path)[0], Right.DELETE)
        _check_version(path, node, version)
        if node.children:
            raise NotEmpty(path)
        parent, name = _split(path)
        above = self._nodes[parent]
        self._tick()
        del self._nodes[path]
        above.children.discard(name)
        above.cversion += 1
        above.pzxid = self._zxid
        if node.owner in self._sessions:
            self._sessions[node.owner].discard(path)
        self._notify((path, WatchKind.DATA), (path, WatchKind.CHILDREN), (parent, WatchKind.CHILDREN))
        self.on_change(path)

    def apply_multi(self, operations: Sequence[Operation], owner: int) -> list[Stat | None]:
        """Do all or none."""
        with self._all_or_nothing(operations):
            return [self._apply_one(index, operation, owner) for index, operation in enumerate(operations)]

    def _apply_one(self, index: int, operation: Operation, owner: int) -> Stat | None:
        try:
            match operation:
                case Create(path, data, ephemeral):
                    self.apply_create(path, data, owner if ephemeral else 0)
                case SetData(path, data, version):
                    return self.apply_set(path, data, version)
                case Delete(path, version):
                    self.apply_delete(path, version)
                case CheckVersion(path, version):
                    _check_version(path, self.get_node(path), version)
        except CoordinationError as error:
            raise MultiFailed(index, error) from error
        return None

    @contextmanager
    def _all_or_nothing(self, operations: Sequence[Operation]) -> Iterator[None]:
        touched = {path: None for operation in operations for path in (operation.path, _split(operation.path)[0])}
        nodes = {path: _copy(self._nodes.get(path)) for path in touched}
        sessions = {session: set(paths) for session, paths in self._sessions.items()}
        clients, self._clients = self._clients, []  # nobody hears of what may be undone
        changed: list[str] = []
        hook, self.on_change = self.on_change, changed.append
        try:
            yield
        except MultiFailed:
            self._sessions = sessions
            for path, node in nodes.items():
                if node is None:
                    self._nodes.pop(path, None)
                else:
                    self._nodes[path] = node
            changed.clear()
            raise
        finally:
            self._clients, self.on_change = clients, hook
            for path in changed:
                parent, _ = _split(path)
                self._notify((path, WatchKind.DATA), (path, WatchKind.CHILDREN), (parent, WatchKind.CHILDREN))
                self.on_change(path)

    def _make_parents(self, path: str) -> None:
        parent, _ = _split(path)
        if parent not in self._nodes:
            self._make_parents(parent)
            self.apply_create(parent, b"", 0)

    def apply_ensure(self, path: str, data: bytes) -> None:
        """Create a node and what is missing above it, if it is not there."""
        if path not in self._nodes:
            self._make_parents(path)
            self.apply_create(path, data, 0)

    def _tick(self) -> int:
        self._zxid += 1
        return 1_700_000_000_000 + self._zxid

    def _notify(self, *changes: tuple[str, WatchKind]) -> None:
        for client in self._clients:
            client.notify(changes)

    def draw_latency(self) -> float:
        """Draw the time of one way."""
        return self.random.uniform(*self.latency_s)


class _StandingWatch:
    def __init__(self, client: FakeZkClient, key: tuple[str, WatchKind], dirty: Callable[[], None]) -> None:
        self._client = client
        self._key = key
        self._dirty = dirty
        self._loop = asyncio.get_running_loop()
        self._pending = False
        self._closed = False

    def close(self) -> None:
        self._closed = True
        watches = self._client.watches.get(self._key, [])
        if self in watches:
            watches.remove(self)

    def fire(self) -> None:
        """Deliver an event, unless one is on its way."""
        if not self._pending:
            self._pending = True
            self._client.call_inbound(lambda: self._loop.call_soon(self._deliver))
            self._client.fire_again(self)

    def renew(self) -> None:
        """Deliver an event over a new connection, whatever was on its way in the old one."""
        self._pending = False
        self.fire()

    def _deliver(self) -> None:
        self._pending = False
        if not self._closed and self._client.state.connected:
            self._dirty()


class FakeZkClient:
    """A ``ZkClient``. ``connect``, ``cut``, ``heal``, ``expire`` and ``close`` are for scenarios."""

    def __init__(self, server: FakeZooKeeper, name: str, *, session_timeout_s: float, call_timeout_s: float) -> None:
        self.name = name
        self._server = server
        self._timeout_s = session_timeout_s
        self._call_timeout_s = call_timeout_s
        self._session_id = 0
        self._epoch = NO_SESSION
        self._connected = False
        self._connections = 0
        self._closed = False
        self._lease = Lease(session_timeout_s, 0.0)
        """Not renewed while not connected or ageing."""
        self.news_late_s = 0.0
        """How much later than anything else the news of a new session arrives: whoever waits for it is held up."""
        self._ageing = False
        """Connected, yet no probe is answered."""
        self._lossy = False
        """Connected, yet nothing gets through."""
        self._expiry: asyncio.TimerHandle | None = None
        self._outbound_at = 0.0
        self._inbound_at = 0.0
        self._in_flight: dict[asyncio.Future[object], None] = {}
        self._changed = asyncio.Event()
        self.watches: dict[tuple[str, WatchKind], list[_StandingWatch]] = {}

    # -- what scenarios do

    def connect(self) -> None:
        """Connect for the first time, or again: the same session if the server still has it, else a new one."""
        if self._connected or self._closed:
            return
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if not self._server.is_alive(self._session_id):
            self._session_id = self._server.open_session(self.name)
            self._epoch = SessionEpoch(self._epoch + 1)
            self._lease = Lease(self._timeout_s, self._server.loop.time())
        else:
            self._lease.renew(self._server.loop.time())
        self._connected = True
        self._connections += 1
        self._wake()
        for _, watches in sorted(self.watches.items(), key=_watched):  # set in the order of somebody's sets
            for watch in list(watches):
                watch.renew()

    heal = connect

    def cut(self, *, heard_ago_s: float | None = None) -> None:
        """Break the connection; the server ends the session when its timeout passes.

        ``heard_ago_s``: how long ago the last answered probe was sent (by chance, up to a sixth of the timeout).
        """
        if not self._connected:
            return
        if not self._ageing:
            self._age(heard_ago_s)
        self._connected = self._ageing = self._lossy = False
        for future in self._in_flight:
            if not future.done():
                future.set_exception(_Broken())
        self._in_flight.clear()
        self._wake()

    def _age(self, heard_ago_s: float | None = None) -> None:
        """From now on no probe is answered."""
        chance, now = self._server.random, self._server.loop.time()
        if heard_ago_s is None:
            heard_ago_s = chance.uniform(0, self._timeout_s / 6)
        # no probe is older than the connection, which the server has heard of, too
        heard_at = max(now - heard_ago_s, now - self._lease.age(now))
        self._lease.renew(heard_at)
        self._ageing = True
        # the server heard the last probe no earlier than it was sent, and looks for the dead in ticks
        ends = max(now, heard_at + self._timeout_s + chance.uniform(0, self._timeout_s / 3))
        session = self._session_id
        self._expiry = self._server.loop.call_at(ends, lambda: self._server.end_session(session))

    def silence(self) -> None:
        """Let nothing through any more, either way, though nobody closes the connection; ends by :meth:`cut`."""
        if self._connected and not self._ageing:
            self._age()
            self._lossy = True
            self._wake()  # whoever waits for the lease's next phase looks at the clock again

    def stop(self) -> None:
        """Send no probe any more: its process is stopped. What the server sends waits in the socket."""
        if self._connected and not self._ageing:
            self._age()

    def proceed(self) -> None:
        """Its process goes on: a probe is answered, or it learns that the session is over."""
        if self._ageing and not self._lossy:
            self._wake()
            loop = self._server.loop
            sent_at = loop.time()
            loop.call_at(sent_at + 2 * self._server.draw_latency(), lambda: self._probe(sent_at))

    def _probe(self, sent_at: float) -> None:
        if not self._ageing or self._lossy:
            return
        if self._server.is_alive(self._session_id):
            self._lease.renew(sent_at)
            self._ageing = False
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None
            self._wake()
            return
        self.cut()
        loop = self._server.loop
        loop.call_at(loop.time() + 2 * self._server.draw_latency(), self.connect)

    def expire(self) -> None:
        """End the session as if it had been silent for its whole timeout, and begin a new one."""
        was_connected = self._connected
        self.lose_session()
        if was_connected:
            self.connect()

    def lose_session(self) -> None:
        """Break the connection, and end the session as if it had been silent for its whole timeout."""
        self.cut(heard_ago_s=self._timeout_s)
        self._lease = Lease(self._timeout_s, self._server.loop.time() - self._timeout_s)
        self._server.end_session(self._session_id)

    def close(self) -> None:
        """End the session and the client, as a clean shutdown does."""
        self.cut()
        if self._expiry is not None:
            self._expiry.cancel()
        self._closed = True
        self._server.end_session(self._session_id)

    def crash(self) -> None:
        """Break the connection for good: the session ends by its timeout."""
        self.cut()
        self._closed = True

    # -- the session

    @property
    def state(self) -> SessionState:
        """The session as known at this moment."""
        return SessionState(
            epoch=self._epoch,
            session_id=self._session_id,
            timeout_s=self._timeout_s,
            phase=self._phase(),
            connected=self._connected,
            connections=self._connections,
        )

    def _phase(self) -> LeasePhase:
        if self._epoch == NO_SESSION:
            return LeasePhase.NONE
        if self._connected and not self._ageing:
            return LeasePhase.FRESH  # as long as nothing is amiss, each probe is answered
        return self._lease.phase(self._server.loop.time())

    async def wait_state(self, seen: SessionState) -> SessionState:
        """Wait until the state differs from ``seen``."""
        loop = asyncio.get_running_loop()
        while (state := self.state) == seen:
            changed = self._changed
            ahead = math.inf if self._connected and not self._ageing else self._lease.next_change_s(loop.time())
            delay = None if math.isinf(ahead) else ahead + 1e-6
            try:
                async with timeout(delay):
                    await changed.wait()
            except TimeoutError:
                continue
        if self.news_late_s and state.epoch != seen.epoch:
            await asyncio.sleep(self.news_late_s)
            state = self.state
        return state

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._server.on_session()

    # -- reads

    async def get(self, path: str) -> tuple[bytes, Stat]:
        """Return data and stat."""

        def work() -> tuple[bytes, Stat]:
            node = self._server.get_node(path)
            return node.data, node.stat()

        return await self._request(work)

    async def find(self, path: str) -> tuple[bytes, Stat] | None:
        """Return data and stat, or None."""
        try:
            return await self.get(path)
        except NoNode:
            return None

    async def exists(self, path: str) -> Stat | None:
        """Return the stat, or None."""
        found = await self.find(path)
        return None if found is None else found[1]

    async def children(self, path: str) -> tuple[list[str], Stat]:
        """Return the names of the children and the stat."""

        def work() -> tuple[list[str], Stat]:
            node = self._server.get_node(path)
            return sorted(node.children), node.stat()

        return await self._request(work)

    @property
    def identity(self) -> str:
        """Who this client is to ACLs."""
        return f"sasl:{self.name}"

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        """Return a node's ACL."""
        return await self._request(lambda: self._server.read_acl(path))

    # -- writes

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, epoch: SessionEpoch | None = None
    ) -> None:
        """Create a node."""
        await self._write(lambda owner: self._server.apply_create(path, data, owner if ephemeral else 0), epoch)

    async def set(
        self, path: str, data: bytes, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None
    ) -> Stat:
        """Set the data."""
        return await self._write(lambda _: self._server.apply_set(path, data, version), epoch)

    async def delete(self, path: str, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None) -> None:
        """Delete a node."""
        await self._write(lambda _: self._server.apply_delete(path, version), epoch)

    async def multi(self, operations: Sequence[Operation], *, epoch: SessionEpoch | None = None) -> list[Stat | None]:
        """Do all or none."""
        return await self._write(lambda owner: self._server.apply_multi(operations, owner), epoch)

    async def ensure_path(self, path: str, data: bytes = b"") -> None:
        """Create a path."""
        await self._write(lambda _: self._server.apply_ensure(path, data), None)

    def watch(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> Watch:
        """Call ``dirty`` after each change."""
        watch = _StandingWatch(self, (path, kind), dirty)
        self.watches.setdefault((path, kind), []).append(watch)
        return watch

    def notify(self, changes: Sequence[tuple[str, WatchKind]]) -> None:
        """Tell the watches of what changed; a client that is not connected hears nothing."""
        if self._connected:
            for change in changes:
                for watch in list(self.watches.get(change, ())):
                    watch.fire()

    # -- requests

    def call_inbound(self, deliver: Callable[[], object]) -> None:
        """Call back after one way, in the order of everything else that this client is told."""
        loop = self._server.loop
        self._inbound_at = max(loop.time() + self._server.draw_latency(), self._inbound_at + _INSTANT_S)
        loop.call_at(self._inbound_at, lambda: None if self._lossy else deliver())

    def fire_again(self, watch: _StandingWatch) -> None:
        """Perhaps fire a watch once more later, without a reason."""
        chance = self._server.random
        if self._server.repeats and chance.random() < self._server.repeats:
            loop = self._server.loop
            loop.call_at(loop.time() + chance.uniform(0, 1), watch.fire)

    async def _write(self, work: Callable[[int], T], epoch: SessionEpoch | None) -> T:
        deadline = asyncio.get_running_loop().time() + self._call_timeout_s
        await self._wait_connected(deadline)
        if epoch is not None and epoch != self._epoch:
            raise SessionLost(f"epoch {epoch} is over, now {self._epoch}")
        session = self._session_id
        try:
            return await self._send(lambda: work(session))
        except _Broken:
            raise OutcomeUnknown("the connection broke") from None

    async def _request(self, work: Callable[[], T]) -> T:
        deadline = asyncio.get_running_loop().time() + self._call_timeout_s
        while True:
            await self._wait_connected(deadline)
            try:
                return await self._send(work)
            except _Broken:
                continue

    async def _wait_connected(self, deadline: float) -> None:
        while not self._connected:
            if self._closed:
                raise NotConnected("the client is closed")
            changed = self._changed
            try:
                async with timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                raise NotConnected(f"no connection within {self._call_timeout_s} s") from None

    async def _send(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        in_flight = self._in_flight
        in_flight[answer] = None  # type: ignore[index]  # only ever broken or discarded there
        session = self._session_id
        self._outbound_at = max(loop.time() + self._server.draw_latency(), self._outbound_at + _INSTANT_S)

        lost = self._lossy

        def arrive() -> None:
            if lost:
                return
            # a request that was sent before the connection broke may still arrive, if its session is there
            if not self._server.is_alive(session) or (answer.done() and self._server.random.random() < 0.5):
                return
            self._server.writer = session
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - a scenario's fault is the caller's to show, too
                refusal = error
                self.call_inbound(lambda: None if answer.done() else answer.set_exception(refusal))
            else:
                self.call_inbound(lambda: None if answer.done() else answer.set_result(result))
            finally:
                self._server.writer = 0

        self._server.loop.call_at(self._outbound_at, arrive)
        try:
            return await answer
        finally:
            in_flight.pop(answer, None)  # type: ignore[arg-type]  # as above


def _watched(item: tuple[tuple[str, WatchKind], object]) -> tuple[str, str]:
    (path, kind), _ = item
    return path, kind.name


def _copy(node: _Node | None) -> _Node | None:
    return None if node is None else replace(node, children=set(node.children))


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def _check_version(path: str, node: _Node, version: int) -> None:
    if version not in {ANY_VERSION, node.version}:
        raise BadVersion(f"{path}: version {node.version}, expected {version}")
