# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper watches of a member, whose changes become events of its state machine.

They are on parents and on topics' nodes, never on owner nodes, so a topic with thousands of partitions needs few. Each
watch is set before the nodes are read, so that no later change is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from consumerd.group import events as ev
from consumerd.zk.layout import BROKER_TOPICS, ids_path, owners_path, owners_root
from consumerd.zk.port import Watch, WatchKind, ZkClient
from consumerd.zk.registry_layout import RegistryLayout


class GroupWatches:
    """The ZooKeeper watches of one member; each change calls ``post`` with an event."""

    def __init__(self, zk: ZkClient, group: str, layout: RegistryLayout, post: Callable[[ev.Event], None]) -> None:
        self._zk = zk
        self._group = group
        self._layout = layout
        self._post = post
        self._watches: dict[tuple[str, WatchKind], Watch] = {}

    def watch_members(self) -> None:
        """Watch the registrations of members coming and going."""
        self._watch(ids_path(self._group), WatchKind.CHILDREN, ev.Changed("members changed"))

    def watch_names(self) -> None:
        """Watch the creation and deletion of topics, for subscriptions by an expression."""
        self._watch(BROKER_TOPICS, WatchKind.CHILDREN, ev.Changed("topics changed"))

    def watch_topics(self, topics: Collection[str]) -> None:
        """Watch the nodes of these topics from now on, and of no other topics.

        To be called before the nodes are read, so that no later change is missed.
        """
        wanted = {path: kind for topic in topics for path, kind in self._layout.topic_watches(topic).items()}
        for path in sorted(wanted):
            self._watch(path, wanted[path], ev.Changed("partitions changed"))
        self._close_all_but(wanted, BROKER_TOPICS)

    def watch_owners(self, topics: Collection[str]) -> None:
        """Report owner nodes of these topics that appear or disappear, and of no other topics."""
        paths = {owners_path(self._group, topic): topic for topic in topics}
        for path, topic in sorted(paths.items()):
            self._watch(path, WatchKind.CHILDREN, ev.OwnersChanged(topic))
        self._close_all_but(dict.fromkeys(paths, WatchKind.CHILDREN), owners_root(self._group))

    def close(self) -> None:
        """Close all watches."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _watch(self, path: str, kind: WatchKind, event: ev.Event) -> None:
        if (path, kind) not in self._watches:
            self._watches[path, kind] = self._zk.watch(path, kind, partial(self._post, event))

    def _close_all_but(self, wanted: Mapping[str, WatchKind], parent: str) -> None:
        for path, kind in list(self._watches):
            if path.startswith(f"{parent}/") and wanted.get(path) is not kind:
                self._watches.pop((path, kind)).close()
