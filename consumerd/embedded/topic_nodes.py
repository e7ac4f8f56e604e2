# SPDX-License-Identifier: Apache-2.0
"""Topics in ZooKeeper, as a broker, its controller and the admin tools handle them.

All methods make ZooKeeper calls, each bounded by the session's deadline, and raise CoordinationError. All can be
repeated: completed steps are recognised.

Sources: Kafka's ``AdminUtils.scala``, ``PartitionStateMachine.scala``, ``TopicDeletionManager.scala`` and
``ZkNodeChangeNotificationListener.scala`` (0.8.2 to 1.1).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import structlog

from consumerd.aio.parallel import map_bounded
from consumerd.embedded.topics import Topic, TopicExists
from consumerd.embedded.znodes import (
    CONFIG_CHANGES,
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    FIRST_CONTROLLER_EPOCH,
    config_path,
    delete_topic_path,
    encode_config,
    encode_partition_state,
    encode_topic,
    next_epoch,
    parse_config,
    parse_controller_epoch,
)
from consumerd.model import BrokerId, TopicPartition, find_topic_fault
from consumerd.zk.layout import BROKER_TOPICS, topic_path
from consumerd.zk.layout_modern import partition_path, partition_state_path, partitions_path
from consumerd.zk.listing import list_names
from consumerd.zk.port import NodeExists, NoNode, NotEmpty, ZkClient
from consumerd.zk.znodes import MalformedZnode, PartitionStateNode, parse_partition_state, parse_topic

CHANGES_KEPT_MS: Final = 15 * 60 * 1000
"""Time, in milliseconds, for which a notification of changed settings is kept, for other brokers."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TopicNodes:
    """The nodes of all topics, for the broker ``broker_id``."""

    def __init__(self, zk: ZkClient, broker_id: BrokerId) -> None:
        self._zk = zk
        self._broker_id = broker_id
        self._complaints: set[tuple[str, str]] = set()

    async def read(self, known: Mapping[str, Topic]) -> Mapping[str, Topic]:
        """List all topics, and read those that are not in ``known``.

        Topics whose node is malformed, or whose name is not legal, are left out, with one warning each.
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
        configs = await map_bounded(map(config_path, found), self._zk.find)
        for name, path in found.items():
            node, config = nodes[path], configs[config_path(name)]
            if node is None:
                continue
            try:
                replicas = {key.number: brokers for key, brokers in parse_topic(node[0]).items()}
            except MalformedZnode as error:
                self._complain(path, str(error))
                continue
            own = parse_config(config[0]) if config is not None else {}
            topics[name] = Topic(name=name, replicas=replicas, config=own, czxid=node[1].czxid)
        return topics

    async def create(self, name: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]) -> None:
        """Create a topic: first its settings, as admin tools do, then its node.

        Raises TopicExists.
        """
        path, settings = config_path(name), encode_config(config)
        if await self._zk.exists(topic_path(name)) is None:
            if await self._zk.exists(path) is None:
                await self._zk.ensure_path(path, settings)
            else:
                await self._zk.set(path, settings)  # left by a deleted topic of the same name
        await self._zk.ensure_path(BROKER_TOPICS)
        try:
            await self._zk.create(topic_path(name), encode_topic(replicas))
        except NodeExists:
            raise TopicExists(f"topic {name} exists already") from None

    async def lead(self, partition: TopicPartition, make_room: Callable[[], Awaitable[None]]) -> bool:
        """Make this broker a partition's leader in its ``state`` node.

        If the node names another leader or none, it is changed as by an election: with the next leader epoch, and the
        current controller's epoch. Returns False if the topic has just been deleted.

        Args:
            make_room: Awaited before the node of a new partition is created.
        """
        path = partition_state_path(partition)
        while (node := await self._zk.find(path)) is None:
            await make_room()
            state = PartitionStateNode(
                leader=self._broker_id,
                leader_epoch=0,
                isr=(self._broker_id,),
                controller_epoch=await self._controller_epoch(),
            )
            try:
                for parent in (partitions_path(partition.topic), partition_path(partition)):
                    with contextlib.suppress(NodeExists):
                        await self._zk.create(parent, b"")
                with contextlib.suppress(NodeExists):
                    await self._zk.create(path, encode_partition_state(state))
            except NoNode:
                return False
        try:
            state = parse_partition_state(node[0])
        except MalformedZnode as error:
            self._complain(path, str(error))
            state = PartitionStateNode(leader=None, leader_epoch=0, isr=(), controller_epoch=0)
        if state.leader != self._broker_id:
            elected = PartitionStateNode(
                leader=self._broker_id,
                leader_epoch=next_epoch(state.leader_epoch),
                isr=(self._broker_id,),
                controller_epoch=await self._controller_epoch(),
            )
            await self._zk.set(path, encode_partition_state(elected), version=node[1].version)
        return True

    async def deletions(self) -> Sequence[str]:
        """Return the topics whose deletion is requested."""
        return await list_names(self._zk, DELETE_TOPICS)

    async def ask_deletion(self, name: str) -> None:
        """Request a topic's deletion, as admin tools do."""
        await self._zk.ensure_path(delete_topic_path(name))

    async def forget_deletion(self, name: str) -> None:
        """Remove the request for a topic's deletion: it is done, or not to be done."""
        with contextlib.suppress(NoNode):
            await self._zk.delete(delete_topic_path(name))

    async def remove(self, name: str) -> None:
        """Remove a topic's nodes, and last the request for its deletion."""
        await self._delete_tree(topic_path(name))
        await self._delete_tree(config_path(name))
        await self.forget_deletion(name)

    async def purge_config_changes(self, now_ms: int) -> None:
        """Remove notifications of changed settings that every broker must have seen."""
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
