# SPDX-License-Identifier: Apache-2.0
"""Metadata of a cluster without ZooKeeper: nodes in memory and in a log.

Brokers of a cluster without ZooKeeper keep their metadata themselves (KIP-500). Here a :class:`MetadataStore` in the
brokers' process takes ZooKeeper's place: :meth:`MetadataStore.client` returns sessions that implement
:class:`~consumerd.zk.port.ZkClient`, so that topics, registrations and elections are handled by the same code. No
quorum and no raft log are modelled, and no client can read the nodes.

Persistent nodes are in ``metadata.log``: a JSON object per line, the newest of a path counts, and a line that a killed
process has left incomplete is ignored. A write returns when its line is in the file. It outlives a kill of the process,
not a crash of the machine. The log is compacted when it is opened.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from consumerd.errors import ConfigError, SessionLost
from consumerd.model import SessionEpoch
from consumerd.zk.port import (
    ANY_VERSION,
    Acl,
    BadVersion,
    LeasePhase,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    RequestRefused,
    SessionState,
    Stat,
    Watch,
    WatchKind,
)

_EPOCH: Final = SessionEpoch(1)
LOG_NAME: Final = "metadata.log"


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int = 0
    owner: int = 0
    """The session of an ephemeral node, otherwise 0."""
    pzxid: int = 0
    cversion: int = 0


@dataclass(slots=True, eq=False)
class _Watch:
    """A standing watch; it is told once per turn of the event loop."""

    path: str
    kind: WatchKind
    dirty: Callable[[], None]
    forget: Callable[[_Watch], None]
    is_told: bool = field(default=False, init=False)
    is_closed: bool = field(default=False, init=False)

    def tell(self) -> None:
        """Report a change soon."""
        if not self.is_told:
            self.is_told = True
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        self.is_told = False
        if not self.is_closed:
            self.dirty()

    def close(self) -> None:
        """See Watch."""
        self.is_closed = True
        self.forget(self)


class MetadataStore:
    """Nodes like ZooKeeper's, in memory and in a log, for a cluster without ZooKeeper.

    Its ``async with`` block opens and closes the log. For use on one event loop.
    """

    def __init__(self, directory: Path, *, now_ms: Callable[[], int]) -> None:
        self._directory = directory
        self._now_ms = now_ms
        self._nodes: dict[str, _Node] = {"": _Node(b"", 0, 0, 0, 0)}
        self._children: dict[str, set[str]] = {"": set()}
        self._zxid = 0
        self._sessions = 0
        self._watches: set[_Watch] = set()
        self._file: int | None = None
        self._writing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Read the nodes from the log. Raises ConfigError if it cannot be used."""
        try:
            self._file = await asyncio.to_thread(self._open)
        except OSError as error:
            raise ConfigError(f"{self._directory}: the metadata cannot be read: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)

    def client(self, *, session_timeout_s: float) -> MetadataClient:
        """Return a new session, through which a broker reads and writes nodes."""
        self._sessions += 1
        return MetadataClient(self, self._sessions, session_timeout_s)

    # -- reading

    def find(self, path: str) -> tuple[bytes, Stat] | None:
        """Return a node's data and stat; None if the node does not exist."""
        node = self._nodes.get(_key(path))
        if node is None:
            return None
        stat = Stat(
            czxid=node.czxid,
            mzxid=node.mzxid,
            pzxid=node.pzxid,
            ctime_ms=node.ctime_ms,
            mtime_ms=node.mtime_ms,
            version=node.version,
            cversion=node.cversion,
            ephemeral_owner=node.owner,
            data_length=len(node.data),
            num_children=len(self._children[_key(path)]),
        )
        return node.data, stat

    def children(self, path: str) -> list[str]:
        """Return the sorted names of an existing node's children; empty if there are none."""
        return sorted(self._children[_key(path)])

    def watch(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> Watch:
        """Call ``dirty`` after each change of a node, until the returned watch is closed.

        ``kind`` says which changes count: those of the node's data or those of its children.
        """
        watch = _Watch(_key(path), kind, dirty, self._watches.discard)
        self._watches.add(watch)
        return watch

    # -- writing

    async def create(self, path: str, data: bytes, *, owner: int) -> None:
        """Create a node. Raises NodeExists, or NoNode if its parent is missing.

        ``owner`` is the id of the session that owns an ephemeral node, 0 for a persistent node.
        """
        key = _key(path)
        parent, _, name = key.rpartition("/")
        if key in self._nodes:
            raise NodeExists(f"create {path}: the node exists")
        if parent not in self._nodes:
            raise NoNode(f"create {path}: there is no parent")
        zxid, now_ms = self._next(), self._now_ms()
        self._nodes[key] = _Node(data, zxid, zxid, now_ms, now_ms, owner=owner, pzxid=zxid)
        self._children[key] = set()
        self._children[parent].add(name)
        self._note_children(parent, zxid)
        self._tell(key, WatchKind.DATA, WatchKind.CHILDREN)
        await self._write(key)

    async def set(self, path: str, data: bytes, *, version: int) -> Stat:
        """Replace a node's data; return its new stat. Raises NoNode.

        Raises BadVersion if ``version`` is neither the node's version nor -1 (any).
        """
        node = self._get(path, "set", version)
        node.data, node.mzxid, node.mtime_ms = data, self._next(), self._now_ms()
        node.version += 1
        self._tell(_key(path), WatchKind.DATA)
        found = self.find(path)
        assert found is not None
        await self._write(_key(path))
        return found[1]

    async def delete(self, path: str, *, version: int) -> None:
        """Delete a node. Raises NoNode, and NotEmpty if it has children.

        Raises BadVersion if ``version`` is neither the node's version nor -1 (any).
        """
        node, key = self._get(path, "delete", version), _key(path)
        if self._children[key]:
            raise NotEmpty(f"delete {path}: the node has children")
        self._remove(key)
        if not node.owner:
            await self._append({"path": key, "gone": True})

    def end_session(self, session: int) -> None:
        """Delete the ephemeral nodes that the session with this id owns."""
        for key in [key for key, node in self._nodes.items() if node.owner == session]:
            self._remove(key)

    # -- inside

    def _next(self) -> int:
        self._zxid += 1
        return self._zxid

    def _get(self, path: str, what: str, version: int) -> _Node:
        node = self._nodes.get(_key(path))
        if node is None:
            raise NoNode(f"{what} {path}: there is no such node")
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(f"{what} {path}: the version is {node.version}, expected {version}")
        return node

    def _remove(self, key: str) -> None:
        parent, _, name = key.rpartition("/")
        del self._nodes[key], self._children[key]
        self._children[parent].discard(name)
        self._note_children(parent, self._next())
        self._tell(key, WatchKind.DATA, WatchKind.CHILDREN)

    def _note_children(self, parent: str, zxid: int) -> None:
        node = self._nodes[parent]
        node.pzxid, node.cversion = zxid, node.cversion + 1
        self._tell(parent, WatchKind.CHILDREN)

    def _tell(self, key: str, *kinds: WatchKind) -> None:
        for watch in self._watches:
            if watch.path == key and watch.kind in kinds:
                watch.tell()

    async def _write(self, key: str) -> None:
        """Write a node's newest state, unless its session owns it."""
        node = self._nodes[key]
        if not node.owner:
            await self._append(_line(key, node))

    async def _append(self, line: dict[str, object]) -> None:
        data = json.dumps(line).encode() + b"\n"
        async with self._writing:  # in the order of the changes
            assert self._file is not None
            await asyncio.to_thread(os.write, self._file, data)

    def _open(self) -> int:
        """Read and compact the log; return its descriptor. Blocks. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / LOG_NAME
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for text in lines:
            try:
                self._replay(json.loads(text))
            except (ValueError, KeyError, TypeError):
                continue
        compacted = path.with_suffix(".compacted")
        with compacted.open("wb") as file:
            for key in sorted(self._nodes):
                if key:
                    file.write(json.dumps(_line(key, self._nodes[key])).encode() + b"\n")
        compacted.replace(path)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _replay(self, line: dict[str, object]) -> None:
        key = str(line["path"])
        parent, _, name = key.rpartition("/")
        if line.get("gone"):
            self._nodes.pop(key, None)
            self._children.pop(key, None)
            self._children[parent].discard(name)
            return
        numbers = {one: int(str(line[one])) for one in ("czxid", "mzxid", "ctime_ms", "mtime_ms", "version")}
        self._nodes[key] = _Node(base64.b64decode(str(line["data"])), **numbers)
        self._children.setdefault(key, set())
        self._children[parent].add(name)
        self._zxid = max(self._zxid, numbers["mzxid"])


class MetadataClient:
    """A session of a :class:`MetadataStore`, with the methods of a ZooKeeper session.

    Implements :class:`~consumerd.zk.port.ZkClient`. Its ``async with`` block ends the session.
    """

    identity: Final = "world:anyone"

    def __init__(self, store: MetadataStore, session: int, timeout_s: float) -> None:
        self._store = store
        self._watches: list[Watch] = []
        self._abandoned = False
        self._state = SessionState(
            epoch=_EPOCH,
            session_id=session,
            timeout_s=timeout_s,
            phase=LeasePhase.FRESH,
            connected=True,
            connections=1,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.close()
        if not self._abandoned:
            self._store.end_session(self._state.session_id)

    def abandon(self) -> None:
        """Stop using the session, and let it expire, as a killed broker does.

        Its ephemeral nodes are deleted after the session timeout.
        """
        self._abandoned = True
        loop, store, session = asyncio.get_running_loop(), self._store, self._state.session_id
        self._state = replace(self._state, connected=False, phase=LeasePhase.NONE)
        loop.call_later(self._state.timeout_s, store.end_session, session)

    @property
    def state(self) -> SessionState:
        """State of the session: connected, unless it was abandoned."""
        return self._state

    async def wait_state(self, seen: SessionState) -> SessionState:
        """Wait until the session's state differs from ``seen``; return it.

        The state does not change while the session is used.
        """
        if seen == self._state:
            await asyncio.Event().wait()
        return self._state

    async def get(self, path: str) -> tuple[bytes, Stat]:
        """Return a node's data and stat. Raises NoNode."""
        found = self._store.find(path)
        if found is None:
            raise NoNode(f"get {path}: there is no such node")
        return found

    async def find(self, path: str) -> tuple[bytes, Stat] | None:
        """Return a node's data and stat, or None if it does not exist."""
        return self._store.find(path)

    async def exists(self, path: str) -> Stat | None:
        """Return a node's stat, or None if it does not exist."""
        found = self._store.find(path)
        return None if found is None else found[1]

    async def children(self, path: str) -> tuple[list[str], Stat]:
        """Return the sorted names of a node's children, and its stat. Raises NoNode."""
        _, stat = await self.get(path)
        return self._store.children(path), stat

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        """Return an empty tuple: nodes of this store have no ACLs."""
        await self.get(path)
        return ()

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, epoch: SessionEpoch | None = None
    ) -> None:
        """Create a node, in this session if it is ephemeral. Raises NodeExists, NoNode (no parent)."""
        self._check(epoch)
        await self._store.create(path, data, owner=self._state.session_id if ephemeral else 0)

    async def set(
        self, path: str, data: bytes, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None
    ) -> Stat:
        """Replace a node's data; return its new stat. Raises NoNode, BadVersion."""
        self._check(epoch)
        return await self._store.set(path, data, version=version)

    async def delete(self, path: str, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None) -> None:
        """Delete a node, as :meth:`consumerd.zk.port.ZkClient.delete`. Raises NoNode, BadVersion, NotEmpty."""
        self._check(epoch)
        await self._store.delete(path, version=version)

    async def multi(self, operations: Sequence[Operation], *, epoch: SessionEpoch | None = None) -> list[Stat | None]:
        """Raise an error: this store has no transactions, and brokers need none."""
        self._check(epoch)
        raise RequestRefused(f"a multi of {len(operations)} operations: not supported without ZooKeeper")

    async def ensure_path(self, path: str, data: bytes = b"") -> None:
        """Create a persistent node and its missing ancestors; existing ones stay as they are."""
        parts = path.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            at = "/" + "/".join(parts[:end])
            if self._store.find(at) is None:
                await self.create(at, data if end == len(parts) else b"")

    def watch(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> Watch:
        """Call ``dirty`` after each change of a node, until the returned watch is closed.

        ``kind`` says which changes count: those of the node's data or those of its children.
        """
        watch = self._store.watch(path, kind, dirty)
        self._watches.append(watch)
        return watch

    def _check(self, epoch: SessionEpoch | None) -> None:
        if self._abandoned or epoch not in (None, _EPOCH):
            raise SessionLost("the session is over")


def _key(path: str) -> str:
    return path.rstrip("/")


def _line(key: str, node: _Node) -> dict[str, object]:
    return {
        "path": key,
        "data": base64.b64encode(node.data).decode(),
        "czxid": node.czxid,
        "mzxid": node.mzxid,
        "ctime_ms": node.ctime_ms,
        "mtime_ms": node.mtime_ms,
        "version": node.version,
    }
