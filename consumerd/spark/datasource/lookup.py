# SPDX-License-Identifier: Apache-2.0
"""What a cluster has, asked on the driver: topics and partitions, ends of logs, times, groups' positions.

:class:`ClusterLookup` runs its connections on an event loop of its own in a thread, so that it can be used from
anywhere, a notebook with a running loop included, and stays connected between the triggers of a stream.

A group's positions are read, and judged, by :class:`~consumerd.offsets.positions.GroupPositions`, as for the daemon.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self, TypeVar, assert_never

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import Brokers, ClusterConnections, ask_brokers, open_cluster
from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRangeReader
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import ConfigError, ConnectionLost, NotFound
from consumerd.group.java_regex import UnsupportedPattern, compile_java
from consumerd.group.subscription import INTERNAL_TOPICS
from consumerd.model import LogRange, TopicPartition
from consumerd.offsets.positions import GroupPositions
from consumerd.offsets.store import Validity
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.spark.datasource.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    AtGroup,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Edge,
    MissingPosition,
    NoLaterRecord,
    ReadOptions,
    Selection,
    Subscribe,
    SubscribePattern,
)
from consumerd.zk.layout import group_path, topic_path

T = TypeVar("T")

_SESSION_S: Final = 10.0
_TRIES: Final = 4
"""How often a topic that is named is looked for: brokers hear of a new one moments after ZooKeeper does."""
_BETWEEN_S: Final = 0.25


class ClusterLookup:
    """A cluster as the driver asks it; ``with`` connects and disconnects.

    Each call blocks, ``timeout_s`` at most. They raise ConfigError (TLS files), ConnectionLost, CoordinationError,
    BrokerError.
    """

    def __init__(self, address: ClusterAddress, *, read_committed: bool = False, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._thread = LoopThread(
            open_connections(address, read_committed=read_committed, timeout_s=timeout_s), name="consumerd lookup"
        )

    def __enter__(self) -> Self:
        self._thread.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.__exit__(kind, error, traceback)

    def bootstrap(self) -> str:
        """Return the addresses of the brokers that are there, for executors: ``host:port,host:port``."""
        return ",".join(dict.fromkeys(str(one.address) for one in self._thread.resource.known_brokers()))

    def find_partitions(self, selection: Selection) -> tuple[TopicPartition, ...]:
        """Return the partitions that are selected, in order. Never makes a topic.

        Raises NotFound for a topic or partition that was named and is not there. A pattern may match nothing.
        """
        return self._call(lambda connections: connections.find_partitions(selection))

    def log_ranges(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return what each partition's log holds: ``[earliest, latest)``."""
        return self._call(lambda connections: connections.log_ranges(partitions))

    def first_offsets(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return each partition's first offset whose record has this timestamp or a later one; None where none has.

        Partitions are left out whose broker cannot tell that (before 0.10.1).
        """
        return self._call(lambda connections: connections.first_offsets(partitions, timestamp_ms))

    def czxids(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return the ``czxid`` of each topic that is there, which tells its makings apart; nothing where only brokers are known."""
        return self._call(lambda connections: connections.czxids(topics))

    def resolve_start(self, options: ReadOptions, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that ``options.starting`` means in each partition, whether or not the log (still) holds it.

        Raises NotFound for a group without a position of a partition, and where no record is of a time or later (each
        unless the options say otherwise); ConfigError where a bound by partition does not name exactly ``partitions``.
        """
        return self._call(
            lambda connections: connections.resolve(
                options.starting,
                partitions,
                side="starting",
                no_later_record=options.no_later_record,
                missing_position=options.missing_position,
            )
        )

    def resolve_end(self, options: ReadOptions, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that ``options.ending`` means; where no record is of a time or later that is the log's end.

        Raises as :meth:`resolve_start`.
        """
        return self._call(
            lambda connections: connections.resolve(
                options.ending,
                partitions,
                side="ending",
                no_later_record=NoLaterRecord.LATEST,
                missing_position=options.missing_position,
            )
        )

    def _call(self, ask: Callable[[Connections], Awaitable[T]]) -> T:
        async def bounded() -> T:
            try:
                async with timeout(self._timeout_s):
                    return await ask(self._thread.resource)
            except TimeoutError as error:
                raise ConnectionLost(f"the cluster has not answered within {self._timeout_s:g} s") from error

        return self._thread.call(bounded())


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The same questions on the event loop.

    Attributes:
        brokers: found first.
        seen: of the last answer. A stream may outlive those that were found first.
        patience_s: time that brokers have for an answer before others are looked up.
    """

    cluster: ClusterConnections
    brokers: Brokers
    read_committed: bool
    patience_s: float
    seen: list[Broker] = field(default_factory=list)

    def known_brokers(self) -> Brokers:
        """Return the brokers to ask, or to have asked: each address once."""
        by_address = {one.address: one for one in (*self.brokers, *self.seen)}
        return tuple(by_address.values())

    async def find_partitions(self, selection: Selection) -> tuple[TopicPartition, ...]:
        """Return the selected partitions; see :meth:`ClusterLookup.find_partitions`."""
        match selection:
            case SubscribePattern():
                view = await self._read(None)
                try:
                    matching = compile_java(selection.pattern).match_names(view.topics)
                except UnsupportedPattern as error:
                    raise ConfigError(f"subscribePattern: {error}") from error
                return _partitions(view, [name for name in view.topics if name in matching - INTERNAL_TOPICS])
            case Subscribe():
                return _partitions(await self._find_topics(selection.topics), selection.topics)
            case Assign():
                topics = list(dict.fromkeys(one.topic for one in selection.partitions))
                there = {*_partitions(await self._find_topics(topics), topics)}
                for one in selection.partitions:
                    if one not in there:
                        raise NotFound(f"{one}: topic {one.topic} has no such partition")
                return selection.partitions
            case _:
                assert_never(selection)

    async def log_ranges(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return what the logs hold."""
        return await (await self._range_reader(partitions)).read(partitions) if partitions else {}

    async def first_offsets(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return where records of a time begin; see :meth:`ClusterLookup.first_offsets`."""
        if not partitions:
            return {}
        return await (await self._range_reader(partitions)).first_offset_of_time(partitions, timestamp_ms)

    async def czxids(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return the topics' czxids; see :meth:`ClusterLookup.czxids`."""
        zk = self.cluster.session
        if zk is None:
            return {}
        found = await map_bounded(topics, lambda topic: zk.exists(topic_path(topic)))
        return {topic: stat.czxid for topic, stat in found.items() if stat is not None}

    async def resolve(
        self,
        bound: Bound,
        partitions: Collection[TopicPartition],
        *,
        side: str,
        no_later_record: NoLaterRecord,
        missing_position: MissingPosition,
    ) -> dict[TopicPartition, int]:
        """Return the offsets that a bound means; see :class:`ClusterLookup`. ``side`` is what its options begin with."""
        if not partitions:
            return {}
        match bound:
            case Edge():
                offset = EARLIEST_OFFSET if bound is Edge.EARLIEST else LATEST_OFFSET
                return await self._resolve_edges(dict.fromkeys(partitions, offset))
            case AtOffsets():
                _check_named(bound.offsets, partitions, f"{side}Offsets")
                return await self._resolve_edges({one: bound.offsets[one] for one in partitions})
            case AtTimestamp():
                times = dict.fromkeys(partitions, bound.timestamp_ms)
                return await self._resolve_times(times, no_later_record, f"{side}Timestamp")
            case AtTimestamps():
                _check_named(bound.timestamps_ms, partitions, f"{side}OffsetsByTimestamp")
                times = {one: bound.timestamps_ms[one] for one in partitions}
                return await self._resolve_times(times, no_later_record, f"{side}OffsetsByTimestamp")
            case AtGroup():
                return await self._resolve_group(bound.group, partitions, missing_position)
            case _:
                assert_never(bound)

    # -- topics

    async def _read(self, topics: Collection[str] | None) -> ClusterView:
        view = await self._ask(lambda brokers: self._source(lambda: brokers).read(topics))
        self.seen[:] = view.brokers.values()
        return view

    async def _ask(self, ask: Callable[[Brokers], Awaitable[T]]) -> T:
        look_up = None if self.cluster.session is None else self.cluster.find_registered
        return await ask_brokers(self.known_brokers(), ask, look_up)

    def _source(self, known: Callable[[], Collection[Broker]]) -> BrokerSource:
        return BrokerSource(
            self.cluster.pool,
            known,
            random=random.random,
            timeout_s=self.cluster.address.request_timeout_s,
            patience_s=self.patience_s,
        )

    async def _find_topics(self, topics: Collection[str]) -> ClusterView:
        """Return a view of these topics. Raises NotFound that names those that are not there."""
        for left in reversed(range(_TRIES)):
            view = await self._read(topics)
            missing = [name for name in topics if name not in view.topics or not view.topics[name].partitions]
            if not missing:
                return view
            if left:
                await asyncio.sleep(_BETWEEN_S)
        known = sorted((await self._read(None)).topics.keys() - INTERNAL_TOPICS)
        listed = ", ".join(known[:_LISTED]) + (" ..." if len(known) > _LISTED else "") or "none"
        raise NotFound(f"there is no topic {', '.join(missing)} in the cluster; the topics there: {listed}")

    # -- offsets

    async def _range_reader(self, partitions: Collection[TopicPartition]) -> LogRangeReader:
        topics = {one.topic for one in partitions}

        async def find_leaders(brokers: Brokers) -> MetadataDirectory:
            leaders = MetadataDirectory(self._source, lambda: brokers, random=random.random, topics=topics)
            await leaders.refresh("started")
            if leaders.failure is not None:
                raise leaders.failure
            return leaders

        return LogRangeReader(
            self.cluster.pool,
            await self._ask(find_leaders),
            random=random.random,
            read_committed=self.read_committed,
            request_timeout_s=self.cluster.address.request_timeout_s,
        )

    async def _resolve_edges(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        edges = [one for one, offset in offsets.items() if offset < 0]
        ranges = await self.log_ranges(edges)
        return {
            one: offset if offset >= 0 else ranges[one].earliest if offset == EARLIEST_OFFSET else ranges[one].latest
            for one, offset in offsets.items()
        }

    async def _resolve_times(
        self, times: Mapping[TopicPartition, int], no_later_record: NoLaterRecord, option: str
    ) -> dict[TopicPartition, int]:
        reader = await self._range_reader(times)
        found: dict[TopicPartition, int | None] = {}
        for time in sorted({*times.values()}):
            found |= await reader.offset_for_time([one for one, wanted in times.items() if wanted == time], time)
        missing = [one for one, offset in found.items() if offset is None]
        if missing and no_later_record is NoLaterRecord.ERROR:
            raise NotFound(
                f"{option}: {missing[0]} has no record of time {times[missing[0]]} or later; "
                "set startingOffsetsByTimestampStrategy to latest to begin at its end then"
            )
        ends = await reader.read(missing) if missing else {}
        return {one: ends[one].latest if offset is None else offset for one, offset in found.items()}

    async def _resolve_group(
        self, group: str, partitions: Collection[TopicPartition], missing_position: MissingPosition
    ) -> dict[TopicPartition, int]:
        zk = self.cluster.session
        if zk is None:
            raise ConfigError(f"group:{group} is kept in ZooKeeper; give the option zookeeper")
        if await zk.exists(group_path(group)) is None:
            raise NotFound(f"there is no group {group!r} in ZooKeeper")
        stored = await GroupPositions(zk, group).find(partitions)
        for one, position in stored.items():
            if position.validity is Validity.MALFORMED:
                raise ConfigError(f"group {group!r}: its position of {one} is no number: {position.text[:40]!r}")
        found = {one: position.valid for one, position in stored.items() if position.valid is not None}
        missing = [one for one in stored if one not in found]
        if missing and missing_position is MissingPosition.ERROR:
            first = missing[0]
            raise NotFound(
                f"group {group!r} has no position of {first} ({stored[first].explain()}); set groupPositionMissing to "
                "earliest or latest to read such a partition from there"
            )
        edge = EARLIEST_OFFSET if missing_position is MissingPosition.EARLIEST else LATEST_OFFSET
        return found | await self._resolve_edges(dict.fromkeys(missing, edge))


_LISTED: Final = 20


@asynccontextmanager
async def open_connections(
    address: ClusterAddress, *, read_committed: bool, timeout_s: float
) -> AsyncIterator[Connections]:
    """Connect to a cluster for the block: find its brokers, and to ZooKeeper where it is given.

    Raises ConfigError, CoordinationError, ConnectionLost.
    """
    async with open_cluster(address, wait_s=min(_SESSION_S, timeout_s)) as cluster:
        yield Connections(
            cluster=cluster,
            brokers=address.first_brokers() or await cluster.find_registered(),
            read_committed=read_committed,
            # the other half is for the brokers that ZooKeeper names instead of those that hang
            patience_s=timeout_s if cluster.session is None else timeout_s / 2,
        )


def _partitions(view: ClusterView, topics: Collection[str]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(name, key) for name in topics for key in view.topics[name].partitions))


def _check_named(named: Collection[TopicPartition], partitions: Collection[TopicPartition], option: str) -> None:
    """Raise ConfigError unless exactly the partitions that are read are named, as Spark's own source wants it."""
    wanted, given = {*partitions}, {*named}
    if missing := sorted(wanted - given):
        raise ConfigError(
            f"{option}: {missing[0]} is read and not named; name every partition (-2 earliest, -1 latest)"
        )
    if unknown := sorted(given - wanted):
        raise ConfigError(f"{option}: {unknown[0]} is named and not read")
