# SPDX-License-Identifier: Apache-2.0
"""Standing watches, made of ZooKeeper's one-shot ones.

ZooKeeper's watch fires once and has to be set again; what changes between the firing and the setting is seen by the
read that follows, if only the setting goes out first. So the one rule here: **a watch is set again before its owner is
told**, on the connection that the owner's read will use. Setting is done with SetWatches requests (what clients send
after a reconnect), whose relative zxid is the largest there is: the server then sets each watch without comparing, and
answers no data. A watch for data or children on a node that is missing comes back as a deletion, one for creation on a
node that exists as a creation: so each watch finds out by itself which of the two it needs, whatever the order of events.

After each reconnect all are set and all owners told. As a net under all this, the session does the same now and then.

Source: ZooKeeper's ``DataTree.setWatches`` and ``WatchManager``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from consumerd.zk.port import WatchKind

_BATCH_BYTES: Final = 128 * 1024
"""What one SetWatches holds at most, as in the Java client: a request has a limit, a list of watches has none."""
_STRING_BYTES: Final = 4


class Change(enum.Enum):
    """What a watch event says; the values are those on the wire."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


@dataclass(slots=True)
class Arming:
    """The paths of one SetWatches request."""

    data: list[str] = field(default_factory=list)
    exist: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


class StandingWatch:
    """One watch of one owner; made by :meth:`WatchTable.add`."""

    __slots__ = ("_dirty", "_table", "kind", "missing", "path")

    def __init__(self, table: WatchTable, path: str, kind: WatchKind, dirty: Callable[[], None]) -> None:
        self.path = path
        self.kind = kind
        self.missing = False
        self._table: WatchTable | None = table
        self._dirty = dirty

    def close(self) -> None:
        """Stop calling back. Idempotent."""
        table, self._table = self._table, None
        if table is not None:
            table.discard(self)

    def notes(self, change: Change) -> bool:
        """Take in a change of the path; return whether it used up this watch."""
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
        """Call back, unless closed meanwhile."""
        if self._table is not None:
            self._dirty()


class WatchTable:
    """All standing watches of a session.

    ``arm`` sends one SetWatches on the current connection, if there is one. ``soon`` is the loop's ``call_soon``: owners
    are told by it, so that one who raises is reported by the loop and disturbs nobody.
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
        """Begin a watch; it is set before the next request goes out."""
        watch = StandingWatch(self, path, kind, dirty)
        self._watches.setdefault(path, []).append(watch)
        self._unarmed[watch] = None
        self._flush_soon()
        return watch

    def discard(self, watch: StandingWatch) -> None:
        """Forget a watch; the server's own, which is one for each path, goes when it fires."""
        self._unarmed.pop(watch, None)
        self._untold.pop(watch, None)
        watches = self._watches.get(watch.path, [])
        if watch in watches:
            watches.remove(watch)
        if not watches:
            self._watches.pop(watch.path, None)

    def fired(self, change: Change, path: str) -> None:
        """Take in an event from the server."""
        for watch in self._watches.get(path, ()):
            if watch.notes(change):
                self._unarmed[watch] = None
                self._untold[watch] = None
                self._flush_soon()

    def renew(self) -> None:
        """Set all watches and tell all owners: the connection is new, or something may have been missed."""
        for watch in self._all():
            self._unarmed[watch] = None
            self._untold[watch] = None
        self.flush()

    def flush(self) -> None:
        """Set what is not set, then have its owners told. To be called before any other request is sent."""
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
