# SPDX-License-Identifier: Apache-2.0
"""Interface to ZooKeeper: the operations that consumerd needs, and how sessions are identified.

Implemented by ``zk.aiozk_client`` over real servers and by ``tests.support.fake_zookeeper``. Paths are absolute and
without the chroot, which the implementation adds. Each call has a time limit, unless its docstring says "no timeout".

Sessions of this process are numbered: the *epoch* is 1 for the first, 2 after the first expiry. A write with an
``epoch`` is sent in that session or not at all. After :class:`OutcomeUnknown` a write may have been done or not: read
the nodes to find out. Implementations retry reads, never writes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from consumerd.errors import CoordinationError
from consumerd.model import SessionEpoch

ANY_VERSION: Final = -1


class RequestRefused(CoordinationError):
    """Raised if ZooKeeper answered with an error; the request had no effect."""


class NoNode(RequestRefused):
    """Raised if the znode does not exist, or the parent of one to be created."""


class NodeExists(RequestRefused):
    """Raised if the znode to be created exists already."""


class BadVersion(RequestRefused):
    """Raised if the znode's version differs from the one that the write requires."""


class NotEmpty(RequestRefused):
    """Raised if the znode to be deleted has children."""


class NotPermitted(RequestRefused):
    """Raised if an ACL does not permit the request.

    ``path`` is the node of the request. The ACL may be that of its parent, as for creating and deleting a node.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class NotConnected(CoordinationError):
    """Raised if there was no connection to ZooKeeper within the call's time limit; no effect."""


class OutcomeUnknown(CoordinationError):
    """Raised if a request was sent, and may or may not have taken effect.

    The connection broke, or the call's time limit passed, before the response came.
    """


class MultiFailed(RequestRefused):
    """Raised if a ``multi`` failed and had no effect.

    ``index`` is the number of its first failed operation, from 0; ``cause`` is that operation's error.
    """

    def __init__(self, index: int, cause: CoordinationError) -> None:
        super().__init__(f"operation {index} of a multi failed: {cause}")
        self.index = index
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """A znode's stat structure: versions, transactions, times.

    Times are in ms since the epoch; ``ephemeral_owner`` is 0 for a persistent node.
    """

    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int


@dataclass(frozen=True, slots=True)
class Create:
    """Operation of a ``multi``: create the znode ``path``, whose parent must exist."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Operation of a ``multi``: set the data of the znode ``path``.

    It fails unless the znode has the version ``version``; the default accepts any version.
    """

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Operation of a ``multi``: delete the znode ``path``.

    It fails unless the znode has the version ``version``; the default accepts any version.
    """

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckVersion:
    """Operation of a ``multi`` that changes nothing: check the version of the znode ``path``.

    It fails unless the znode exists with the version ``version``; the default accepts any version.
    """

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | CheckVersion


class Right(enum.IntFlag):
    """Permissions of an ACL; the numbers are those of ZooKeeper's ``ZooDefs.Perms``."""

    READ = 1
    WRITE = 2
    CREATE = 4
    """Permission to create children."""
    DELETE = 8
    """Permission to delete children."""
    ADMIN = 16


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of a znode's ACL: an identity and its permissions."""

    scheme: str
    id: str
    rights: Right

    @property
    def is_open(self) -> bool:
        """True if it lets everybody create and delete children."""
        return (self.scheme, self.id) == ("world", "anyone") and Right.CREATE | Right.DELETE in self.rights

    def __str__(self) -> str:
        letters = "".join(letter for letter, right in _LETTERS if right in self.rights)
        # the hash of a digest is of no use in a log
        name = self.id.partition(":")[0] if self.scheme == "digest" else self.id
        return f"{self.scheme}:{name}:{letters or 'none'}"


_LETTERS: Final = (
    ("c", Right.CREATE),
    ("d", Right.DELETE),
    ("r", Right.READ),
    ("w", Right.WRITE),
    ("a", Right.ADMIN),
)


