# SPDX-License-Identifier: Apache-2.0
"""Client by which Spark's driver looks up partitions, log ranges, offsets, and groups' positions.

:class:`ClusterLookup` runs its connections on an event loop in a thread, so it can be used even in a notebook with a
running loop, and stays connected between the triggers of a stream.

A group's positions are read and checked by :class:`~consumerd.offsets.positions.GroupPositions`, as in commands.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar, assert_never

import structlog

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import Brokers, ClusterConnections, ask_brokers, open_cluster
from consumerd.aio.timeouts import timeout
from consumerd.client.leaders import Leaders
from consumerd.client.log_range import LogRangeReader
from consumerd.client.offset_lookups import choose_offset_lookup
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.identities import ClusterIdentities
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import ConfigError, ConnectionLost, NotFound
from consumerd.group.java_regex import UnsupportedPattern, compile_java
from consumerd.group.subscription import INTERNAL_TOPICS
from consumerd.model import LogRange, TopicPartition
from consumerd.offsets.away import explain_away
from consumerd.offsets.opening import open_positions
from consumerd.offsets.positions import KeptPositions, describe_ahead
from consumerd.offsets.store import Place, Validity
from consumerd.spark.datasource.legacy_lookup import LegacyLookup
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
    GroupPlace,
    MissingPosition,
    NoLaterRecord,
    ReadOptions,
    Selection,
    Subscribe,
    SubscribePattern,
)
from consumerd.spark.datasource.planning import OffsetRange
from consumerd.telemetry.wording import join_shown

T = TypeVar("T")

_log = structlog.get_logger(__name__)

_SESSION_S: Final = 10.0
"""Longest wait for ZooKeeper, in seconds."""
_TRIES: Final = 4
"""Number of times that a missing topic is looked for: brokers learn of a new topic a moment after ZooKeeper."""
_BETWEEN_S: Final = 0.25
"""Pause between two of these, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupConnections:
    """Connections that look up partitions, offsets and positions, on one event loop.

    :class:`ClusterLookup` calls it from other threads.

    Attributes:
        brokers: brokers found when the connections were opened.
        seen: brokers in the last metadata response. A stream may outlive the brokers that were found first.
        patience_s: time, in seconds, that brokers have to answer before ZooKeeper is asked for other brokers.
        legacy: lookups at a cluster of Kafka 0.6 or 0.7; None for later releases.
    """

    cluster: ClusterConnections
    brokers: Brokers
    read_committed: bool
    patience_s: float
    legacy: LegacyLookup | None = None
    seen: list[Broker] = field(default_factory=list)

    def known_brokers(self) -> Brokers:
        """Return all known brokers, each address once."""
        by_address = {one.address: one for one in (*self.brokers, *self.seen)}
        return tuple(by_address.values())

    async def find_partitions(self, selection: Selection) -> tuple[TopicPartition, ...]:
        """Return the selected partitions, in order. Never creates a topic.

        Raises NotFound for a named topic or partition that does not exist. A pattern may match nothing.
        """
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
                view = await self._find_topics(topics)
                there = {*_partitions(view, topics)}
                for one in selection.partitions:
                    if one not in there and one.is_legacy:
                        raise NotFound(f"{one}: it does not exist, or is {explain_away(one, view.brokers)}")
                    if one not in there:
                        raise NotFound(f"{one}: topic {one.topic} has no such partition")
                return selection.partitions
            case _:
                assert_never(selection)

    async def log_ranges(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return the earliest and the latest offset of each partition."""
        return await (await self._range_reader(partitions)).read(partitions) if partitions else {}

    async def first_offsets(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return each partition's first offset with this timestamp or a later one, or None.

        Partitions whose brokers have no index of timestamps (before 0.10.1) are left out.
        """
        if not partitions:
            return {}
        return await (await self._range_reader(partitions)).first_offset_of_time(partitions, timestamp_ms)

    async def find_incarnations(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return an id of each existing topic that changes when the topic is re-created.

        It is the ``czxid`` of the topic's node, or the topic id. The result is empty without ZooKeeper if brokers have
        no topic ids (before 2.8).
        """
        found = await self.cluster.topics.find_incarnations(topics)
        return {topic: str(made) for topic, made in found.items() if made is not None and made.is_known}

    async def resolve(
        self,
        bound: Bound,
        partitions: Collection[TopicPartition],
        *,
        side: str,
        no_later_record: NoLaterRecord,
        missing_position: MissingPosition,
    ) -> dict[TopicPartition, int]:
        """Return the offset that a starting or ending option means in each partition.

        Raises NotFound if a group has no position of a partition, or a partition has no record of a time or later,
        unless ``missing_position`` or ``no_later_record`` allows it; ConfigError if the option names other partitions.

        Args:
            bound: Value of the option: an end of the log, offsets, a time, or a group.
            side: Prefix of the option's name, for errors: ``starting`` or ``ending``.
        """
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
                return await self._resolve_group(bound, partitions, missing_position)
            case _:
                assert_never(bound)

    # -- topics

    async def _read(self, topics: Collection[str] | None) -> ClusterView:
        if self.legacy is not None:
            return await self.legacy.read(topics)
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
        """Return a view of these topics. Raises NotFound, which names the missing ones."""
        for left in reversed(range(_TRIES)):
            view = await self._read(topics)
            missing = [name for name in topics if name not in view.topics or not view.topics[name].partitions]
            if not missing:
                return view
            if left:
                await asyncio.sleep(_BETWEEN_S)
        if self.legacy is not None and (absent := [name for name in missing if name in view.topics]):
            raise NotFound(f"topic {absent[0]}: none of its brokers is registered in ZooKeeper now")
        known = sorted((await self._read(None)).topics.keys() - INTERNAL_TOPICS)
        listed = ", ".join(known[:_LISTED]) + (" ..." if len(known) > _LISTED else "") or "none"
        raise NotFound(f"there is no topic {', '.join(missing)} in the cluster; the topics there: {listed}")

    # -- offsets

    async def _range_reader(self, partitions: Collection[TopicPartition]) -> LogRangeReader:
        cluster, timeout_s = self.cluster, self.cluster.address.request_timeout_s
        return LogRangeReader(
            cluster.pool,
            await self._find_leaders({one.topic for one in partitions}),
            random=random.random,
            read_committed=self.read_committed,
            lookup=choose_offset_lookup(cluster.layout.generation, cluster.pool, request_timeout_s=timeout_s),
            principal=cluster.address.principal,
        )

    async def _find_leaders(self, topics: Collection[str]) -> Leaders:
        if self.legacy is not None:
            return await self.legacy.find_leaders(topics)

        async def find_leaders(brokers: Brokers) -> MetadataDirectory:
            leaders = MetadataDirectory(self._source, lambda: brokers, random=random.random, topics=topics)
            await leaders.refresh("started")
            if leaders.failure is not None:
                raise leaders.failure
            return leaders

        return await self._ask(find_leaders)

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
        self, bound: AtGroup, partitions: Collection[TopicPartition], missing_position: MissingPosition
    ) -> dict[TopicPartition, int]:
        group = bound.group
        if self.cluster.session is None:
            bound = AtGroup(group, GroupPlace.KAFKA)  # positions that ZooKeeper may have are not seen
        positions = open_positions(self.cluster, group)
        if (absence := await positions.explain_absence()) is not None:
            raise NotFound(absence)
        kept = await positions.find_kept(partitions)
        stored = kept.zookeeper
        if bound.place is not GroupPlace.KAFKA:
            for one, position in stored.items():
                if position.validity is Validity.MALFORMED:
                    raise ConfigError(f"group {group!r}: its position of {one} is no number: {position.text[:40]!r}")
        found = choose_positions(kept, bound)
        missing = [one for one in stored if one not in found]
        if missing and missing_position is MissingPosition.ERROR:
            first = missing[0]
            raise NotFound(
                f"group {group!r} has no position of {first} ({stored[first].explain()}); set groupPositionMissing to "
                "earliest or latest to read such a partition from there"
            )
        edge = EARLIEST_OFFSET if missing_position is MissingPosition.EARLIEST else LATEST_OFFSET
        return found | await self._resolve_edges(dict.fromkeys(missing, edge))


class ClusterLookup(LoopThread[LookupConnections]):
    """Connection of Spark's driver to a cluster; a context manager.

    Each call blocks for at most ``timeout_s`` seconds. All raise ConfigError (TLS files), ConnectionLost,
    CoordinationError, BrokerError.
    """

    def __init__(self, address: ClusterAddress, *, read_committed: bool = False, timeout_s: float = 60.0) -> None:
        super().__init__(
            open_connections(address, read_committed=read_committed, timeout_s=timeout_s), name="consumerd lookup"
        )
        self._timeout_s = timeout_s

    @property
    def identities(self) -> ClusterIdentities:
        """Identities of topics: those of the option ``identities``, if it is given."""
        return self.resource.cluster.identities

    def bootstrap(self) -> str:
        """Return the addresses of the known brokers, as ``host:port,host:port``.

        Executors connect to them.
        """
        return ",".join(dict.fromkeys(str(one.address) for one in self.resource.known_brokers()))

    @property
    def is_legacy(self) -> bool:
        """True for a cluster of Kafka 0.6 or 0.7."""
        return self.resource.legacy is not None

    def find_brokers(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Broker]:
        """Return the broker of each partition of Kafka 0.6 or 0.7; nothing for other partitions.

        Raises ConnectionLost, which names a broker that is away, and its partition.
        """
        return self._ask_legacy(partitions, LegacyLookup.find_brokers)

    def explain_away(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        """Return why partitions of Kafka 0.6 and 0.7 are away, and until when."""
        return self._ask_legacy(partitions, LegacyLookup.explain_away)

    def find_segments(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Sequence[int]]:
        """Return offsets at which ranges of Kafka 0.6 and 0.7 can be divided, in order.

        They are the starts of log segments. There are none of other partitions, which can be divided everywhere.
        """
        return self._ask_legacy(partitions, LegacyLookup.find_segments)

    def find_ends(self, cuts: Sequence[tuple[OffsetRange, int]]) -> Mapping[TopicPartition, int]:
        """Return the first message boundary at an offset or after it, for each range.

        The ranges are of Kafka 0.6 and 0.7. Takes as long as reading the bytes before the offsets; the time of each
        request is limited, not their number. Raises CorruptMessageError.

        Args:
            cuts: Ranges that begin and end at message boundaries, each with the offset at which to cut it.
        """
        legacy = self.resource.legacy
        return {} if legacy is None or not cuts else self.call(legacy.find_ends(cuts))

    def find_partitions(self, selection: Selection) -> tuple[TopicPartition, ...]:
        """Return the selected partitions, in order. Never creates a topic.

        Raises NotFound for a named topic or partition that does not exist. A pattern may match nothing.
        """
        return self._ask(lambda connections: connections.find_partitions(selection))

    def log_ranges(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return the earliest and the latest offset of each partition."""
        return self._ask(lambda connections: connections.log_ranges(partitions))

    def first_offsets(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return each partition's first offset with this timestamp or a later one, or None.

        Partitions whose brokers have no index of timestamps (before 0.10.1) are left out.
        """
        return self._ask(lambda connections: connections.first_offsets(partitions, timestamp_ms))

    def find_incarnations(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return an id of each existing topic that changes when the topic is re-created.

        It is the ``czxid`` of the topic's node, or the topic id, as text. The result is empty without ZooKeeper if
        brokers have no topic ids (before 2.8).
        """
        return self._ask(lambda connections: connections.find_incarnations(topics))

    def resolve_start(self, options: ReadOptions, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that ``options.starting`` means in each partition.

        The log need not have it. Raises NotFound if a group has no position of a partition, or a partition has no
        record of a time or later, unless the options allow it; ConfigError if the option names other partitions than
        ``partitions``.
        """
        return self._ask(
            lambda connections: connections.resolve(
                options.starting,
                partitions,
                side="starting",
                no_later_record=options.no_later_record,
                missing_position=options.missing_position,
            )
        )

    def resolve_end(self, options: ReadOptions, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that ``options.ending`` means in each partition.

        If no record has the ending time or a later one, that is the log end offset. Raises NotFound if a group has no
        position of a partition; ConfigError if the option names other partitions than ``partitions``.
        """
        return self._ask(
            lambda connections: connections.resolve(
                options.ending,
                partitions,
                side="ending",
                no_later_record=NoLaterRecord.LATEST,
                missing_position=options.missing_position,
            )
        )

    def _ask_legacy(
        self,
        partitions: Collection[TopicPartition],
        ask: Callable[[LegacyLookup, Collection[TopicPartition]], Awaitable[dict[TopicPartition, T]]],
    ) -> dict[TopicPartition, T]:
        legacy, wanted = self.resource.legacy, [one for one in partitions if one.is_legacy]
        if legacy is None or not wanted:
            return {}
        return self._ask(lambda _: ask(legacy, wanted))

    def _ask(self, ask: Callable[[LookupConnections], Awaitable[T]]) -> T:
        async def bounded() -> T:
            try:
                async with timeout(self._timeout_s):
                    return await ask(self.resource)
            except TimeoutError as error:
                raise ConnectionLost(f"the cluster has not answered within {self._timeout_s:g} s") from error

        return self.call(bounded())


def choose_positions(kept: KeptPositions, bound: AtGroup) -> dict[TopicPartition, int]:
    """Return a group's position of each partition that has one, from ZooKeeper or Kafka.

    The option ``groupPositionsIn``, in ``bound``, chooses the store. Raises ConfigError if both stores have positions
    and it is not clear which counts, or if positions in Kafka are needed and cannot be read.
    """
    if kept.unknown and bound.place in {GroupPlace.KAFKA, GroupPlace.LARGER}:
        raise ConfigError(f"group {bound.group!r}: its positions in Kafka are unknown: {kept.unknown}")
    if kept.unknown and bound.place is GroupPlace.AUTO:
        _log.warning("kafka_positions_not_compared", group=bound.group, reason=kept.unknown)

    def find(*places: Place) -> dict[TopicPartition, int]:
        counting = {one: kept.find_counting(one, places).believed for one in kept.zookeeper.keys() | kept.kafka.keys()}
        return {one: at for one, at in counting.items() if at is not None}

    match bound.place:
        case GroupPlace.ZOOKEEPER:
            return find(Place.ZOOKEEPER)
        case GroupPlace.KAFKA:
            return find(Place.KAFKA)
        case GroupPlace.LARGER:
            return find(*Place)
        case GroupPlace.AUTO:
            differing = [
                describe_ahead(one, kept.zookeeper[one], position)
                for one, position in kept.find_ahead().items()
                if kept.find_counting(one).believed is not None
            ]
            if differing:
                raise ConfigError(
                    f"group {bound.group!r} has larger positions in Kafka than in ZooKeeper: "
                    f"{join_shown(differing, _SHOWN)}. Set groupPositionsIn to zookeeper, larger or kafka, as members "
                    "read them: with offsets.storage: zookeeper, with kafka, or with offsets.dual_commit: false"
                )
            return find(*Place)  # none in Kafka is larger than one in ZooKeeper
        case _:
            assert_never(bound.place)


_SHOWN: Final = 5
"""Partitions that an error names; there may be thousands."""
_LISTED: Final = 20
"""Number of existing topics that an error lists."""


@asynccontextmanager
async def open_connections(
    address: ClusterAddress, *, read_committed: bool, timeout_s: float
) -> AsyncIterator[LookupConnections]:
    """Connect to a cluster, and to ZooKeeper if it is given, while the block runs.

    Raises ConfigError, also for identities of another cluster; CoordinationError, ConnectionLost.
    """
    async with open_cluster(address, wait_s=min(_SESSION_S, timeout_s)) as cluster:
        if address.identities is not None:
            cluster.check_identities((await cluster.make_source(address.first_brokers).read(())).cluster_id)
        yield LookupConnections(
            cluster=cluster,
            brokers=address.first_brokers() or await cluster.find_registered(),
            legacy=None if cluster.has_metadata else LegacyLookup(cluster),
            read_committed=read_committed,
            # if these brokers hang, the other half of the time is for those that ZooKeeper names
            patience_s=timeout_s if cluster.session is None else timeout_s / 2,
        )


def _partitions(view: ClusterView, topics: Collection[str]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(name, key) for name in topics for key in view.topics[name].partitions))


def _check_named(named: Collection[TopicPartition], partitions: Collection[TopicPartition], option: str) -> None:
    """Raise ConfigError unless an option names exactly the partitions that are read.

    Spark's own source demands that, too.
    """
    wanted, given = {*partitions}, {*named}
    if missing := sorted(wanted - given):
        raise ConfigError(
            f"{option}: {missing[0]} is read and not named; name every partition (-2 earliest, -1 latest)"
        )
    if unknown := sorted(given - wanted):
        raise ConfigError(f"{option}: {unknown[0]} is named and not read")
