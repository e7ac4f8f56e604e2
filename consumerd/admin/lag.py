# SPDX-License-Identifier: Apache-2.0
"""Lag of consumer groups in their partitions, for the one-shot commands. Changes nothing.

None in a row means that a value is not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from consumerd.admin.inspection import (
    choose_places,
    find_coordinated,
    follow_topics,
    list_group_topics,
    read_owners,
    require_group,
)
from consumerd.aio.parallel import map_bounded
from consumerd.client.log_range import NO_RANGES
from consumerd.client.opening import ClusterAccess, make_simple_consumer
from consumerd.client.record_age import lag_seconds
from consumerd.client.remedies import explain_no_leader
from consumerd.client.simple_consumer import SimpleConsumer
from consumerd.config.settings import FetchSection
from consumerd.errors import ConsumerdError
from consumerd.model import LogRange, TopicPartition
from consumerd.offsets.away import explain_away, is_away
from consumerd.offsets.opening import open_positions
from consumerd.offsets.positions import NO_POSITION, KeptPositions, Position
from consumerd.offsets.store import ZOOKEEPER_ONLY, Place, Validity, is_larger
from consumerd.telemetry.wording import counted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MAX_MESSAGE_BYTES: Final = FetchSection().max_message_bytes
_NO_TOPIC_IDS: Final = (
    "the brokers give no topic ids (Kafka before 2.8), so the incarnation of a topic is unknown: positions of a "
    "deleted topic of the same name cannot be told. Give --zookeeper to have it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """Lag of a group in one partition, with its committed position in ZooKeeper.

    In a cluster without ZooKeeper, the position is that in Kafka.

    Attributes:
        owner: Thread id in the owner node, or the member that a broker has assigned the partition to; None without an
            owner.
        position: Committed position, if it belongs to the present topic and not to a deleted one of the same name; None
            if there is none.
        earliest: First offset in the log; None if the leader did not answer.
        latest: Next offset to be written to the log; None if the leader did not answer.
        lag: Offsets from the position to the log's end. Without a valid position, offsets from the log's start. None if
            unknown: no answer from the leader, or a malformed position.
        seconds: Age of the next record to be read, in seconds; None if unknown.
        deleted: True if the topic does not exist; ``position`` is then the stored number, which has no meaning any
            more.
        note: Remark for the operator; empty if there is none.
        away: True if the partition's broker, of Kafka 0.6 or 0.7, does not register it now.
    """

    topic: str
    partition: str
    owner: str | None
    position: int | None
    earliest: int | None
    latest: int | None
    lag: int | None
    seconds: float | None
    deleted: bool
    note: str
    away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRowOfBoth(LagRow):
    """Lag of a group in one partition, with its positions in ZooKeeper and Kafka.

    Attributes:
        kafka: Committed position in Kafka; None if there is none. ``position`` is that in ZooKeeper.
        counts: Store whose position lag is counted from, ``zookeeper`` or ``kafka``; None without a position.
    """

    kafka: int | None
    counts: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """Lag of a group in its partitions.

    Attributes:
        rows: One per partition. They are of :class:`LagRowOfBoth` if the group has positions in Kafka, or its members
            read positions there; else of :class:`LagRow`, with positions in ZooKeeper only.
        notes: Sentences for the operator: whether members start from the positions in ZooKeeper or in Kafka, and why
            those in Kafka could not be read.
    """

    rows: Sequence[LagRow]
    notes: Sequence[str] = ()


async def find_lag(
    access: ClusterAccess, group: str, wanted: Collection[str], places: Collection[Place] = ZOOKEEPER_ONLY
) -> GroupLag:
    """Return the lag in each partition of the group's topics, owned or not.

    Args:
        wanted: Topics; empty for all of the group's.
        places: Stores in which members read committed positions: ZooKeeper, Kafka, or both. A partition with a position
            in Kafka only is always counted from that, and so is every partition of a group that brokers coordinate.

    Raises NotFound if there is no such group.
    """
    positions = open_positions(access.cluster, group)
    members = await find_coordinated(access, group)
    places = choose_places(members, places)
    await require_group(access, positions, members)
    topics = set(wanted) or await list_group_topics(access, positions) | await positions.list_kafka_topics() | {
        one.topic for one in members.owners
    }
    if not topics:
        return GroupLag(rows=())
    await follow_topics(access, topics, missing_ok=not wanted)
    deleted = topics.difference(await access.topics.list_topics())
    view = access.directory.view
    kept = await positions.read_kept(topics)
    partitions = sorted(
        {TopicPartition(name, key) for name in topics if name in view.topics for key in view.topics[name].partitions}
        | kept.zookeeper.keys()
    )
    basis = LagBasis(
        group=group,
        partitions=partitions,
        kept=kept,
        places=places,
        owners=await read_owners(access, group, partitions, members),
        found=await find_ranges(access, partitions),
        deleted=deleted,
        has_zookeeper=access.has_zookeeper,
    )
    consumer = make_simple_consumer(access, max_message_bytes=_MAX_MESSAGE_BYTES)
    rows = basis.make_rows(await _timestamps(consumer, basis.find_behind()))
    if not access.has_zookeeper:
        return GroupLag(rows=rows, notes=[*explain_unknown(kept), *explain_incarnations(access)])
    if not kept.kafka and Place.KAFKA not in places:
        return GroupLag(rows=rows, notes=explain_kept(kept, places))
    return GroupLag(rows=basis.add_kafka(rows), notes=explain_kept(kept, places))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesOrReasons:
    """Start and end offsets of partition logs, or the reason why they are unknown.

    Each partition that was asked for is either in ``ranges`` or in ``reasons``, with a text for the operator. ``away``
    has those of the latter whose broker, of Kafka 0.6 or 0.7, does not register them now.
    """

    ranges: Mapping[TopicPartition, LogRange]
    reasons: Mapping[TopicPartition, str]
    away: Collection[TopicPartition] = frozenset()


async def find_ranges(
    access: ClusterAccess, partitions: Collection[TopicPartition], *, timeout_s: float | None = None
) -> RangesOrReasons:
    """Return the start and end of each partition's log, or why they are unknown.

    The cluster directory must follow the topics.

    Args:
        timeout_s: Time limit for the leaders' answers, in seconds; None for the usual request timeout.
    """
    view, principal = access.directory.view, access.cluster.address.principal
    led = [one for one in partitions if view.find_leader(one) is not None]
    found = await access.ranges.find_or_explain(led, timeout_s=timeout_s) if led else NO_RANGES
    reasons = {one: str(error) for one, error in found.failures.items()}
    unled = set(partitions).difference(led)
    away = frozenset(one for one in unled if is_away(one, view, access.generation))
    reasons |= {
        one: explain_away(one, view.brokers) if one in away else explain_no_leader(one, view, principal)
        for one in unled
    }
    return RangesOrReasons(ranges=found.ranges, reasons=reasons, away=away)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagBasis:
    """Values from which the lag of one group is counted.

    Attributes:
        kept: Committed positions in ZooKeeper and in Kafka.
        places: Stores in which members read committed positions: ZooKeeper, Kafka, or both. A partition with a position
            in Kafka only is always counted from that.
        owners: Owner of each partition that has one.
        found: Start and end of each partition's log, or why they are unknown.
        deleted: Topics that do not exist.
        has_zookeeper: True if rows show the position in ZooKeeper; otherwise they show the one that lag is counted
            from.
    """

    group: str
    partitions: Sequence[TopicPartition]
    kept: KeptPositions
    places: Collection[Place]
    owners: Mapping[TopicPartition, str]
    found: RangesOrReasons
    deleted: Collection[str] = field(default_factory=frozenset)
    has_zookeeper: bool = True

    def find_behind(self) -> dict[TopicPartition, int]:
        """Return the next offset to read of each partition that has lag.

        Without a committed position, this is the log's start. Partitions are left out if their position is malformed or
        outside the log, or if the position or the log's range is unknown.
        """
        starts, ranges = {one: self._find_start(one) for one in self.partitions}, self.found.ranges
        return {
            one: start
            for one, start in starts.items()
            if start is not None and (log := ranges.get(one)) is not None and log.earliest <= start < log.latest
        }

    def make_rows(self, timestamps: Mapping[TopicPartition, int | None]) -> list[LagRow]:
        """Return a lag row for each partition, without positions in Kafka.

        Args:
            timestamps: Timestamp of the next record to read, in ms since the epoch; missing or None where it is not
                known.
        """
        return [self._make_row(one, timestamps.get(one)) for one in self.partitions]

    def add_kafka(self, rows: Sequence[LagRow]) -> list[LagRowOfBoth]:
        """Return lag rows with the committed positions in Kafka added.

        Args:
            rows: One per partition, in the order of ``partitions``.
        """
        kafka = self.kept.kafka
        return [
            LagRowOfBoth(
                **read_fields(row),
                kafka=kafka[one].value if one in kafka else None,
                counts=name_place(self._find_counting(one)),
            )
            for one, row in zip(self.partitions, rows, strict=True)
        ]

    def _find_counting(self, partition: TopicPartition) -> Position:
        return find_counted(self.kept, partition, self.places)

    def _find_start(self, partition: TopicPartition) -> int | None:
        """Return the offset that lag is counted from; None if unknown.

        It is the position that counts, or the log's start if none does. It is unknown for a malformed position, which
        stops its partition in any log.
        """
        if self.kept.is_unknown(partition, self.places):
            return None
        counting = self._find_counting(partition)
        if counting.validity in {Validity.ABSENT, Validity.ANOTHER_INCARNATION}:
            log = self.found.ranges.get(partition)
            return None if log is None else log.earliest
        return counting.believed

    def _make_row(self, partition: TopicPartition, timestamp_ms: int | None) -> LagRow:
        start, log = self._find_start(partition), self.found.ranges.get(partition)
        deleted = partition.topic in self.deleted
        lag = None if start is None or log is None or deleted else max(0, log.latest - start)
        counting = self._find_counting(partition)
        shown = self.kept.zookeeper.get(partition, NO_POSITION) if self.has_zookeeper else counting
        away, reason = partition in self.found.away, self.found.reasons.get(partition)
        unknown = f"the lag is unknown: {reason}" if reason and not away else reason
        note = _explain_lag(partition, self.group, self.kept, self.places, counting, log, unknown)
        return LagRow(
            topic=partition.topic,
            partition=str(partition.partition),
            owner=self.owners.get(partition),
            position=shown.value if deleted else shown.valid if shown.place is Place.ZOOKEEPER else shown.believed,
            earliest=log.earliest if log else None,
            latest=log.latest if log else None,
            lag=lag,
            seconds=lag_seconds(lag=lag, oldest_ms=timestamp_ms, now_ms=time.time() * 1000),
            deleted=deleted,
            note="topic deleted" if deleted else note,
            away=away and not deleted,
        )


def explain_kept(kept: KeptPositions, places: Collection[Place]) -> list[str]:
    """Return sentences about the stores in which the group has positions.

    The first one names the stores that have positions, and those that members read; it is left out if Kafka has no part
    in it. The second one gives the reason why positions in Kafka could not be read, if that is so.

    Args:
        kept: Committed positions in ZooKeeper and in Kafka.
        places: Stores in which members read committed positions.
    """
    return [text for text in (kept.explain_places(places), *explain_unknown(kept)) if text]


def explain_unknown(kept: KeptPositions) -> list[str]:
    """Explain why positions in Kafka are unknown.

    Returns a list with one sentence; empty if they are known.
    """
    return [f"positions in Kafka are unknown: {kept.unknown}"] if kept.unknown else []


def explain_incarnations(access: ClusterAccess) -> list[str]:
    """Explain that a re-created topic is not noticed, if brokers give topics no ids.

    Returns a list with one sentence; empty if topics can be told apart (by an id, or by a czxid in ZooKeeper).
    """
    made = [topic.incarnation for topic in access.directory.view.topics.values()]
    if any(one is not None and not one.is_known for one in made):
        return [_NO_TOPIC_IDS]
    return []


def name_place(counting: Position) -> str | None:
    """Return the store (``zookeeper`` or ``kafka``) of the position from which members continue.

    None if that position is missing, malformed, or of a deleted topic of the same name.
    """
    return counting.place.value if counting.believed is not None else None


def find_counted(kept: KeptPositions, partition: TopicPartition, places: Collection[Place]) -> Position:
    """Return the position that lag is counted from.

    A partition that has a believed position in Kafka only is counted from that, with all settings.
    """
    found = kept.find_counting(partition, places)
    if found.validity in {Validity.ABSENT, Validity.ANOTHER_INCARNATION} and Place.KAFKA not in places:
        kafka = kept.find_counting(partition, frozenset({Place.KAFKA}))
        return kafka if kafka.believed is not None else found
    return found


def read_fields(row: DataclassInstance) -> dict[str, Any]:
    """Return the values of a dataclass instance by field name, as keyword arguments.

    With them and the further fields of a subclass, the caller creates an instance of the subclass.
    """
    return {one.name: getattr(row, one.name) for one in fields(row)}


def describe_total(rows: Sequence[LagRow]) -> str:
    """Describe the total lag of these rows in one line of text.

    An unknown lag does not count as 0: the text says that the total is unknown, and gives the known part.
    """
    there = [row for row in rows if not row.deleted]
    known = [row.lag for row in there if row.lag is not None]
    partitions = counted(len(there), "partition")
    total = f"total lag {sum(known)}"
    if len(known) < len(there):
        total = f"total lag unknown: at least {sum(known)}, unknown in {len(there) - len(known)} of {partitions}"
    away = sum(row.away for row in there)
    more = f", {away} away" if away else ""
    return f"{total}, {sum(row.owner is None for row in there)} of {partitions} without an owner{more}"


class LagEstimator:
    """Estimates the time to catch up, for records without timestamps.

    The estimate is computed from a partition's progress since the first call of :meth:`estimate`, and is put into the
    row's note. ``seconds`` stays None, since it always means the age of the next record, which needs a timestamp.
    ``now`` is a clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._before: dict[tuple[str, str], tuple[float, int]] = {}

    def estimate(self, rows: Sequence[LagRow]) -> list[LagRow]:
        """Return the rows, with an estimate of the time to catch up in the note.

        Only rows whose position has moved since the first call get an estimate.
        """
        now = self._now()
        estimated = []
        for row in rows:
            at = _find_progress(row)
            if at is not None and row.lag is not None and row.seconds is None:
                then, position = self._before.setdefault((row.topic, row.partition), (now, at))
                if at > position and now > then:
                    seconds = row.lag * (now - then) / (at - position)
                    estimate = f"no timestamps; about {seconds:.0f} s behind at the present rate"
                    row = replace(row, note=f"{row.note}; {estimate}" if row.note else estimate)
            estimated.append(row)
        return estimated