class LeasePhase(enum.Enum):
    """Age of a session's lease, in parts of the session timeout.

    The age is the time since the newest request that ZooKeeper's leader has answered was sent.
    """

    NONE = "none"
    """There is no session yet, or the last one is over."""
    FRESH = "fresh"
    """Less than half of the timeout: deliver and commit."""
    PAUSED = "paused"
    """From half of the timeout on: delivery and commits pause."""
    SUSPENDED = "suspended"
    """From two thirds of the timeout on: nothing is done, and positions are kept.

    Other members may soon own the partitions.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """State of a ZooKeeper session as this process knows it.

    Claims belong to one ``epoch``, the number of this process's session: when it changes, earlier claims are lost.
    ``session_id`` is ZooKeeper's, ``timeout_s`` the session timeout in seconds.
    """

    epoch: SessionEpoch
    session_id: int
    timeout_s: float
    phase: LeasePhase
    connected: bool
    connections: int = field(compare=False)
    """Number of connections up to now. If it changes during a call, the call had to wait for a new one.

    It is not compared.
    """


class Watch(Protocol):
    """A watch of a znode that reports every change, not only the first, until :meth:`close`."""

    def close(self) -> None:
        """Stop reporting changes. Idempotent."""


class WatchKind(enum.Enum):
    """Kind of changes that a watch of a znode reports."""

    DATA = "data"
    """Creation, deletion and data changes of the node."""
    CHILDREN = "children"
    """Creation and deletion of the node and of its children."""


class ZkClient(Protocol):
    """A ZooKeeper session that survives its connections, and is replaced when it expires.

    Methods that send requests may raise NotConnected; writes also OutcomeUnknown, and SessionLost if their ``epoch`` is
    not the current one. RequestRefused is raised for any other error that the server answers, such as a missing
    permission.
    """

    @property
    def state(self) -> SessionState:
        """State of the session now; ``phase`` is computed from the clock at each access."""

    async def wait_state(self, seen: SessionState) -> SessionState:
        """Wait until the session's state differs from ``seen``; return it.

        No timeout; safe to cancel.
        """

    async def get(self, path: str) -> tuple[bytes, Stat]:
        """Return a znode's data and stat. Raises NoNode."""

    async def find(self, path: str) -> tuple[bytes, Stat] | None:
        """Return a znode's data and stat, or None if it does not exist."""

    async def exists(self, path: str) -> Stat | None:
        """Return a znode's stat, or None if it does not exist."""

    async def children(self, path: str) -> tuple[list[str], Stat]:
        """Return the sorted names of a znode's children, and its stat. Raises NoNode."""

    @property
    def identity(self) -> str:
        """The name under which ACLs know this client, for messages.

        ``scheme:name``, such as ``digest:ann``, or ``world:anyone`` without credentials.
        """

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        """Return the entries of a znode's ACL.

        Raises NoNode; NotPermitted for a client without READ or ADMIN, which ZooKeeper 3.6 and later require.
        """

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, epoch: SessionEpoch | None = None
    ) -> None:
        """Create a znode. Raises NodeExists; NoNode if the parent does not exist.

        Args:
            ephemeral: True for a node that ZooKeeper deletes when the session ends.
            epoch: Number of the session in which the request must be sent; None for any session.
        """

    async def set(
        self, path: str, data: bytes, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None
    ) -> Stat:
        """Set a znode's data; return its new stat. Raises NoNode, BadVersion.

        Args:
            version: Version that the node must have; the default accepts any.
            epoch: Number of the session in which the request must be sent; None for any session.
        """

    async def delete(self, path: str, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None) -> None:
        """Delete a znode. Raises NoNode, BadVersion, NotEmpty.

        Args:
            version: Version that the node must have; the default accepts any.
            epoch: Number of the session in which the request must be sent; None for any session.
        """

    async def multi(self, operations: Sequence[Operation], *, epoch: SessionEpoch | None = None) -> list[Stat | None]:
        """Do all operations or none. Raises MultiFailed if one of them fails.

        Returns one element per operation: the new stat for each SetData, None for each other operation.

        Args:
            epoch: Number of the session in which the request must be sent; None for any session.
        """

    async def ensure_path(self, path: str, data: bytes = b"") -> None:
        """Create the znode ``path`` and its missing ancestors, as persistent nodes.

        A new ``path`` gets ``data``; an existing one keeps its own. New ancestors have no data.
        """

    def watch(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> Watch:
        """Watch a znode: call ``dirty()`` after each change, and after each reconnect.

        The node need not exist: its creation is a change. ``dirty`` has no argument; it should set a flag or an event,
        upon which the caller reads the node again. It is called on the event loop, and must not raise or block. One
        call may stand for several changes. A change that happens while the caller reads leads to another call.
        """


async def list_names(zk: ZkClient, path: str) -> Sequence[str]:
    """Return the sorted names of a znode's children; an empty list without the znode.

    Raises CoordinationError.
    """
    try:
        names, _ = await zk.children(path)
    except NoNode:
        return ()
    return names
