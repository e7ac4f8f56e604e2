# SPDX-License-Identifier: Apache-2.0
"""Connections to the target cluster, which all writers of a sink share.

A broker answers the requests of one connection one after the other. So partitions are spread over several connections
to each broker (:data:`LANES`): a thousand partitions take that many, and not a thousand.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.client.log_range import LogRangeReader
from consumerd.client.record_writer import RecordWriter
from consumerd.client.remedies import advise_right
from consumerd.client.simple_consumer import SimpleConsumer
from consumerd.client.topic_admin import TopicAdmin
from consumerd.client.topics import MetadataDirectory
from consumerd.client.transaction_requests import check_transactions
from consumerd.client.transaction_writer import TransactionWriter
from consumerd.errors import ConfigError, ConnectionLost, RetriableSinkError, UnsupportedVersion
from consumerd.mirror.outgoing import encode_changes
from consumerd.mirror.positions import MirrorPositions, make_target_directory
from consumerd.mirror.positions_index import MirrorState, PositionsIndex
from consumerd.mirror.positions_topic import check_positions_topic, create_positions_topic
from consumerd.mirror.records import (
    AssignmentKey,
    SourcePartition,
    StoredAssignment,
    StoredPosition,
    encode_assignment,
)
from consumerd.mirror.tail import find_last_origin
from consumerd.mirror.topic_maker import TopicMaker
from consumerd.model import Claim, LogRange, TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import ConnectionPool, PooledBroker, Purpose
from consumerd.sinks.base import SinkContext
from consumerd.sinks.kafka.failures import NO_TRANSACTIONS, TARGET_ERRORS, explain_failure
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.kafka.plain_writer import PlainSettings, PlainWriter
from consumerd.wire.errorcodes import ErrorCode

_LARGEST_RECORD_BYTES: Final = 64 << 20
"""Largest record that is read back from the target, in bytes."""
LANES: Final = 8
"""Connections to each broker for records, and as many for transactions."""


_ASSIGNING: Final = "assignments"
"""Last part of the transactional id that stores the assignments of a topic; no partition has this name."""


class _Lane:
    """Connections of a pool that some of the partitions use."""

    def __init__(self, pool: ConnectionPool, number: int) -> None:
        self._pool = pool
        self._share = f"lane {number}"

    async def get(self, broker: PooledBroker, purpose: Purpose) -> BrokerConnection:
        return await self._pool.get(broker, purpose, self._share)

    def waits_s(self, broker: PooledBroker) -> float:
        return self._pool.waits_s(broker)


class MirrorTarget:
    """Opens the target when it is first needed, and answers what writers ask of it.

    Args:
        wall_ms: Calendar clock, in ms since the epoch.
    """

    def __init__(self, context: SinkContext, options: KafkaOptions, *, wall_ms: Callable[[], int]) -> None:
        self.name: Final = f"sink {context.sink_name}: {options.bootstrap}"
        """Begin of error messages."""
        self._context = context
        self._options = options
        self._stack = AsyncExitStack()
        self._wall_ms = wall_ms
        self._held = 0
        self._opening = asyncio.Lock()
        self._assigning = asyncio.Lock()
        self._cluster: ClusterConnections | None = None
        self._directory: MetadataDirectory | None = None
        self._positions: MirrorPositions | None = None
        self._is_ready = False
        self._maker: TopicMaker | None = None
        self._checked: set[str] = set()
        """Topics of the target that were made or compared since the start."""
        self._attempts = 0
        self._failure: str | None = None

    async def prepare(self) -> None:
        """Connect, create or check the positions topic, and read it, unless that is done.

        An attempt that is cancelled keeps what it has read. Raises ConfigError, RetriableSinkError.
        """
        attempts = self._attempts
        async with self._opening:
            if self._is_ready:
                return
            if self._attempts > attempts and self._failure is not None:
                # this caller has waited for that attempt, so it shares the failure
                raise RetriableSinkError(self._failure)
            self._attempts += 1
            self._failure = None
            if self._cluster is None:
                address = self._options.locate(self._context.sink_name, self._context.group)
                # without hooks: metrics of brokers are about the source
                self._cluster = await self._stack.enter_async_context(open_cluster(address, wait_s=None))
                self._directory = make_target_directory(self._cluster)
                self._maker = self._make_maker(self._cluster, self._directory)
            if self._options.delivery == "at-least-once":
                await self._reach(self._leaders)
                self._is_ready = True
                return
            topic = self._options.positions_topic
            try:
                if self._positions is None:
                    await self._make_topic(self._cluster, topic)
                    self._positions = self._make_positions(self._cluster, topic)
                await self._positions.refresh(marks=True)
            except TARGET_ERRORS as error:
                self._failure = f"{self.name}: {explain_failure(error, topic, topic, self.any_id, self.principal)}"
                raise RetriableSinkError(self._failure) from error
            except ConfigError as error:
                raise ConfigError(f"{self.name}: {error}") from error
            self._is_ready = True

    async def _reach(self, directory: MetadataDirectory) -> None:
        """Ask the target's brokers for their names. Raises RetriableSinkError if none answers."""
        await directory.refresh("a mirror begins")
        if directory.failure is not None:
            raise RetriableSinkError(f"{self.name}: {directory.failure}") from directory.failure

    async def _make_topic(self, cluster: ClusterConnections, topic: str) -> None:
        """Create the positions topic, or check the one that is there."""
        directory = self._leaders
        admin = self._make_admin(cluster, directory)
        directory.follow_also((topic,))
        view = await directory.refresh("a mirror begins")
        if directory.failure is not None:
            raise directory.failure
        if self._is_denied(topic):
            raise ConfigError(
                "the topic for the mirror's positions may not be used: "
                f"{advise_right('Describe', topic, self.principal)}"
            )
        try:
            for broker in [*view.brokers.values()][:1]:
                await check_transactions(cluster.pool, broker)
            if topic not in view.topics:
                factor = self._options.positions_replication_factor
                if await create_positions_topic(admin, topic, brokers=len(view.brokers), replication_factor=factor):
                    return  # not checked: a broker that does not know it yet could tell the defaults
            await check_positions_topic(admin, topic)
        except UnsupportedVersion as error:
            raise ConfigError(f"{NO_TRANSACTIONS} ({error})") from error

    def _make_positions(self, cluster: ClusterConnections, topic: str) -> MirrorPositions:
        timeout_s = self._options.request_timeout_ms / 1000
        group = self._context.group
        return MirrorPositions(
            cluster.pool,
            self._leaders,
            topic,
            random=random.random,
            # those of other clusters, too: find_other_source looks for them
            index=PositionsIndex(keeps=lambda log: log.group == group, whole_maps=False),
            request_timeout_s=timeout_s,
            patience_s=timeout_s,
        )

    @property
    def pool(self) -> ConnectionPool:
        """Connections to the target's brokers."""
        assert self._cluster is not None, "prepared first"
        return self._cluster.pool

    @property
    def principal(self) -> Principal:
        """Our identity at the target's brokers."""
        return OUR_PRINCIPAL if self._cluster is None else self._cluster.address.principal

    def _make_admin(self, cluster: ClusterConnections, directory: MetadataDirectory) -> TopicAdmin:
        timeout_s = self._options.request_timeout_ms / 1000
        return TopicAdmin(
            cluster.pool,
            directory,
            random=random.random,
            request_timeout_s=timeout_s,
            patience_s=timeout_s,
            principal=self.principal,
        )

    def _make_maker(self, cluster: ClusterConnections, directory: MetadataDirectory) -> TopicMaker | None:
        """Return what makes topics like those of the source; None outside of a daemon."""
        if self._context.source_topics is None:
            return None
        return TopicMaker(
            self._context.source_topics,
            cluster.make_source(cluster.list_known),
            self._make_admin(cluster, directory),
            template=self._options.topic,
            policy=self._options.topic_policy,
        )

    @property
    def _leaders(self) -> MetadataDirectory:
        assert self._directory is not None, "prepared first"
        return self._directory

    @property
    def any_id(self) -> str:
        """Beginning of all transactional ids, for advice on rights."""
        return f"{self._options.transactional_id_prefix}.{self._context.group}.*"

    def make_source(self, partition: TopicPartition) -> SourcePartition:
        """Return a source partition as the keys of the positions topic name it."""
        return SourcePartition(self._context.cluster_id, self._context.group, partition.topic, str(partition.partition))

    def name_id(self, source: SourcePartition) -> str:
        """Return the transactional id of a source partition."""
        prefix = self._options.transactional_id_prefix
        return f"{prefix}.{source.group}.{source.cluster}.{source.topic}.{source.partition}"

    def make_writer(self, source: SourcePartition) -> TransactionWriter:
        """Return a new writer of transactions for a source partition."""
        assert self._cluster is not None, "prepared first"
        settings = self._options.make_producer_settings(self.name_id(source))
        lane = _Lane(self._cluster.pool, _hash(source) % LANES)
        return TransactionWriter(lane, self._leaders, settings, random=random.random, principal=self.principal)

    # -- without transactions

    async def open_plain(self, claim: Claim, *, arrival_ms: Callable[[], int] | None) -> PlainWriter:
        """Return a writer without transactions, which goes on behind the last record in the target.

        Args:
            arrival_ms: Returns the timestamp for records without one, in ms since the epoch; None leaves them without.

        Raises RetriableSinkError.
        """
        assert self._cluster is not None, "prepared first"
        options, cluster_id = self._options, self._context.cluster_id
        target = await self.find_partition(claim.partition)
        timeout_s = options.request_timeout_ms / 1000
        ranges = LogRangeReader(
            self._cluster.pool,
            self._leaders,
            random=random.random,
            timeout_s=timeout_s,
            request_timeout_s=timeout_s,
            principal=self.principal,
        )
        reader = SimpleConsumer(
            self._cluster.pool,
            self._leaders,
            random=random.random,
            max_message_bytes=_LARGEST_RECORD_BYTES,
            timeout_s=timeout_s,
            request_timeout_s=timeout_s,
        )
        try:
            log = (await ranges.read([target]))[target]
            last = await find_last_origin(
                reader, target, log, lambda one: one.is_of(cluster_id, claim.partition, claim.incarnation)
            )
        except TARGET_ERRORS as error:
            raise RetriableSinkError(
                f"{self.name}: {explain_failure(error, target.topic, '', '', self.principal)}"
            ) from error
        lane = _Lane(self._cluster.pool, _hash(self.make_source(claim.partition)) % LANES)
        return PlainWriter(
            claim,
            RecordWriter(
                lane,
                self._leaders,
                options.make_producer_settings(None),
                random=random.random,
                principal=self.principal,
            ),
            target,
            PlainSettings(
                name=self.name,
                principal=self.principal,
                cluster_id=cluster_id,
                batch_bytes=options.batch_bytes,
                arrival_ms=arrival_ms,
                advanced=partial(self._report_plain, claim.partition, target),
            ),
            last=last,
        )

    def _report_plain(self, partition: TopicPartition, target: TopicPartition, source: int, end: int) -> None:
        """Report to the hooks how far a writer without transactions is."""
        self._context.hooks.mirror_advanced(
            partition, target_topic=target.topic, target_partition=target.partition.number, source=source, target=end
        )

    # -- topics

    async def find_partition(self, partition: TopicPartition) -> TopicPartition:
        """Return the target partition of a source partition; make its topic if it is missing.

        It is the topic's first one if records are distributed by key.

        Raises RetriableSinkError if the target has no such topic or partition, or does not answer; ConfigError for a
        name that the target's topic cannot have.
        """
        topic, number = self._options.name_topic(partition.topic), partition.partition.number
        if self._options.partitioner == "key":
            number = 0
        elif partition.is_legacy:
            number = await self._assign(partition, topic)
        directory = self._leaders
        directory.follow_also((topic,))
        count = self.count_partitions(topic)
        if self._maker is not None and (count <= number or topic not in self._checked):
            await self._require(self._maker, partition.topic, topic, number)
        if count <= number:
            await directory.refresh(f"partition {number} of {topic}")
            if directory.failure is not None:
                raise RetriableSinkError(f"{self.name}: {directory.failure}") from directory.failure
            count = self.count_partitions(topic)
        if self._is_denied(topic):
            raise RetriableSinkError(
                f"{self.name}: topic {topic} may not be written to: {advise_right('Write', topic, self.principal)}"
            )
        if not count:
            raise RetriableSinkError(
                f"{self.name}: the target has no topic {topic}, into which {partition} is mirrored: create it with as "
                "many partitions as the source's"
            )
        if count <= number:
            raise RetriableSinkError(
                f"{self.name}: topic {topic} of the target has {count} partitions, and {partition} is mirrored into "
                f"partition {number}: add partitions"
            )
        return TopicPartition.modern(topic, number)

    async def _require(self, maker: TopicMaker, source: str, topic: str, number: int) -> None:
        try:
            await maker.require(source, number, is_ours=self._is_ours(topic))
        except RetriableSinkError as error:
            raise RetriableSinkError(f"{self.name}: {error}") from error
        self._checked.add(topic)

    def _is_ours(self, topic: str) -> bool:
        """Return True if each partition of a target topic has a position of this mirror."""
        if self._positions is None:
            return False
        own = self._context.cluster_id
        states = [self._positions.find(log) for log in self._positions.list() if log.cluster == own]
        written = {one.stored.target_partition for one in states if one and one.stored.target_topic == topic}
        count = self.count_partitions(topic)
        return bool(count) and written.issuperset(range(count))

    def _is_denied(self, topic: str) -> bool:
        view = self._leaders.view.topics.get(topic)
        return view is not None and view.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    async def _assign(self, partition: TopicPartition, topic: str) -> int:
        """Return the target partition of a partition of Kafka 0.6 or 0.7.

        The first time, it gets the next number, and that is stored for good. A transactional id for each topic keeps
        two members from giving the same number: the later one fences the other, and reads what that one has stored.

        Raises RetriableSinkError, and the errors of requests to the target.
        """
        if self._options.delivery == "at-least-once":
            raise RetriableSinkError(
                f"{self.name}: {partition} is of Kafka 0.6 or 0.7, whose partitions get fixed places in the target; "
                "these are stored in transactions: set the sink's delivery to exactly-once, and mirror to a cluster of "
                "0.11 or later"
            )
        source, positions = self.make_source(partition), self._get_positions()
        await positions.refresh(marks=True)
        if (known := _find_assignment(positions, source, topic)) is not None:
            return known
        async with self._assigning:
            writer = self.make_writer(source._replace(partition=_ASSIGNING))
            await writer.init()
            await positions.refresh(marks=True)
            if (known := _find_assignment(positions, source, topic)) is not None:
                return known
            taken = [
                stored.target_partition
                for key, stored in positions.assignments().items()
                if (key.source[:3], stored.target_topic) == (source[:3], topic)
            ]
            number = max(taken, default=-1) + 1
            stored = StoredAssignment(target_topic=topic, target_partition=number)
            content = encode_changes([(AssignmentKey(source), encode_assignment(stored))], self._wall_ms())
            writer.begin()
            await writer.write(
                self.choose_positions_partition(source._replace(partition=_ASSIGNING)),
                content.count,
                lambda sequence: content.seal(sequence, transactional=True),
            )
            await writer.commit()
        return number

    def count_partitions(self, topic: str) -> int:
        """Return the last known number of partitions of a topic of the target."""
        view = self._leaders.view.topics.get(topic)
        return 0 if view is None else len(view.partitions)

    async def read_log(self, partition: TopicPartition) -> LogRange:
        """Return the start and end offset of a target partition's log.

        Raises the errors of requests to the target.
        """
        assert self._cluster is not None, "prepared first"
        timeout_s = self._options.request_timeout_ms / 1000
        reader = LogRangeReader(self._cluster.pool, self._leaders, random=random.random, timeout_s=timeout_s)
        return (await reader.read([partition]))[partition]

    # -- positions

    async def read_positions(self, source: SourcePartition) -> Sequence[MirrorState]:
        """Return what is stored for a source partition.

        That includes all that its earlier writers have committed.

        Raises the errors of requests to the target.
        """
        positions = self._get_positions()
        known = {state.partition for state in positions.find_all(source)}
        # without anything known, all of them: a member that knows another number of partitions, since some were added,
        # stores it elsewhere than we would
        await positions.refresh(known or None, marks=True)
        return positions.find_all(source)

    def find_other_source(self, source: SourcePartition, topic: str) -> SourcePartition | None:
        """Return a partition of another cluster that is mirrored into the same topic.

        None without one. It has the same group and name, and is perhaps the same partition: one that was read through
        ZooKeeper has another identity than one that is read through brokers.
        """
        positions = self._get_positions()
        for log in positions.list():
            other = log.source
            if other.cluster != source.cluster and other[1:] == source[1:]:
                state = positions.find(log)
                if state is not None and state.stored.target_topic == topic:
                    return other
        return None

    def choose_positions_partition(self, source: SourcePartition) -> TopicPartition:
        """Return the partition of the positions topic for a new log.

        It is that of the source partition's earlier logs, so that all members look for it there.
        """
        positions = self._get_positions()
        known = [state.partition for state in positions.find_all(source)]
        return self.get_positions_partition(min(known, default=_hash(source) % positions.partition_count))

    def get_positions_partition(self, number: int) -> TopicPartition:
        """Return a partition of the positions topic."""
        return TopicPartition.modern(self._options.positions_topic, number)

    def _get_positions(self) -> MirrorPositions:
        if self._positions is None:
            raise ConnectionLost("the target was not reached yet")
        return self._positions

    # -- events

    def report_position(self, partition: TopicPartition, stored: StoredPosition) -> None:
        """Report a stored position to the hooks."""
        self._context.hooks.mirror_advanced(
            partition,
            target_topic=stored.target_topic,
            target_partition=stored.target_partition,
            source=stored.source,
            target=stored.target,
        )

    def report_fenced(self, partition: TopicPartition) -> None:
        """Report to the hooks that another daemon has fenced the partition's writer."""
        self._context.hooks.mirror_fenced(partition)

    def report_commit(self, partition: TopicPartition, stored: StoredPosition, seconds: float) -> None:
        """Report a committed transaction to the hooks, with the positions that it has stored."""
        self._context.hooks.mirror_transaction_finished(self._context.sink_name, committed=True, seconds=seconds)
        self.report_position(partition, stored)

    def report_abort(self, seconds: float) -> None:
        """Report to the hooks a transaction that was not committed."""
        self._context.hooks.mirror_transaction_finished(self._context.sink_name, committed=False, seconds=seconds)

    # -- memory

    def charge(self, difference: int) -> bool:
        """Count bytes that writers hold; return True if they should send what they hold.

        That is so above half of the sink's part of the memory.
        """
        self._held += difference
        self._context.charge(difference)
        return self._held > self._context.buffer_bytes // 2

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._stack.aclose()


def _find_assignment(positions: MirrorPositions, source: SourcePartition, topic: str) -> int | None:
    stored = positions.assignments().get(AssignmentKey(source))
    return None if stored is None or stored.target_topic != topic else stored.target_partition


def _hash(source: SourcePartition) -> int:
    return zlib.crc32("\0".join(source).encode())
