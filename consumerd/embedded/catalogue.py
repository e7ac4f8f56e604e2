# SPDX-License-Identifier: Apache-2.0
"""The topics in ZooKeeper as open logs: a broker's and controller's work on topics.

A pass compares ZooKeeper with the open logs, and opens or closes logs accordingly. It runs when ZooKeeper changes (a
topic created by an admin tool, partitions added, settings changed, a deletion requested), after
:meth:`LogCatalogue.create` and :meth:`LogCatalogue.delete`, and every ``reconcile_s`` seconds. Passes run one after the
other in one task, so each sees the complete result of the previous one, and a cancelled caller leaves no half pass
behind. A pass reads the topics whose nodes have changed; it reads all after a change of settings, a failure, and every
``reconcile_s``.

Invariants:

- A partition's log is found only while its ``state`` node names this broker as the leader and its topic exists.
- A ``state`` node is created once per incarnation of a topic. Any folder with the partition's name at that time belongs
  to a deleted topic, and is renamed before the node is created, so a crash in between leaves nothing ambiguous.
- Records are deleted only for a topic whose deletion was requested (``/admin/delete_topics``). If nodes disappear
  otherwise, the logs are closed and kept on disk.

Partitions that an admin tool assigned to other brokers are known, but have no log here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

import structlog

from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.embedded.appending import Appender
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.storage import Storage
from consumerd.embedded.topic_config import apply_config
from consumerd.embedded.topic_names import find_collision
from consumerd.embedded.topic_nodes import TopicNodes
from consumerd.embedded.topics import InvalidPartitions, InvalidTopic, NoSuchTopic, Topic, TopicExists
from consumerd.embedded.znodes import CONFIG_CHANGES, DELETE_TOPICS
from consumerd.errors import ConfigError, CoordinationError
from consumerd.model import BrokerId, TopicPartition, find_topic_fault
from consumerd.zk.layout import BROKER_TOPICS, topic_path
from consumerd.zk.port import Watch, WatchKind, ZkClient

_RETRY_S: Final = 1.0
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LogCatalogue:
    """The topics, with the logs of this broker's partitions.

    Implements :class:`~consumerd.embedded.topics.Topics`. Entering makes the first pass, which opens the logs; the
    storage closes them.

    Args:
        settings: The broker's defaults of the topics' settings.
        delete_topics: False drops requests for deletion, as brokers do by default before 1.0.
        reconcile_s: Interval, in seconds, of passes that read everything.
    """

    def __init__(
        self,
        zk: ZkClient,
        *,
        broker_id: BrokerId,
        settings: LogSettings,
        storage: Storage,
        appender: Appender,
        now_ms: Callable[[], int],
        delete_topics: bool = True,
        reconcile_s: float = 30.0,
    ) -> None:
        self._zk = zk
        self._broker_id = broker_id
        self._settings = settings
        self._storage = storage
        self._appender = appender
        self._now_ms = now_ms
        self._delete_topics = delete_topics
        self._reconcile_s = reconcile_s
        self._nodes = TopicNodes(zk, broker_id)
        self._topics: dict[str, Topic] = {}
        self._logs: dict[TopicPartition, PartitionLog] = {}
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
        """Make the first pass. Raises CoordinationError, LogError, OSError."""
        for path in (BROKER_TOPICS, DELETE_TOPICS):
            self._watch(path, WatchKind.CHILDREN, self._dirty.set)
        self._watch(CONFIG_CHANGES, WatchKind.CHILDREN, self._read_all)
        try:
            await self._pass()
        except BaseException:
            self._close_watches()
            raise
        await self._running.enter_async_context(alongside(self._run(), name="topics"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._running.__aexit__(kind, error, traceback)
        finally:
            self._close_watches()

    # -- look-ups

    def names(self) -> Sequence[str]:
        """See Topics."""
        return sorted(self._topics)

    def find(self, topic: str) -> Topic | None:
        """See Topics."""
        return self._topics.get(topic)

    def partitions(self, topic: str) -> Sequence[int] | None:
        """See Topics."""
        found = self._topics.get(topic)
        return found.partitions if found is not None else None

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        """See Topics."""
        return self._logs.get(partition)

    def logs(self) -> Collection[PartitionLog]:
        """See Topics."""
        return tuple(self._logs.values())

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """See Topics."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    # -- changes

    async def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """See Topics."""
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
        await self._nodes.create(topic, dict.fromkeys(range(partitions), (self._broker_id,)), own)
        await self._next_pass()

    async def delete(self, topic: str) -> None:
        """See Topics."""
        if topic not in self._topics:
            raise NoSuchTopic(f"there is no topic {topic!r}")
        if not self._delete_topics:
            raise ConfigError(f"topic {topic}: this broker was told not to delete topics (delete.topic.enable)")
        await self._nodes.ask_deletion(topic)
        await self._next_pass()
        if topic in self._undeleted:
            raise self._undeleted[topic]

    # -- passes

    async def _next_pass(self) -> None:
        """Wait for a pass that sees the present state. Raises the error that ends it.

        Bounded as a pass is.
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
                async with timeout(self._reconcile_s):
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
            found = dict(await self._nodes.read(known))
            for name in await self._nodes.deletions():
                if name in found and self._delete_topics:
                    changed.add(name)
                    await self._delete(found.pop(name))
                else:
                    await self._nodes.forget_deletion(name)
            await self._nodes.purge_config_changes(self._now_ms())
            await self._close_gone(found, changed)
            for topic in found.values():
                if self._watch(topic_path(topic.name), WatchKind.DATA, functools.partial(self._read_again, topic.name)):
                    self._stale.add(topic.name)  # it may have changed before the watch: read it again
                await self._serve(topic, changed)
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

    async def _serve(self, topic: Topic, changed: set[str]) -> None:
        """Open a topic's missing logs, and apply its settings to all."""
        known = self._topics.get(topic.name)
        own = [
            TopicPartition.modern(topic.name, p) for p, brokers in topic.replicas.items() if self._broker_id in brokers
        ]
        missing = [partition for partition in own if partition not in self._logs]
        if known == topic and not missing:
            return
        settings = self._settings_of(topic)
        opened = [partition for partition in missing if await self._open(partition, settings)]
        for partition in own:
            if partition in self._logs:
                self._logs[partition].settings = settings
        if known != topic or opened:
            self._topics[topic.name] = topic
            changed.add(topic.name)

    def _settings_of(self, topic: Topic) -> LogSettings:
        try:
            return apply_config(self._settings, topic.config)
        except ConfigError as error:
            log.warning("topic_settings_ignored", topic=topic.name, error=str(error))
            return self._settings

    async def _open(self, partition: TopicPartition, settings: LogSettings) -> bool:
        """Become a partition's leader and open its log.

        Returns False if the topic is gone, or the log cannot be opened.
        """

        async def make_room() -> None:
            aside = await self._appender.run(partition, functools.partial(self._storage.set_aside, partition))
            if aside is not None:
                log.warning("partition_set_aside", partition=str(partition), path=str(aside))

        if not await self._nodes.lead(partition, make_room):
            return False
        opening = functools.partial(self._storage.open_log, partition, settings)
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
                await self._appender.run(partition, functools.partial(self._storage.delete_log, partition))
        except LogError as error:
            if topic.name not in self._undeleted:
                log.warning("topic_not_deleted", topic=topic.name, error=str(error))
            self._undeleted[topic.name] = error
            return
        self._undeleted.pop(topic.name, None)
        await self._nodes.remove(topic.name)
        log.info("topic_deleted", topic=topic.name)

    def _hide(self, name: str) -> Sequence[PartitionLog]:
        """Remove a topic from look-ups; return its logs."""
        self._topics.pop(name, None)
        if watch := self._watches.pop(topic_path(name), None):
            watch.close()
        return [self._logs.pop(partition) for partition in tuple(self._logs) if partition.topic == name]

    def _close_watches(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _watch(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> bool:
        """Watch a node; return False if it is watched already."""
        if path in self._watches:
            return False
        self._watches[path] = self._zk.watch(path, kind, dirty)
        return True