def _find_progress(row: LagRow) -> int | None:
    """Return the position that the row's lag is counted from."""
    return row.kafka if isinstance(row, LagRowOfBoth) and row.counts == Place.KAFKA.value else row.position


async def _timestamps(
    consumer: SimpleConsumer, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    async def read(partition: TopicPartition) -> int | None:
        try:
            return await consumer.read_timestamp(partition, positions[partition])
        except ConsumerdError:
            return None  # the lag in records is known all the same

    return await map_bounded(positions, read)


def _explain_lag(
    partition: TopicPartition,
    group: str,
    kept: KeptPositions,
    places: Collection[Place],
    counting: Position,
    log: LogRange | None,
    unknown: str | None,
) -> str:
    """Explain a lag that is not counted from the only position, or an out-of-range position.

    Args:
        unknown: Text that the lag is unknown, and why; None if it is known.
    """
    if counting.validity is Validity.MALFORMED:
        return f"{counting.explain()}; {advise_set(group, partition)}"
    if kept.is_unknown(partition, places):
        return "its position in Kafka is unknown, and so is the lag"
    problem = "" if counting.believed is not None else counting.explain()
    if log is None:
        return "; ".join(filter(None, [problem, unknown]))
    if (at := counting.believed) is None:
        # with ZooKeeper alone, a position in Kafka only is the one that lag is counted from
        is_refused = is_outrun(kept, partition, places, counting)
        refused = "; larger in ZooKeeper: consumerd run refuses to start" if is_refused else ""
        return f"{problem}; counted from the earliest offset, {log.earliest}{refused}"
    notes = list(filter(None, [explain_counting(kept, partition, places, counting)]))
    if at < log.earliest:
        notes.append(f"below the log by {log.earliest - at}")
    elif at > log.latest:
        notes.append(f"above the log by {at - log.latest}")
    return "; ".join(notes)


def explain_counting(
    kept: KeptPositions, partition: TopicPartition, places: Collection[Place], counting: Position
) -> str:
    """Explain why lag is counted from a position although the other store has another one.

    The two stores are ZooKeeper and Kafka. Returns an empty text if there is nothing to explain.

    Args:
        kept: Committed positions in both stores.
        places: Stores in which members read committed positions.
        counting: Position that lag is counted from.
    """
    zookeeper, kafka = (kept.find_counting(partition, frozenset({place})) for place in (Place.ZOOKEEPER, Place.KAFKA))
    if counting.place is Place.KAFKA and Place.KAFKA not in places:
        return f"{zookeeper.explain()} in ZooKeeper; counted from that in Kafka"
    if counting.place is Place.KAFKA and zookeeper.validity is Validity.MALFORMED:
        return f"malformed in ZooKeeper: {zookeeper.text!r:.60}"
    if not is_outrun(kept, partition, places, counting):
        return ""
    other = kafka if counting.place is Place.ZOOKEEPER else zookeeper
    ahead = (other.believed or 0) - (counting.believed or 0)
    return f"{ahead} ahead in {other.place.label}: consumerd run refuses to start"


def is_outrun(kept: KeptPositions, partition: TopicPartition, places: Collection[Place], counting: Position) -> bool:
    """Return True if the store that members do not read has a larger position.

    The stores are ZooKeeper and Kafka.

    Args:
        kept: Committed positions in both stores.
        places: Stores in which members read committed positions.
        counting: Position that lag is counted from.
    """
    others = frozenset(Place).difference(places)
    if not others or counting.place not in places:
        return False
    return is_larger(kept.find_counting(partition, others).believed, counting.believed)


def advise_set(group: str, partition: TopicPartition) -> str:
    """Return the command with which an operator sets a partition's position, in a sentence."""
    return f"say where to go on: consumerd offsets set -g {group} {partition}=POSITION"
