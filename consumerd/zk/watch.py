# SPDX-License-Identifier: Apache-2.0
"""Watches that report every change, made of ZooKeeper's one-shot watches.

A *standing watch* belongs to an owner, a callback. A watch of ZooKeeper fires once and must be set again. The owner
reads the node when it is called. A change that happens before the watch is set again is not reported, but that read
sees the change if the watch was set before the read was sent. So the one rule here: **a watch is set again before its
owner is called**, on the connection that the owner's read will use.

Watches are set by the request SetWatches, which other clients send only after a reconnect. Its field for the last seen
zxid has the largest possible value here, so the server fires nothing for past changes. If a watch for data or children
is set on a missing node, it fires as a deletion; if a watch for creation is set on an existing node, it fires as a
creation. By this event the watch learns if the node exists, and sets the right kind.

Example: `/a` exists and is watched for data.

1. `/a` is changed, and the watch fires. It is set again; then the owner is called, and reads.
2. `/a` is deleted, and the watch fires. It is set for creation; then the owner is called, and finds nothing.
3. `/a` was created before step 2's SetWatches arrived: the server finds the node, and fires the watch as a creation.
   The watch is set for data, and the owner is called.

After each reconnect all watches are set and all owners called. The session also does so from time to time, in case an
event was missed.

Source: ZooKeeper's ``DataTree.setWatches`` and ``WatchManager``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from consumerd.zk.port import WatchKind

_BATCH_BYTES: Final = 128 * 1024
"""Largest size of one SetWatches in bytes, as in the Java client.

Requests have a size limit, and lists of watches have none.
"""
_STRING_BYTES: Final = 4


class Change(enum.Enum):
    """Kind of change that a watch event reports; the numbers are those of ZooKeeper's protocol."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


@dataclass(slots=True)
class Arming:
    """Paths of one SetWatches request: watches of data, of creation (``exist``), of children."""

    data: list[str] = field(default_factory=list)
    exist: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


class StandingWatch:
    """One owner's watch of a znode, which is set again each time it fires.

    :meth:`WatchTable.add` makes it. Its owner is the callback ``dirty``, called after each change.
    """

    __slots__ = ("_dirty", "_table", "kind", "missing", "path")

    def __init__(self, table: WatchTable, path: str, kind: WatchKind, dirty: Callable[[], None]) -> None:
        self.path = path
        self.kind = kind
        self.missing = False
        self._table: WatchTable | None = table
        self._dirty = dirty

    def close(self) -> None:
        """Stop calling the callback. Idempotent."""
        table, self._table = self._table, None
        if table is not None:
            table.discard(self)

    def notes(self, change: Change) -> bool:
        """Note a change; return True if the server's watch has to be set again.

        ``change`` is a watch event for the path. A watch for data does not fire for children, and the reverse.
        """
        match change:
            case Change.CREATED:
                self.missing = False
            case Change.DELETED:
                self.missing = True
            case Change.DATA_CHANGED:
                return self.kind is WatchKind.DATA
            case Change.CHILDREN_CHANGED:
                return self.kind is WatchKind.CHILDREN
        return True

    def tell(self) -> None:
        """Call the callback of the watch, unless the watch was closed meanwhile."""
        if self._table is not None:
            self._dirty()


class WatchTable:
    """All standing watches of a ZooKeeper session: watches that are set again after they fire.

    Each watch has an owner, a callback that reads the znode when it is called.

    Args:
        arm: Sends one SetWatches request on the current connection, if there is one.
        soon: The loop's ``call_soon``, which calls the owners. So the exception of one owner is only logged, and the
            other owners are called as well.
    """

    def __init__(self, *, arm: Callable[[Arming], None], soon: Callable[[Callable[[], None]], object]) -> None:
        self._arm = arm
        self._soon = soon
        self._watches: dict[str, list[StandingWatch]] = {}
        self._unarmed: dict[StandingWatch, None] = {}
        self._untold: dict[StandingWatch, None] = {}
        self._flush_due = False

    def __len__(self) -> int:
        return sum(map(len, self._watches.values()))

    def add(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> StandingWatch:
        """Begin a watch of a znode, and call ``dirty`` after each change.

        The server gets the watch before any request that is sent later. So a read after this call misses no change.
        """
        watch = StandingWatch(self, path, kind, dirty)
        self._watches.setdefault(path, []).append(watch)
        self._unarmed[watch] = None
        self._flush_soon()
        return watch

    def discard(self, watch: StandingWatch) -> None:
        """Forget a watch, and never call its owner again.

        The server keeps its own watch for the path until that fires once more; the event is then ignored.
        """
        self._unarmed.pop(watch, None)
        self._untold.pop(watch, None)
        watches = self._watches.get(watch.path, [])
        if watch in watches:
            watches.remove(watch)
        if not watches:
            self._watches.pop(watch.path, None)

    def fired(self, change: Change, path: str) -> None:
        """Handle a watch event: set the watches of the path again, call their owners."""
        for watch in self._watches.get(path, ()):
            if watch.notes(change):
                self._unarmed[watch] = None
                self._untold[watch] = None
                self._flush_soon()

    def renew(self) -> None:
        """Set all watches, and call all owners as if each node had changed.

        For a new connection, which has no watches yet, and for a regular check in case an event was missed.
        """
        for watch in self._all():
            self._unarmed[watch] = None
            self._untold[watch] = None
        self.flush()

    def flush(self) -> None:
        """Send the watches that wait to be set; then schedule calls of notified owners.

        An owner is the callback of a watch; it is called if its node has changed. Call this method before each read and
        write of the session is sent. The server then sets the watch before it processes the read, and no change is
        missed.
        """
        self._flush_due = False
        unarmed, self._unarmed = self._unarmed, {}
        for arming in _batches(unarmed):
            self._arm(arming)
        untold, self._untold = self._untold, {}
        for watch in untold:
            self._soon(watch.tell)

    def _all(self) -> Iterator[StandingWatch]:
        for watches in self._watches.values():
            yield from watches

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._soon(self._flush_if_due)

    def _flush_if_due(self) -> None:
        if self._flush_due:
            self.flush()


def _batches(watches: Iterable[StandingWatch]) -> Iterator[Arming]:
    """Sort watches into requests, each path once in each list, none larger than a batch."""
    arming, size = Arming(), 0
    seen: set[tuple[str, str]] = set()
    for watch in watches:
        what = "exist" if watch.missing else "data" if watch.kind is WatchKind.DATA else "children"
        if (what, watch.path) in seen:
            continue
        seen.add((what, watch.path))
        weight = len(watch.path.encode()) + _STRING_BYTES
        if size and size + weight > _BATCH_BYTES:
            yield arming
            arming, size = Arming(), 0
        paths = {"exist": arming.exist, "data": arming.data, "children": arming.children}
        paths[what].append(watch.path)
        size += weight
    if size:
        yield arming
