# SPDX-License-Identifier: Apache-2.0
"""The group's registry: our own node under ``ids``, and views of all members.

Writing
    As the Java consumer does: ``/consumers/G/ids`` if it is missing, and one ephemeral node. A node belongs to the
    session in its ``ephemeralOwner``, not by its data: a node of our id from an older session is another member's.

Reading
    Nodes may contain anything. A member that cannot be read is reported. So is a topic that cannot be read, and it has
    no partitions to assign (as in ``ZkUtils.getPartitionAssignmentForTopics``).

Caching
    When members join one after the other, each view would read the registrations of all. So registrations of the last
    view are kept if the names that appeared and disappeared account for the growth of the child-change counter of
    ``ids``, since no node was re-created then. Only its owner sets a node. If it is damaged nevertheless, that is seen
    after :meth:`GroupRegistry.forget`, or after 16 views.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import structlog

from consumerd import failpoints
from consumerd.aio.parallel import map_bounded
from consumerd.errors import RebalanceFailed, SessionLost
from consumerd.group.identity import MemberIdentity
from consumerd.group.plan import GroupSnapshot, GroupTopic, MemberView, Stamp, needs_names, plan_topics_to_read
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, SessionEpoch
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import BROKER_TOPICS, id_path, ids_path, topic_path
from consumerd.zk.port import BadVersion, NodeExists, NoNode, OutcomeUnknown, Stat, ZkClient
from consumerd.zk.registry_layout import NodeStamp, RegistryLayout
from consumerd.zk.znodes import LegacyRegistration, MalformedZnode

_ATTEMPTS = 4
_KEPT_VIEWS: Final = 16
"""Consecutive views that keep registrations; the next reads them all."""


@dataclass(frozen=True, slots=True)
class _Registrations:
    """A listing of ``ids``, with the registrations that were read of its nodes."""

    epoch: SessionEpoch
    czxid: int
    cversion: int
    names: frozenset[str]
    views: int = 0
    """Number of previous views that these registrations were kept for."""
    members: dict[str, MemberView] = field(default_factory=dict)

    def follow(self, listed: _Registrations) -> _Registrations:
        """Return a newer listing, with the registrations that are still valid."""
        same_nodes = (listed.epoch, listed.czxid) == (self.epoch, self.czxid)
        explained = listed.cversion - self.cversion == len(listed.names ^ self.names)
        if not (same_nodes and explained) or self.views >= _KEPT_VIEWS:
            return listed
        members = {name: member for name, member in self.members.items() if name in listed.names}
        return replace(listed, views=self.views + 1, members=members)


class GroupRegistry:
    """Reads and writes ``/consumers/G/ids``, and reads ``/brokers/topics``.

    Every call is bounded by the ZooKeeper client's own deadlines, times the number of nodes.

    Args:
        wall_ms: Calendar time in milliseconds, used only in what is written.
        layout: Paths and formats of the cluster's nodes in ZooKeeper.
    """

    def __init__(
        self,
        zk: ZkClient,
        group: str,
        *,
        wall_ms: Callable[[], int],
        random: Random,
        hooks: Hooks | None = None,
        layout: RegistryLayout,
    ) -> None:
        self._zk = zk
        self._layout = layout
        self._hooks = hooks if hooks is not None else Hooks()
        self._group = group
        self._wall_ms = wall_ms
        self._random = random
        self._log = structlog.get_logger(__name__).bind(group=group)
        self._chosen: tuple[SessionEpoch, ConsumerId] | None = None
        """Our id in this epoch. It is kept over retries, so that a lost reply leaves no second member."""
        self._registrations: _Registrations | None = None

    async def register(self, identity: MemberIdentity, subscription: Subscription, epoch: SessionEpoch) -> ConsumerId:
        """Create this member's node below ``ids``, and return the member's id.

        The node belongs to the session of ``epoch``. Raises SessionLost, CoordinationError.
        """
        if self._chosen is None or self._chosen[0] != epoch:
            self._choose(identity, epoch, lingering=False)
        for _ in range(_ATTEMPTS):
            assert self._chosen is not None  # chosen above
            consumer = self._chosen[1]
            path = id_path(self._group, consumer)
            try:
                data = self._layout.encode_registration(subscription.register(self._wall_ms()))
                if failpoints.ENABLED:
                    failpoints.reach("before_register")
                await self._zk.create(path, data, ephemeral=True, epoch=epoch)
                if failpoints.ENABLED:
                    failpoints.reach("after_register")
            except NoNode:
                await self._zk.ensure_path(ids_path(self._group))
            except NodeExists:
                stat = await self._zk.exists(path)
                if stat is not None and stat.ephemeral_owner == get_session_id(self._zk, epoch):
                    return consumer  # an earlier try, whose outcome was unknown
                if stat is not None:
                    holder = hex(stat.ephemeral_owner)
                    self._log.warning("member_lingers", member=consumer, session=holder)
                    self._hooks.trouble(Trouble.MEMBER_LINGERS, f"{consumer} is registered by session {holder}")
                    self._choose(identity, epoch, lingering=True)
            except OutcomeUnknown:
                continue  # create again: a node that was created is then recognised as ours
            else:
                return consumer
        raise RebalanceFailed(f"{ids_path(self._group)}: no node of ours after {_ATTEMPTS} tries")

    async def restore(self, consumer: ConsumerId, subscription: Subscription, epoch: SessionEpoch) -> None:
        """Write the member's own registration again, after another process has changed it.

        Args:
            consumer: The id of this member.
            subscription: The topics to register.
            epoch: The ZooKeeper session to which the node belongs.

        Raises SessionLost if that session is over; CoordinationError.
        """
        path = id_path(self._group, consumer)
        stat = await self._zk.exists(path)
        if stat is not None and stat.ephemeral_owner == get_session_id(self._zk, epoch):
            data = self._layout.encode_registration(subscription.register(self._wall_ms()))
            await self._zk.set(path, data, version=stat.version, epoch=epoch)

    def _choose(self, identity: MemberIdentity, epoch: SessionEpoch, *, lingering: bool) -> None:
        consumer = identity.make_id(now_ms=self._wall_ms(), random_bits=self._random.getrandbits, lingering=lingering)
        self._chosen = (epoch, consumer)

    async def unregister(self, consumer: ConsumerId, epoch: SessionEpoch) -> None:
        """Delete the member's node below ``ids``, if it belongs to the session of ``epoch``.

        Raises SessionLost if that session is over, with which the node ends, too; CoordinationError.
        """
        path = id_path(self._group, consumer)
        for _ in range(_ATTEMPTS):
            stat = await self._zk.exists(path)
            if stat is None or stat.ephemeral_owner != get_session_id(self._zk, epoch):
                return
            try:
                await self._zk.delete(path, version=stat.version, epoch=epoch)
            except NoNode:
                return
            except (OutcomeUnknown, BadVersion):
                continue
            else:
                return
        raise RebalanceFailed(f"{path}: could not be deleted in {_ATTEMPTS} tries")

    async def read(
        self,
        consumer: ConsumerId | None,
        watch_topics: Callable[[Collection[str]], None],
        watch_names: Callable[[], None] = lambda: None,
    ) -> GroupSnapshot:
        """Read the members of the group, and the topics that they need.

        Counters are read before what they count, so the snapshot's stamp may be older than its content, never newer.
        Raises CoordinationError.

        Args:
            consumer: The member whose topics are read; None for those of all members.
            watch_topics: Called with the topics before they are read, so that no later change is missed.
            watch_names: Called before the names of all topics are read, if they are needed.
        """
        epoch = self._zk.state.epoch
        try:
            listed, ids = await self._zk.children(ids_path(self._group))
        except NoNode:
            return GroupSnapshot(stamp=Stamp(ids=(0, 0), names=None, topics={}), members=(), topics={})
        known = _Registrations(epoch, ids.czxid, ids.cversion, frozenset(listed))
        if self._registrations is not None:
            known = self._registrations.follow(known)
        self._registrations = known
        ours = {consumer, self._chosen[1] if self._chosen is not None else None}
        found = await map_bounded([one for one in listed if one in ours or one not in known.members], self._read_member)
        members = tuple(one for name in listed if (one := found.get(name, known.members.get(name))) is not None)
        # into the listing that these belong to: a concurrent read may have stored a newer one meanwhile
        known.members.update({one.consumer: one for one in members if one.registration is not None})
        names: frozenset[str] = frozenset()
        names_stamp: NodeStamp | None = None
        if needs_names(members):
            watch_names()
            names, names_stamp = await self._read_names()
        wanted = plan_topics_to_read(members, names, consumer)
        watch_topics(wanted)
        topics = await map_bounded(sorted(wanted), self.read_topic)
        return GroupSnapshot(
            stamp=Stamp(
                ids=(ids.czxid, ids.cversion),
                names=names_stamp,
                topics={topic: None if view is None else view.stamp for topic, view in topics.items()},
            ),
            members=members,
            topics={topic: view for topic, view in topics.items() if view is not None},
            names=names,
        )

    def forget(self) -> None:
        """Forget the registrations that were kept from earlier reads; the next :meth:`read` reads all again."""
        self._registrations = None

    async def is_current(self, stamp: Stamp, topics: Collection[str]) -> bool:
        """Return True if the group is unchanged since ``stamp`` was read.

        Compared are the versions of the members, of the names of all topics, and of the nodes of ``topics``. Raises
        CoordinationError.
        """
        counted = [ids_path(self._group), *([] if stamp.names is None else [BROKER_TOPICS])]
        paths = [*counted, *(topic_path(topic) for topic in sorted(topics))]
        stats = await map_bounded(paths, self._zk.exists)
        counters = [None if (stat := stats[path]) is None else (stat.czxid, stat.cversion) for path in counted]
        if counters != [stamp.ids, *([] if stamp.names is None else [stamp.names])]:
            return False
        return all(self._stamp(stats[topic_path(topic)]) == stamp.topics.get(topic) for topic in topics)

    async def read_topic(self, topic: str) -> GroupTopic | None:
        """Return a topic, or None if it does not exist. Raises CoordinationError.

        If its node cannot be read, the topic has a ``problem`` and no partitions.
        """
        node = await self._layout.read_topic(self._zk, topic)
        if node is None:
            return None
        if node.problem is not None:
            self._log.warning("topic_unreadable", topic=topic, error=node.problem)
            self._hooks.trouble(Trouble.TOPIC_UNREADABLE, f"{topic}: {node.problem}")
        return GroupTopic(
            czxid=node.incarnation.czxid, stamp=node.stamp, partitions=tuple(node.replicas), problem=node.problem
        )

    async def _read_member(self, name: str) -> MemberView | None:
        consumer = ConsumerId(name)
        found = await self._zk.find(id_path(self._group, consumer))
        if found is None:
            return None  # it left meanwhile, and the watch will report it
        data, stat = found
        try:
            registration = self._layout.parse_registration(data)
        except MalformedZnode as error:
            return MemberView(
                consumer=consumer,
                session_id=stat.ephemeral_owner,
                registration=None,
                problem=str(error),
                legacy=isinstance(error, LegacyRegistration),
            )
        return MemberView(consumer=consumer, session_id=stat.ephemeral_owner, registration=registration)

    async def _read_names(self) -> tuple[frozenset[str], NodeStamp]:
        try:
            names, stat = await self._zk.children(BROKER_TOPICS)
        except NoNode:  # no broker was ever here
            return frozenset(), (0, 0)
        return frozenset(names), (stat.czxid, stat.cversion)

    def _stamp(self, stat: Stat | None) -> NodeStamp | None:
        return None if stat is None else self._layout.stamp_topic(stat)


def get_session_id(zk: ZkClient, epoch: SessionEpoch) -> int:
    """Return the id of the ZooKeeper session of ``epoch``.

    Raises SessionLost if that session is over.
    """
    state = zk.state
    if state.epoch != epoch:
        raise SessionLost(f"epoch {epoch} is over, now {state.epoch}")
    return state.session_id
