# SPDX-License-Identifier: Apache-2.0
"""The port to ZooKeeper: what consumerd asks of it, and how session identity shows.

Implemented by ``zk.aiozk_client`` over real servers and by ``tests.support.fake_zookeeper``. Paths are absolute and
without the chroot, which the implementation adds. Every call is bounded by a deadline of its own.

Session rules: a session *epoch* counts the sessions of this process. A write that carries an ``epoch`` goes
out in that session or not at all. An outcome that is unknown (:class:`OutcomeUnknown`) must be read back before
anything is concluded from it; implementations retry reads, never writes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from consumerd.errors import CoordinationError
from consumerd.model import SessionEpoch

ANY_VERSION: Final = -1


class NoNode(CoordinationError):
    """The node (or the parent of a node to be created) is not there."""


class NodeExists(CoordinationError):
    """The node to be created is there already."""


class BadVersion(CoordinationError):
    """The node's version is not the one that the write was conditional on."""


class NotEmpty(CoordinationError):
    """The node to be deleted has children."""


class NotPermitted(CoordinationError):
    """The server refused for the node's ACL; ``path`` is the node that was asked for, whose parent may be meant."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class NotConnected(CoordinationError):
    """Nothing was sent: there is no connection within the deadline."""


class OutcomeUnknown(CoordinationError):
    """The connection broke, or the deadline passed, after the request was sent: it may or may not have taken effect."""


class MultiFailed(CoordinationError):
    """None of a ``multi``'s operations took effect; ``index`` and ``cause`` name the first that failed."""

    def __init__(self, index: int, cause: CoordinationError) -> None:
        super().__init__(f"operation {index} of a multi failed: {cause}")
        self.index = index
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """A node's stat structure; times in ms since the epoch, ``ephemeral_owner`` 0 for a persistent node."""

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
    """Create ``path``; its parents must exist."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Set the data of ``path`` if its version is ``version`` (any by default)."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete ``path`` if its version is ``version`` (any by default)."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckVersion:
    """Go on only if ``path`` exists with this version (any by default)."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | CheckVersion


class Right(enum.IntFlag):
    """Permissions of an ACL, as ZooKeeper's ``ZooDefs.Perms`` number them."""

    READ = 1
    WRITE = 2
    CREATE = 4
    """Create children."""
    DELETE = 8
    """Delete children."""
    ADMIN = 16


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of a node's ACL."""

    scheme: str
    id: str
    rights: Right

    def __str__(self) -> str:
        letters = "".join(letter for letter, right in _LETTERS if right in self.rights)
        # a digest's hash helps nobody who reads a log
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
    """How long ago ZooKeeper last answered, in fractions of the negotiated session timeout."""

    NONE = "none"
    """No session yet, or the last one is over."""
    FRESH = "fresh"
    """Less than half: deliver and commit."""
    PAUSED = "paused"
    """From half: delivery and commits pause."""
    SUSPENDED = "suspended"
    """From two thirds: positions are kept, nothing is done; another member may soon own the partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """What is known of the session now. Two states of different ``epoch`` share no claims."""

    epoch: SessionEpoch
    session_id: int
    timeout_s: float
    phase: LeasePhase
    connected: bool
    connections: int = field(compare=False)
    """How many there were up to now: where it differs, something had to wait for another one. Two states may be equal."""


class Watch(Protocol):
    """A standing watch; :meth:`close` ends it. Idempotent."""

    def close(self) -> None:
        """Stop calling back."""


class WatchKind(enum.Enum):
    """What a standing watch listens to."""

    DATA = "data"
    """Creation, deletion and data changes of the node."""
    CHILDREN = "children"
    """Creation and deletion of the node and of its children."""


class ZkClient(Protocol):
    """A ZooKeeper session that survives its connections, and is replaced when it expires.

    All methods may raise NotConnected, OutcomeUnknown (writes), SessionLost (an ``epoch`` that is not current) and
    CoordinationError for what the server refuses otherwise (no permission, a chroot that is not there).
    """

    @property
    def state(self) -> SessionState:
        """The session as known at this moment; ``phase`` is computed from the clock at each access."""

    async def wait_state(self, seen: SessionState) -> SessionState:
        """Wait until :attr:`state` differs from ``seen``, and return it. Unbounded; cancel freely."""

    async def get(self, path: str) -> tuple[bytes, Stat]:
        """Return data and stat. Raises NoNode."""

    async def find(self, path: str) -> tuple[bytes, Stat] | None:
        """Return data and stat, or None where there is no such node."""

    async def exists(self, path: str) -> Stat | None:
        """Return the stat, or None where there is no such node."""

    async def children(self, path: str) -> tuple[list[str], Stat]:
        """Return the names of the children, sorted, and the node's stat. Raises NoNode."""

    @property
    def identity(self) -> str:
        """Who this client is to ACLs, for messages: ``scheme:name``, or ``world:anyone`` without credentials."""

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        """Return the node's ACL. Raises NoNode, NotPermitted (from ZooKeeper 3.6 on it takes READ or ADMIN)."""

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, epoch: SessionEpoch | None = None
    ) -> None:
        """Create a node. Raises NodeExists, NoNode (no parent)."""

    async def set(
        self, path: str, data: bytes, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None
    ) -> Stat:
        """Set the data. Raises NoNode, BadVersion."""

    async def delete(self, path: str, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None) -> None:
        """Delete a node. Raises NoNode, BadVersion, NotEmpty."""

    async def multi(self, operations: Sequence[Operation], *, epoch: SessionEpoch | None = None) -> list[Stat | None]:
        """Do all or none; the stat of each SetData, None for the others. Raises MultiFailed."""

    async def ensure_path(self, path: str, data: bytes = b"") -> None:
        """Create ``path`` and what is missing above it, persistent; ``data`` goes to a newly made ``path`` only."""

    def watch(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> Watch:
        """Call ``dirty()`` on the event loop after each change, coalesced, and after each reconnect.

        A change that happens while ``dirty`` is being acted upon is called again; a missing node is watched for its
        creation. ``dirty`` must not raise nor block: set a flag or an event, and read again.
        """
