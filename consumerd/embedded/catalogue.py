# SPDX-License-Identifier: Apache-2.0
"""The topics of the embedded brokers: opens, closes and deletes logs as ZooKeeper says.

This is the work of a broker and of a controller on topics. A pass compares ZooKeeper with the open logs, and opens or
closes logs accordingly. It runs when ZooKeeper changes (a topic created by an admin tool, partitions added, settings
changed, a deletion requested), after :meth:`LogCatalogue.create` and :meth:`LogCatalogue.delete`, and every 30 seconds.
Passes run one after the other in one task, so each sees the complete result of the previous one, and a cancelled caller
does not interrupt a pass. A pass reads the topics whose nodes have changed; it reads all after a change of settings, a
failure, and every ``reconcile_s``.

Invariants:

- A partition's log is found only while it has a ``state`` node and its topic exists. A single broker leads all of its
  partitions; ``node_topics`` shows each of several brokers the logs of the partitions that it leads.
- Only a controller's election changes leaders: without a registered controller nothing is written to ``state`` nodes.
- A ``state`` node is created once per incarnation of a topic. Any folder with the partition's name at that time belongs
  to a deleted topic, and is renamed before the node is created, so a crash in between leaves nothing ambiguous.
- Records are deleted only for a topic whose deletion was requested (``/admin/delete_topics``). If nodes disappear
  otherwise, the logs are closed and kept on disk.

Partitions that an admin tool assigned to other brokers are known, but have no log here. All brokers of this process
share one log per partition, so a replica that is alive is in sync.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

import structlog

from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.embedded.appending import Appender
from consumerd.embedded.elections import assign_replicas
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.nodes import Nodes
from consumerd.embedded.topic_config import apply_config
from consumerd.embedded.topic_nodes import TopicNodes
from consumerd.embedded.topics import InvalidPartitions, InvalidTopic, NoSuchTopic, Topic, TopicExists, find_collision
from consumerd.embedded.znodes import CONFIG_CHANGES, DELETE_TOPICS, PREFERRED_ELECTION
from consumerd.errors import ConfigError, CoordinationError
from consumerd.model import BrokerId, TopicPartition, find_topic_fault
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, topic_path
from consumerd.zk.port import Watch, WatchKind, ZkClient
from consumerd.zk.znodes import PartitionStateNode

_RETRY_S: Final = 1.0
_RECONCILE_S: Final = 30.0
"""Interval, in seconds, of passes that read all topics, even if nothing has changed."""
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LogCatalogue:
    """The topics in ZooKeeper, with the open logs of this process's brokers.

    Implements :class:`~consumerd.embedded.topics.Topics`. Entering its ``async with`` block opens the logs.

    Args:
        nodes: The brokers of this process.
        settings: The broker's defaults of the topics' settings.
        with_topic_ids: Gives new topics an id.
        directory: The directory of the logs. Its owner closes it, and the logs with it.
    """

    def __init__(
        self,
        zk: ZkClient,
        *,
        nodes: Nodes,
        settings: LogSettings,
        with_topic_ids: bool = False,
        directory: LogDirectory,
        appender: Appender,
        now_ms: Callable[[], int],
    ) -> None:
        self._zk = zk
        self.nodes = nodes
        self._settings = settings
        self._with_topic_ids = with_topic_ids
        self._directory = directory
        self._appender = appender
        self._now_ms = now_ms
        self._znodes = TopicNodes(zk)
        self._topics: dict[str, Topic] = {}
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._states: dict[TopicPartition, PartitionStateNode] = {}
        """The newest state of each partition with an open log."""
        self._elected_for: frozenset[BrokerId] | None = None
        """The live brokers of the last complete elections."""
        self._elected_by: BrokerId | None = None
        """The controller of the last complete elections."""
        self._unusable: dict[TopicPartition, str] = {}
        self._undeleted: dict[str, LogError] = {}
        """Topics whose records could not be deleted; retried in every pass."""
        self._stale: set[str] = set()
        """Topics whose nodes may have changed since they were read."""
        self._all_stale = True
        self._watches: dict[str, Watch] = {}
        self._subscribers: list[Callable[[frozenset[str]], None]] = []
        self._dirty = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """Waiters for a pass that has not begun yet."""
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the logs of the partitions in ZooKeeper. Raises CoordinationError, LogError, OSError."""
        async with AsyncExitStack() as stack:
            stack.callback(self._close_watches)
            for path in (BROKER_TOPICS, DELETE_TOPICS):
                self._watch(path, WatchKind.CHILDREN, self._dirty.set)
            self._watch(CONFIG_CHANGES, WatchKind.CHILDREN, self._read_all)
            self._watch(PREFERRED_ELECTION, WatchKind.DATA, self._dirty.set)
            if not self.nodes.is_single:
                self._watch(BROKER_IDS, WatchKind.CHILDREN, self._dirty.set)
                self.nodes.subscribe(self._dirty.set)
            await self._pass()
            await stack.enter_async_context(alongside(self._run(), name="topics"))
            self._running = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._running.__aexit__(kind, error, traceback)

    # -- look-ups

    def names(self) -> Sequence[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._topics)

    def find(self, topic: str) -> Topic | None:
        """Return a topic, or None if it does not exist."""
        return self._topics.get(topic)

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return a partition's open log.

        None if the partition does not exist, or its log is not open here.
        """
        return self._logs.get(partition)

    def find_state(self, partition: TopicPartition) -> PartitionStateNode | None:
        """Return leader and in-sync replicas of a partition; None before the first leader is elected."""
        return self._states.get(partition) if partition in self._logs else None

    def is_follower(self, partition: TopicPartition) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: for a single broker, which follows no other.

        For several brokers, ``node_topics.NodeTopics`` answers this question instead.
        """
        return False

    def logs(self) -> Collection[PartitionLog]:
        """Return the open logs of all partitions."""
        return tuple(self._logs.values())

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``changed`` with the names of topics that are created, deleted or extended.

        ``changed`` must neither raise nor block. Returns a function that ends the subscription.
        """
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    # -- changes

    async def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; return when its logs are open.

        Raises InvalidTopic, InvalidPartitions, TopicExists, CoordinationError.
        """
        if fault := find_topic_fault(topic):
            raise InvalidTopic(f"topic {topic!r}: {fault}")
        if other := find_collision(topic, self._topics):
            raise InvalidTopic(f"topic {topic!r}: there is {other!r}, which differs in '.' and '_' only")
        if partitions < 1:
            raise InvalidPartitions(f"topic {topic}: {partitions} partitions, expected at least 1")
        if topic in self._topics:
            raise TopicExists(f"topic {topic} exists already")
        own = dict(config or {})
        apply_config(self._settings, own)
        replicas = assign_replicas(range(partitions), self.nodes.ids, len(self.nodes.ids))
        try:
            await self._znodes.create(topic, replicas, own, uuid.uuid4() if self._with_topic_ids else None)
        except TopicExists:
            # created by another request a moment ago: who is told so may ask for its settings next
            await self._next_pass()
            raise
        await self._next_pass()

    async def extend(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, ``partitions`` in all; return when their logs are open.

        Raises NoSuchTopic, InvalidPartitions, CoordinationError.
        """
        known = self._topics.get(topic)
        if known is None:
            raise NoSuchTopic(f"there is no topic {topic!r}")
        present = len(known.partitions)
        if partitions <= present:
            raise InvalidPartitions(f"topic {topic}: {partitions} partitions, expected more than {present}")
        added = assign_replicas(range(present, partitions), self.nodes.ids, len(self.nodes.ids))
        await self._znodes.assign(known, {**known.replicas, **added})
        await self._next_pass()

    async def delete(self, topic: str) -> None:
        """Delete a topic with its records. Raises NoSuchTopic, CoordinationError."""
        if topic not in self._topics:
            raise NoSuchTopic(f"there is no topic {topic!r}")
        await self._znodes.ask_deletion(topic)
        await self._next_pass()
        if topic in self._undeleted:
            raise self._undeleted[topic]

    async def elect_preferred(self) -> None:
        """Make the first replica of each partition its leader, if that replica is in sync.

        This is the preferred replica election of Kafka's admin tool. Returns after the election. Raises
        CoordinationError.
        """
        wanted = [
            TopicPartition.modern(topic.name, number)
            for topic in self._topics.values()
            for number, replicas in topic.replicas.items()
            if (state := self._states.get(TopicPartition.modern(topic.name, number))) is not None
            and replicas[:1] != (state.leader,)
        ]
        await self._znodes.ask_preferred_election(wanted)
        await self._next_pass()

    async def move_leader(self, partition: TopicPartition, broker: BrokerId) -> None:
        """Make ``broker`` the first replica of a partition, and elect it as leader.

        The broker becomes leader only if it is in sync. The effect is that of a reassignment to the same replicas in
        another order. Raises NoSuchTopic, InvalidPartitions (the broker has no replica), CoordinationError.
        """
        topic = self._topics.get(partition.topic)
        if topic is None:
            raise NoSuchTopic(f"there is no topic {partition.topic!r}")
        replicas = topic.replicas.get(partition.partition.number, ())
        if broker not in replicas:
            raise InvalidPartitions(f"{partition}: broker {broker} has no replica, expected one of {replicas}")
        ordered = (broker, *(one for one in replicas if one != broker))
        await self._znodes.assign(topic, {**topic.replicas, partition.partition.number: ordered})
        self._stale.add(topic.name)
        await self._next_pass()  # a pass that has not read the new order would find nothing to elect
        await self._znodes.ask_preferred_election([partition])
        await self._next_pass()

    async def settle(self, broker: BrokerId) -> None:
        """Wait until leaders are elected, after ``broker`` has registered or begun to leave.

        The election needs a controller. If the controller was killed, another one is elected only when its session has
        expired. Raises CoordinationError.
        """
        while True:
            await self._next_pass()
            settled = self._elected_for == self.nodes.live
            if self.nodes.is_single or not self.nodes.live or (settled and self._knows(broker)):
                return
            if self.nodes.controller is None:
                await self.nodes.wait_controller()

    def _knows(self, broker: BrokerId) -> bool:
        return broker in self.nodes.live or broker in self.nodes.leaving

    # -- passes

    async def _next_pass(self) -> None:
        """Wait for a pass that begins after this call. Raises the error that ends it.

        A pass takes as long as its ZooKeeper calls, and the disk.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._dirty.set()
        await done

    def _read_all(self) -> None:
        self._all_stale = True
        self._dirty.set()

    def _read_again(self, topic: str) -> None:
        self._stale.add(topic)
        self._dirty.set()

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                async with timeout(_RECONCILE_S):
                    await self._dirty.wait()
            except TimeoutError:
                self._all_stale = True
            self._dirty.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await self._pass()
            except (CoordinationError, LogError, OSError) as error:
                for done in waiting:
                    if not done.done():
                        done.set_exception(error)
                if not failing:
                    log.warning("topics_not_in_line", error=str(error))
                failing = True
                # retry everything after a pause
                await asyncio.sleep(_RETRY_S)
                self._read_all()
            else:
                failing = False
            finally:
                for done in waiting:
                    if not done.done():
                        done.set_result(None)

    async def _pass(self) -> None:
        """Open and close logs according to ZooKeeper.

        Raises CoordinationError, LogError, OSError.
        """
        changed: set[str] = set()
        stale, self._stale = self._stale, set()
        everything, self._all_stale = self._all_stale, False
        known = {} if everything else {name: topic for name, topic in self._topics.items() if name not in stale}
        try:
            found = dict(await self._znodes.read(known))
            for name in await self._znodes.deletions():
                if name in found:
                    changed.add(name)
                    await self._delete(found.pop(name))
                else:
                    await self._znodes.forget_deletion(name)
            await self._znodes.purge_config_changes(self._now_ms())
            await self._close_gone(found, changed)
            live = await self._read_live()
            electing = live != self._elected_for
            controller = self.nodes.controller if self._may_elect else None
            for topic in found.values():
                if self._watch(topic_path(topic.name), WatchKind.DATA, functools.partial(self._read_again, topic.name)):
                    self._stale.add(topic.name)  # it may have changed before the watch: read it again
                await self._serve(topic, changed, electing=electing)
            # a controller that was elected meanwhile has settled a part of the partitions: it settles all of them next
            if controller is not None and self.nodes.controller == controller:
                self._elected_for, self._elected_by = live, controller
                await self._elect_preferred(changed)
        finally:
            if changed:
                for subscriber in tuple(self._subscribers):
                    subscriber(frozenset(changed))

    async def _close_gone(self, found: Mapping[str, Topic], changed: set[str]) -> None:
        """Close the logs of topics that are gone or re-created."""
        for name, known in tuple(self._topics.items()):
            now = found.get(name)
            if now is None or now.czxid != known.czxid:
                log.warning("topic_lost", topic=name, made_again=now is not None)
                changed.add(name)
                for closing in self._hide(name):
                    # queued after pending appends
                    await self._appender.run(closing.partition, closing.close)

    async def _read_live(self) -> frozenset[BrokerId]:
        if not self.nodes.is_single:
            self.nodes.registered = (await self._znodes.registered()).intersection(self.nodes.ids)
        return self.nodes.live

    @property
    def _may_elect(self) -> bool:
        """True if there is a live controller."""
        return self.nodes.controller is not None and bool(self.nodes.live)

    async def _elect_preferred(self, changed: set[str]) -> None:
        """Carry out a requested preferred replica election."""
        wanted = await self._znodes.preferred_elections()
        if wanted is None:
            return
        for partition in wanted:
            topic = self._topics.get(partition.topic)
            if topic is None or partition not in self._logs:
                continue
            replicas = topic.replicas[partition.partition.number]
            if (state := await self._znodes.prefer(partition, replicas, self.nodes.live)) is not None:
                self._states[partition] = state
                changed.add(topic.name)
        await self._znodes.finish_preferred_election()

    async def _serve(self, topic: Topic, changed: set[str], *, electing: bool) -> None:
        """Open a topic's missing logs, elect leaders, and apply its settings to all."""
        known = self._topics.get(topic.name)
        own = [
            TopicPartition.modern(topic.name, number)
            for number, brokers in topic.replicas.items()
            if not set(self.nodes.ids).isdisjoint(brokers)
        ]
        missing = [partition for partition in own if partition not in self._logs]
        if known == topic and not missing and not electing:
            return
        settings = self._settings_of(topic)
        moved = False
        if electing:
            for partition in own:
                if partition in self._logs:
                    moved |= await self._settle(topic, partition)
        opened = [partition for partition in missing if await self._open(topic, partition, settings)]
        for partition in own:
            if partition in self._logs:
                self._logs[partition].settings = settings
        if known != topic or opened or moved:
            self._topics[topic.name] = topic
            changed.add(topic.name)

    async def _settle(self, topic: Topic, partition: TopicPartition) -> bool:
        """Bring a partition's state in line with the live brokers.

        Returns True if it has changed.
        """

        async def make_room() -> None:
            aside = await self._appender.run(partition, functools.partial(self._directory.set_aside, partition))
            if aside is not None:
                log.warning("partition_set_aside", partition=str(partition), path=str(aside))

        state = await self._znodes.settle(
            partition,
            topic.replicas[partition.partition.number],
            live=self.nodes.live if self._may_elect else frozenset(),
            known=frozenset(self.nodes.ids),
            failed_over=self._elected_by not in (None, self.nodes.controller),
            make_room=make_room,
        )
        if state is None or state == self._states.get(partition):
            return False
        self._states[partition] = state
        if partition in self._logs:
            log.info(
                "leader_changed", partition=str(partition), leader=state.leader, epoch=state.leader_epoch, isr=state.isr
            )
        return True

    def _settings_of(self, topic: Topic) -> LogSettings:
        try:
            return apply_config(self._settings, topic.config)
        except ConfigError as error:
            log.warning("topic_settings_ignored", topic=topic.name, error=str(error))
            return self._settings

    async def _open(self, topic: Topic, partition: TopicPartition, settings: LogSettings) -> bool:
        """Elect a partition's leader and open its log.

        Returns False if the topic is gone, no replica is alive, or the log cannot be opened.
        """
        self._states.pop(partition, None)
        if not await self._settle(topic, partition):
            return False
        opening = functools.partial(self._directory.open_log, partition, settings)
        try:
            self._logs[partition] = await self._appender.run(partition, opening)
        except LogError as error:
            if self._unusable.get(partition) != str(error):
                self._unusable[partition] = str(error)
                log.error("partition_unusable", partition=str(partition), error=str(error))  # noqa: TRY400 - it is all
            return False
        self._unusable.pop(partition, None)
        return True

    async def _delete(self, topic: Topic) -> None:
        """Delete a topic's records, and then its nodes.

        A topic that cannot be deleted now is not found any more, and does not block others.
        """
        self._hide(topic.name)
        try:
            for number in topic.partitions:
                partition = TopicPartition.modern(topic.name, number)
                await self._appender.run(partition, functools.partial(self._directory.delete_log, partition))
        except LogError as error:
            if topic.name not in self._undeleted:
                log.warning("topic_not_deleted", topic=topic.name, error=str(error))
            self._undeleted[topic.name] = error
            return
        self._undeleted.pop(topic.name, None)
        await self._znodes.remove(topic.name)
        log.info("topic_deleted", topic=topic.name)

    def _hide(self, name: str) -> Sequence[PartitionLog]:
        """Remove a topic from look-ups; return its logs."""
        self._topics.pop(name, None)
        if watch := self._watches.pop(topic_path(name), None):
            watch.close()
        for partition in [one for one in self._states if one.topic == name]:
            del self._states[partition]
        return [self._logs.pop(partition) for partition in tuple(self._logs) if partition.topic == name]

    def _close_watches(self) -> None:
        while self._watches:
            self._watches.popitem()[1].close()

    def _watch(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> bool:
        """Watch a node; return False if it is watched already."""
        if path in self._watches:
            return False
        self._watches[path] = self._zk.watch(path, kind, dirty)
        return True
