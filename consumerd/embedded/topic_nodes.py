# SPDX-License-Identifier: Apache-2.0
"""Reads and writes topics in ZooKeeper as brokers and admin tools do.

All methods call ZooKeeper, and raise CoordinationError if it does not respond within the session's deadline. All can be
repeated: completed steps are recognised.

Sources: Kafka's ``AdminUtils.scala``, ``PartitionStateMachine.scala``, ``TopicDeletionManager.scala`` and
``ZkNodeChangeNotificationListener.scala`` (0.8.2 to 1.1).
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

import structlog

from consumerd.aio.parallel import map_bounded
from consumerd.embedded.elections import next_state, prefer_first
from consumerd.embedded.topics import Topic, TopicExists
from consumerd.embedded.znodes import (
    CONFIG_CHANGES,
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    FIRST_CONTROLLER_EPOCH,
    PREFERRED_ELECTION,
    decode_topic_id,
    delete_topic_path,
    encode_config,
    encode_partition_state,
    encode_preferred_election,
    encode_topic,
    parse_controller_epoch,
    parse_preferred_election,
)
from consumerd.model import BrokerId, TopicPartition, find_topic_fault
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, topic_path, topic_settings_path
from consumerd.zk.layout_modern import partition_path, partition_state_path, partitions_path
from consumerd.zk.port import NodeExists, NoNode, NotEmpty, ZkClient, list_names
from consumerd.zk.znodes import (
    MalformedZnode,
    PartitionStateNode,
    parse_partition_state,
    parse_topic,
    parse_topic_id,
    parse_topic_settings,
)

CHANGES_KEPT_MS: Final = 15 * 60 * 1000
"""Time, in milliseconds, for which a notification of changed settings is kept, for other brokers."""

_ID: Final = re.compile("[0-9]{1,10}")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TopicNodes:
    """Reads and writes the nodes of all topics in ZooKeeper."""

    def __init__(self, zk: ZkClient) -> None:
        self._zk = zk
        self._complaints: set[tuple[str, str]] = set()

    async def read(self, known: Mapping[str, Topic]) -> Mapping[str, Topic]:
        """Return all topics in ZooKeeper, by name.

        Topics whose node is malformed, or whose name is not legal, are left out, with one warning each.

        Args:
            known: Topics that were read before and have not changed; they are not read again.
        """
        topics = {}
        found = {}
        for name in await list_names(self._zk, BROKER_TOPICS):
            if name in known:
                topics[name] = known[name]
            elif fault := find_topic_fault(name):
                self._complain(topic_path(name), fault)
            else:
                found[name] = topic_path(name)
        nodes = await map_bounded(found.values(), self._zk.find)
        configs = await map_bounded(map(topic_settings_path, found), self._zk.find)
        for name, path in found.items():
            node, config = nodes[path], configs[topic_settings_path(name)]
            if node is None:
                continue
            try:
                replicas = {key.number: brokers for key, brokers in parse_topic(node[0]).items()}
            except MalformedZnode as error:
                self._complain(path, str(error))
                continue
            own = parse_topic_settings(config[0]) if config is not None else {}
            topic_id = parse_topic_id(node[0])
            topics[name] = Topic(
                name=name,
                replicas=replicas,
                config=own,
                topic_id=None if topic_id is None else decode_topic_id(topic_id),
                czxid=node[1].czxid,
            )
        return topics

    async def create(
        self,
        name: str,
        replicas: Mapping[int, tuple[BrokerId, ...]],
        config: Mapping[str, str],
        topic_id: uuid.UUID | None = None,
    ) -> None:
        """Create a topic's nodes: first its settings, as admin tools do, then its replicas.

        Raises TopicExists.
        """
        path, settings = topic_settings_path(name), encode_config(config)
        if await self._zk.exists(topic_path(name)) is None:
            if await self._zk.exists(path) is None:
                await self._zk.ensure_path(path, settings)
            else:
                await self._zk.set(path, settings)  # left by a deleted topic of the same name
        await self._zk.ensure_path(BROKER_TOPICS)
        try:
            await self._zk.create(topic_path(name), encode_topic(replicas, topic_id))
        except NodeExists:
            raise TopicExists(f"topic {name} exists already") from None

    async def assign(self, topic: Topic, replicas: Mapping[int, tuple[BrokerId, ...]]) -> None:
        """Replace the replicas of a topic's partitions."""
        await self._zk.set(topic_path(topic.name), encode_topic(replicas, topic.topic_id))

    async def settle(
        self,
        partition: TopicPartition,
        replicas: Sequence[BrokerId],
        *,
        live: AbstractSet[BrokerId],
        known: AbstractSet[BrokerId],
        failed_over: bool = False,
        make_room: Callable[[], Awaitable[None]],
    ) -> PartitionStateNode | None:
        """Bring the ``state`` node of a partition up to date: leader and in-sync replicas.

        The rules are those of ``elections``. Returns the last state; None if the topic has just been deleted, or no
        replica is alive to lead a new partition.

        Args:
            live: Brokers that may lead; while there are none, nothing is written.
            known: All brokers of the cluster.
            failed_over: True if the controller is a new one.
            make_room: Awaited before the node of a new partition is created.
        """
        path = partition_state_path(partition)
        while (node := await self._zk.find(path)) is None:
            first = next_state(None, replicas, live=live, known=known)
            if first is None:
                return None
            await make_room()
            state = replace(first, controller_epoch=await self._controller_epoch())
            try:
                for parent in (partitions_path(partition.topic), partition_path(partition)):
                    with contextlib.suppress(NodeExists):
                        await self._zk.create(parent, b"")
                with contextlib.suppress(NodeExists):
                    await self._zk.create(path, encode_partition_state(state))
            except NoNode:
                return None
        try:
            state = parse_partition_state(node[0])
        except MalformedZnode as error:
            self._complain(path, str(error))
            state = PartitionStateNode(leader=None, leader_epoch=0, isr=(), controller_epoch=0)
        version = node[1].version
        while (
            live
            and (following := next_state(state, replicas, live=live, known=known, failed_over=failed_over)) is not None
        ):
            if following.leader_epoch != state.leader_epoch:  # the controller's; the leader keeps the controller epoch
                following = replace(following, controller_epoch=await self._controller_epoch())
            version = (await self._zk.set(path, encode_partition_state(following), version=version)).version
            state = following
        return state

    async def prefer(
        self, partition: TopicPartition, replicas: Sequence[BrokerId], live: AbstractSet[BrokerId]
    ) -> PartitionStateNode | None:
        """Make a partition's first replica its leader, if that replica is alive and in sync.

        Returns the new state; None if nothing was written.
        """
        path = partition_state_path(partition)
        node = await self._zk.find(path)
        if node is None:
            return None
        try:
            state = parse_partition_state(node[0])
        except MalformedZnode as error:
            self._complain(path, str(error))
            return None
        elected = prefer_first(state, replicas, live=live)
        if elected is not None:
            elected = replace(elected, controller_epoch=await self._controller_epoch())
            await self._zk.set(path, encode_partition_state(elected), version=node[1].version)
        return elected

    async def preferred_elections(self) -> Sequence[TopicPartition] | None:
        """Return the partitions for which an admin tool has requested a preferred replica election.

        None if no election is requested.
        """
        node = await self._zk.find(PREFERRED_ELECTION)
        return None if node is None else parse_preferred_election(node[0])

    async def ask_preferred_election(self, partitions: Sequence[TopicPartition]) -> None:
        """Request an election that makes the first replica of each of ``partitions`` its leader.

        The request is the node that Kafka's admin tool writes. If there is such a node already, nothing is written.
        """
        await self._zk.ensure_path(PREFERRED_ELECTION, encode_preferred_election(partitions))

    async def finish_preferred_election(self) -> None:
        """Remove the request for a preferred replica election, which was carried out."""
        with contextlib.suppress(NoNode):
            await self._zk.delete(PREFERRED_ELECTION)

    async def registered(self) -> frozenset[BrokerId]:
        """Return the ids of the registered brokers."""
        return frozenset(BrokerId(int(name)) for name in await list_names(self._zk, BROKER_IDS) if _ID.fullmatch(name))

    async def deletions(self) -> Sequence[str]:
        """Return the names of the topics whose deletion is requested."""
        return await list_names(self._zk, DELETE_TOPICS)

    async def ask_deletion(self, name: str) -> None:
        """Request a topic's deletion, as admin tools do."""
        await self._zk.ensure_path(delete_topic_path(name))

    async def forget_deletion(self, name: str) -> None:
        """Remove the request for a topic's deletion, which was carried out or is refused."""
        with contextlib.suppress(NoNode):
            await self._zk.delete(delete_topic_path(name))

    async def remove(self, name: str) -> None:
        """Remove a topic's nodes, and last the request for its deletion."""
        await self._delete_tree(topic_path(name))
        await self._delete_tree(topic_settings_path(name))
        await self.forget_deletion(name)

    async def purge_config_changes(self, now_ms: int) -> None:
        """Remove old notifications of changed topic settings.

        A notification is old when every broker must have seen it.

        Args:
            now_ms: Present time, in ms since the Unix epoch.
        """
        for name in await list_names(self._zk, CONFIG_CHANGES):
            path = f"{CONFIG_CHANGES}/{name}"
            stat = await self._zk.exists(path)
            if stat is not None and now_ms - stat.ctime_ms > CHANGES_KEPT_MS:
                with contextlib.suppress(NoNode):
                    await self._zk.delete(path)

    async def _controller_epoch(self) -> int:
        node = await self._zk.find(CONTROLLER_EPOCH)
        return FIRST_CONTROLLER_EPOCH if node is None else parse_controller_epoch(node[0])

    async def _delete_tree(self, path: str) -> None:
        while True:
            for name in await list_names(self._zk, path):
                await self._delete_tree(f"{path}/{name}")
            try:
                await self._zk.delete(path)
            except NotEmpty:
                continue  # a child was added meanwhile
            except NoNode:
                pass
            return

    def _complain(self, path: str, what: str) -> None:
        if (path, what) not in self._complaints:
            self._complaints.add((path, what))
            log.warning("znode_ignored", path=path, reason=what)
