# SPDX-License-Identifier: Apache-2.0
"""The watch table against a model of the server's one-shot watches, driven by Hypothesis.

The model is ZooKeeper's ``DataTree``: two tables of one-shot watches by path, and SetWatches with the largest zxid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumerd.zk.port import WatchKind
from consumerd.zk.watch import Arming, Change, StandingWatch, WatchTable

PATHS = ["/a", "/a/b", "/c"]


def test_lists_are_split_into_batches_that_servers_read() -> None:
    """A request has a limit; a list of watches has none."""
    armed: list[Arming] = []
    table = WatchTable(arm=armed.append, soon=lambda callback: None)
    paths = [f"/{'x' * 90}{i:05}" for i in range(12_000)]
    for path in paths:
        table.add(path, WatchKind.DATA, lambda: None)
        table.add(path, WatchKind.DATA, lambda: None)
    table.flush()

    assert [path for arming in armed for path in arming.data] == paths
    assert all(sum(4 + len(path) for path in arming.data) <= 128 * 1024 for arming in armed)
    assert len(armed) < 12


class ModelServer:
    """A tree with versions, one-shot watches, and events on their way to the client."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[int, frozenset[str]]] = {}
        self.version = 0
        self.data: set[str] = set()
        self.children: set[str] = set()
        self.events: deque[tuple[Change, str]] = deque()

    def change(self, path: str) -> None:
        """Create, change or delete a node's data side."""
        self.version += 1
        if path in self.nodes:
            self.nodes[path] = (self.version, self.nodes[path][1])
            self._fire(self.data, path, Change.DATA_CHANGED)
        else:
            self.nodes[path] = (self.version, frozenset())
            self._fire(self.data, path, Change.CREATED)

    def change_children(self, path: str) -> None:
        """Add a child, or take all away."""
        if path in self.nodes:
            version, names = self.nodes[path]
            self.nodes[path] = (version, frozenset() if names else frozenset({"x"}))
            self._fire(self.children, path, Change.CHILDREN_CHANGED)

    def delete(self, path: str) -> None:
        """Delete a node; one event, however many watches it has."""
        if self.nodes.pop(path, None) is not None:
            fired = path in self.data or path in self.children
            self.data.discard(path)
            self.children.discard(path)
            if fired:
                self.events.append((Change.DELETED, path))

    def arm(self, arming: Arming) -> None:
        """SetWatches."""
        for path in arming.data:
            if path in self.nodes:
                self.data.add(path)
            else:
                self.events.append((Change.DELETED, path))
        for path in arming.exist:
            if path in self.nodes:
                self.events.append((Change.CREATED, path))
            else:
                self.data.add(path)
        for path in arming.children:
            if path in self.nodes:
                self.children.add(path)
            else:
                self.events.append((Change.DELETED, path))

    def drop_connection(self) -> None:
        """Watches and events of the old connection are gone."""
        self.data.clear()
        self.children.clear()
        self.events.clear()

    def _fire(self, table: set[str], path: str, change: Change) -> None:
        if path in table:
            table.discard(path)
            self.events.append((change, path))


class Owner:
    """Reads whenever told, and remembers what it saw."""

    def __init__(self, server: ModelServer, path: str, kind: WatchKind) -> None:
        self.server, self.path, self.kind = server, path, kind
        self.watch: StandingWatch | None = None
        self.seen: object = None

    def look(self) -> object:
        """What this kind of watch is about: the data's version, or the children's names; None if missing."""
        node = self.server.nodes.get(self.path)
        return None if node is None else node[0 if self.kind is WatchKind.DATA else 1]

    def read(self) -> None:
        """The read that follows a call."""
        self.seen = self.look()


class WatchMachine(RuleBasedStateMachine):
    """Changes, deliveries, callbacks and reconnects in any order; in the end, everybody has seen the truth."""

    @initialize()
    def start(self) -> None:
        self.server = ModelServer()
        self.soon: deque[Callable[[], None]] = deque()
        self.table = WatchTable(arm=self.server.arm, soon=self.soon.append)
        self.owners: list[Owner] = []

    @rule(path=st.sampled_from(PATHS), kind=st.sampled_from(WatchKind))
    def watch(self, path: str, kind: WatchKind) -> None:
        owner = Owner(self.server, path, kind)

        def dirty() -> None:
            # the read is a request: what is not set yet is set before it
            self.table.flush()
            owner.read()

        owner.watch = self.table.add(path, kind, dirty)
        self.table.flush()
        owner.read()
        self.owners.append(owner)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.owners.remove(owner)
        assert owner.watch is not None
        owner.watch.close()

    @rule(path=st.sampled_from(PATHS))
    def change(self, path: str) -> None:
        self.server.change(path)

    @rule(path=st.sampled_from(PATHS))
    def change_children(self, path: str) -> None:
        self.server.change_children(path)

    @rule(path=st.sampled_from(PATHS))
    def delete(self, path: str) -> None:
        self.server.delete(path)

    @rule()
    def deliver(self) -> None:
        if self.server.events:
            self.table.fired(*self.server.events.popleft())

    @rule()
    def turn(self) -> None:
        if self.soon:
            self.soon.popleft()()

    @rule()
    def reconnect(self) -> None:
        self.server.drop_connection()
        self.table.renew()

    @invariant()
    def quiescence_shows_everybody_the_truth(self) -> None:
        if not hasattr(self, "server") or self.server.events or self.soon:
            return
        for owner in self.owners:
            assert owner.seen == owner.look(), (owner.path, owner.kind)

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        for _ in range(10_000):
            if self.server.events:
                self.table.fired(*self.server.events.popleft())
            elif self.soon:
                self.soon.popleft()()
            else:
                break
        else:
            raise AssertionError("watches never come to rest")
        self.quiescence_shows_everybody_the_truth()
        assert len(self.owners) == len(self.table)


TestWatchTable = WatchMachine.TestCase
TestWatchTable.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
