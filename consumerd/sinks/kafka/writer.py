# SPDX-License-Identifier: Apache-2.0
"""Mirrors one partition into the target, for one claim.

A flush is one transaction::

    begin -> records, batch by batch -> runs of the map -> segments and position -> claim.check() -> EndTxn

Positions
    ``_acknowledged``  the position that may be committed: the stored one of the last committed transaction.
    ``_next``          the source offset at which the next batch must start.

    Example: the stored position is 100. After batches up to 180 and 250 ``_acknowledged`` is 100 and ``_next`` 250. The
    flush stores 250 with the records 100 to 249; then both are 250.

The first transaction of a log
    It begins with the writer, and not with the first record. So the start is stored after one flush interval, though no
    record comes: a group that stands there can be translated. Its target offset is the end of the target's log, behind
    which all records of this mirror will be.

Failures
    After any error of the target the writer is *stale*: it does not know what was committed. It begins again like a
    new one, with InitProducerId, which ends its own transaction, and the stored position. Example: the answer to EndTxn
    is lost. If the transaction was committed, 250 is read back, and the next batch must start there. If it was not,
    InitProducerId aborts it; 100 is read back, and the records are fetched again.

    A writer that is fenced asks if the partition is still claimed. If not, another member has it. If it is, a former
    owner that had stalled has begun once more: this one begins again, which fences that one for good.

Refused records
    A record that the target never takes (too large, a timestamp that it does not allow) is found by halving its batch.
    Then the writer begins again. The records are fetched again, and the fetched batch with the refused record is
    refused without asking the target. The policy ``on_rejected`` decides about the record.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

from consumerd import failpoints
from consumerd.aio.timeouts import timeout
from consumerd.client.partitioner import hash_murmur2
from consumerd.client.transaction_writer import TransactionWriter
from consumerd.errors import (
    ConsumerdError,
    NotFound,
    PermanentSinkError,
    ProducerFenced,
    RetriableSinkError,
    WriteRefused,
)
from consumerd.mirror.offset_map import MapWriter, count_removable
from consumerd.mirror.outgoing import MirroredBatch, encode_changes
from consumerd.mirror.positions_index import MirrorState
from consumerd.mirror.records import (
    Key,
    PositionKey,
    SegmentKey,
    SourceLog,
    StoredPosition,
    encode_position,
)
from consumerd.mirror.runs import find_runs
from consumerd.mirror.segment import read_starts
from consumerd.model import Claim, Gap, Incarnation, TopicPartition
from consumerd.sinks.base import Start
from consumerd.sinks.confirming import confirm_claim, wait_claim
from consumerd.sinks.kafka.failures import (
    OF_ONE_RECORD,
    TARGET_ERRORS,
    explain_failure,
    explain_refused,
    find_code,
)
from consumerd.sinks.kafka.fencing import Fencings
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.kafka.target import MirrorTarget
from consumerd.sinks.refused import RefusedRecord
from consumerd.wire.records import RecordBatch, check_headers

_TOMBSTONES: Final = 64
"""Segments that a transaction removes, at most."""
_THINNING_S: Final = 600.0
"""Interval, in seconds, at which the target's log start is looked up, to make the map thinner."""
_ROW_MEMORY: Final = 24
"""Memory of a record beside its encoded form, in bytes."""

ABORT_S: Final = 2.0
"""Longest time, in seconds, that :meth:`KafkaWriter.abandon` takes to abort the transaction."""


class KafkaWriter:
    """Mirrors the records of one partition, under one claim. Implements ``base.PartitionWriter``.

    Args:
        target: What all writers of the sink share.
        now: Monotonic clock, in seconds.
        wall_ms: Calendar clock, in ms since the epoch.
    """

    def __init__(
        self,
        claim: Claim,
        target: MirrorTarget,
        options: KafkaOptions,
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._claim = claim
        self._target = target
        self._options = options
        self._now = now
        self._wall_ms = wall_ms
        self._source = target.make_source(claim.partition)
        self._counts_bytes = claim.partition.is_legacy
        self._partition = TopicPartition.modern(options.name_topic(claim.partition.topic), 0)
        self._positions_partition = target.get_positions_partition(0)
        self._positions_end = 0
        """Offset behind the last position that this writer has stored."""
        self._writer: TransactionWriter | None = None
        self._states: Sequence[MirrorState] = ()
        self._log: SourceLog | None = None
        self._stored: StoredPosition | None = None
        self._known: StoredPosition | None = None
        """Last position that this writer has stored or found; below it, it does not go on."""
        self._map = MapWriter(counts_bytes=self._counts_bytes)
        self._first_segment = 0
        self._last_segment = -1
        self._lowest = 0
        self._starts = array("q")
        self._thin_at = now() + _THINNING_S
        self._acknowledged = 0
        self._next = 0
        self._target_end = 0
        self._request_id: str | None = None
        self._open: dict[TopicPartition, MirroredBatch] = {}
        self._charged = 0
        self._opened_at: float | None = None
        self._stale = False
        self._refused: RefusedRecord | None = None
        self._fencings = Fencings(self._source.group)

    # -- the port

    @property
    def resume_position(self) -> int | None:
        """Source position behind the last mirrored record of the claimed topic; None without one."""
        state = self._find_newest()
        return None if state is None else state.stored.source

    @property
    def request_id(self) -> str | None:
        """Id of the operator's request that moved the mirror last; None without one."""
        state = self._find_newest()
        return None if state is None else state.stored.request_id

    @property
    def truncation(self) -> int:
        """Number of the log's truncations when the newest log was begun; 0 without one."""
        state = self._find_newest()
        return 0 if state is None else Incarnation.parse(state.log.incarnation).truncation

    async def find_missing(self, position: int) -> Gap | None:  # noqa: ARG002 - the interface
        """Return None: the stored position itself is the record of what was mirrored."""
        return None

    @property
    def has_earlier_topic(self) -> bool:
        """True if only an earlier topic of this name was mirrored."""
        return bool(self._states) and self._find_newest() is None

    def _find_newest(self) -> MirrorState | None:
        """Return the state of the claimed topic after its last truncation."""
        own = [
            (incarnation.truncation, number)
            for number, state in enumerate(self._states)
            if (incarnation := Incarnation.parse(state.log.incarnation)).is_same_topic(self._claim.incarnation)
        ]
        return self._states[max(own)[1]] if own else None

    async def recover(self) -> None:
        """Fence earlier writers, and read back what they have stored. Raises RetriableSinkError, OwnershipLost."""
        try:
            await self._begin_anew()
        except TARGET_ERRORS as error:
            raise await self._explain(error) from error

    async def start(self, start: Start) -> None:
        """Set the position of the first record to mirror.

        A start that an operator has requested is stored at once, the first one of a log with the next flush. Raises
        PermanentSinkError for a position below the stored one, without a request; RetriableSinkError, OwnershipLost.
        """
        if self._stale:
            await self.recover()
        self._log = SourceLog(*self._source, str(self._claim.incarnation.truncated(start.truncation)))
        self._adopt(start.position)
        try:
            await self._begin_log()
        except TARGET_ERRORS as error:
            self._stale = True
            raise await self._explain(error) from error
        stored = self._stored
        was_done = stored is not None and start.request_id is not None and start.request_id == stored.request_id
        if start.new_chain and not was_done:
            await self._move(start)
        elif stored is not None and start.position < stored.source and not start.new_chain:
            raise PermanentSinkError(
                f"{self._claim.partition}: cannot start at {start.position}, below {stored.source}, the position that "
                f"is stored in {self._positions_partition} of the target"
            )
        else:
            self._acknowledged = self._next = max(start.position, self._acknowledged)
        self._known = self._stored
        if self._stored is not None:
            self._target.report_position(self._claim.partition, self._stored)

    async def _move(self, start: Start) -> None:
        """Begin at a requested position, and store it.

        The request is deleted when the position is committed, so nothing could repeat it after a crash.
        """
        stored = self._stored
        if stored is not None and start.position < stored.source:
            # records are mirrored again; a map can only grow, so it begins anew
            self._begin_map(self._last_segment + 1)
        self._request_id = start.request_id
        self._acknowledged = self._next = start.position
        try:
            self._begin_transaction()
            await self._commit()
        except TARGET_ERRORS as error:
            self._stale = True
            raise await self._explain(error) from error

    async def write(self, batch: RecordBatch) -> int:
        """Take a batch, and write what is full to the target; return the acknowledged position."""
        if self._stale:
            raise await self._begin_again("the mirror begins again")
        if (refused := self._refused) is not None and (row := refused.find_row(batch)) is not None:
            raise PermanentSinkError(refused.reason, refused=row)
        if batch.next_offset < self._acknowledged or batch.start > self._next:
            raise RetriableSinkError(
                f"{self._claim.partition}: got records up to {batch.next_offset}, from {batch.start} on; those from "
                f"{self._next} on are wanted",
                resume_position=self._next,
            )
        if batch.next_offset > self._next:
            rest = batch.slice_from(self._next)
            check_headers(rest)
            try:
                await self._take(rest)
            except TARGET_ERRORS as error:
                raise await self._fail(error) from error
        return self._acknowledged

    async def flush(self) -> int:
        """Commit what was taken; return the offset behind it."""
        if self._stale:
            raise await self._begin_again("the mirror begins again")
        if self._opened_at is not None:
            try:
                await self._send_all()
                await self._commit()
            except TARGET_ERRORS as error:
                raise await self._fail(error) from error
        return self._acknowledged

    def deadline(self) -> float | None:
        """Return the time by which :meth:`flush` must be called; None without records."""
        if self._stale:
            return self._now()
        return None if self._opened_at is None else self._opened_at + self._options.flush_ms / 1000

    async def abandon(self) -> None:
        """Drop what was not committed, and abort the transaction.

        If that takes longer than :data:`ABORT_S` seconds, the partition's next writer aborts it, or the target after
        ``transaction_timeout_ms``.
        """
        self._drop()
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(TimeoutError, *TARGET_ERRORS):
                async with timeout(ABORT_S):
                    await writer.abort()

    # -- taking and sending

    def _begin_transaction(self) -> None:
        if self._opened_at is None:
            self._get_writer().begin()
            self._opened_at = self._now()

    async def _take(self, batch: RecordBatch) -> None:
        self._begin_transaction()
        size = self._options.batch_bytes
        arrival_ms = self._wall_ms() if self._options.timestamps == "arrival" else None
        for partition, row, end in self._distribute(batch):
            while row < end:
                if (outgoing := self._open.get(partition)) is None:
                    outgoing = self._open[partition] = self._make_batch()
                row = outgoing.add(batch, row, end, size, arrival_ms=arrival_ms)
                if row < end:  # the others do not fit
                    await self._send_open(partition)
        self._next = batch.next_offset
        if self._account():
            await self._send_all()

    def _distribute(self, batch: RecordBatch) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield consecutive rows of a batch that go into one partition, with that partition."""
        if self._options.partitioner == "same":
            yield self._partition, 0, len(batch)
            return
        topic, own = self._partition.topic, self._claim.partition.partition.number
        count = max(1, self._target.count_partitions(topic))
        begin = 0
        keys = batch.keys()
        for number, rows in groupby((own if key is None else hash_murmur2(None, key)) % count for key in keys):
            end = begin + sum(1 for _ in rows)
            yield TopicPartition.modern(topic, number), begin, end
            begin = end

    async def _send_all(self) -> None:
        for partition in tuple(self._open):
            await self._send_open(partition)

    async def _send_open(self, partition: TopicPartition) -> None:
        batch = self._open[partition]
        await self._get_writer().add_partitions(partition, self._positions_partition)
        parts = await self._send(batch, partition)
        if failpoints.ENABLED:
            failpoints.reach("after_mirror_records")
        if self._options.partitioner == "same":
            for part, start in _join(batch, parts):
                if start < self._target_end:
                    # the target's topic was created anew, or its log was cut; a map can only grow, so it begins anew
                    self._begin_map(self._last_segment + 1)
                runs = find_runs(part.offsets, part.next_offsets, start, counts_bytes=self._counts_bytes)
                self._map.add(runs)
                self._target_end = start + len(part)
        del self._open[partition]
        self._account()

    async def _send(self, batch: MirroredBatch, partition: TopicPartition) -> list[tuple[MirroredBatch, int]]:
        """Write a batch, in parts if it is refused; return the parts and their offsets."""
        try:
            start = await self._get_writer().write(
                partition, len(batch), lambda sequence: batch.content.seal(sequence, transactional=True)
            )
        except WriteRefused as error:
            if error.in_doubt or find_code(error) not in OF_ONE_RECORD:
                raise
            if len(batch) == 1:
                self._refused = RefusedRecord(
                    batch.offsets[0], batch.indexes[0] if batch.indexes else 0, explain_refused(error, batch.size)
                )
                raise
            return [sent for part in batch.split() for sent in await self._send(part, partition)]
        return [(batch, start)]

    async def _thin(self) -> None:
        """Leave segments out of the map whose records the target has deleted."""
        if self._now() < self._thin_at:
            return
        self._thin_at = self._now() + _THINNING_S
        with contextlib.suppress(*TARGET_ERRORS):  # it is tried again later
            log = await self._target.read_log(self._partition)
            removable = count_removable(self._starts, log.earliest)
            self._first_segment += removable
            del self._starts[:removable]

    async def _commit(self) -> None:
        """Store the position and what is new in the map, and commit."""
        writer = self._get_writer()
        await self._thin()
        stored, changes = self._plan_stored()
        content = encode_changes(changes, self._wall_ms())
        start = await writer.write(
            self._positions_partition, content.count, lambda sequence: content.seal(sequence, transactional=True)
        )
        if failpoints.ENABLED:
            failpoints.reach("after_mirror_positions")
        if start < self._positions_end:
            # the parts of the map that this writer has stored before are gone, and the topic may have another policy
            raise NotFound(
                f"{self._positions_partition} ended at {start}, below {self._positions_end}, up to which this daemon "
                "has stored positions: the topic was created again, or has lost records"
            )
        await wait_claim(self._claim)
        if failpoints.ENABLED:
            failpoints.reach("before_mirror_commit")
        await writer.commit()
        if failpoints.ENABLED:
            failpoints.reach("after_mirror_commit")
        self._target.report_commit(self._claim.partition, stored, self._now() - (self._opened_at or self._now()))
        self._positions_end = start + content.count
        self._stored = self._known = stored
        self._acknowledged, self._opened_at = stored.source, None
        self._lowest = min(self._lowest + _TOMBSTONES, stored.first_segment)

    def _plan_stored(self) -> tuple[StoredPosition, list[tuple[Key, bytes | None]]]:
        """Return the position to store, and the records that store it."""
        assert self._log is not None, "start comes first"
        log = self._log
        segments = self._map.take_changed()
        for number, data in segments.items():
            if number > self._last_segment:
                self._starts.append(read_starts(data)[1])
        self._last_segment = max((self._last_segment, *segments))
        stored = StoredPosition(
            source=self._next,
            target=self._target_end,
            target_topic=self._partition.topic,
            target_partition=self._partition.partition.number,
            is_mapped=self._options.partitioner == "same",
            counts_bytes=self._counts_bytes,
            first_segment=self._first_segment,
            last_segment=self._last_segment,
            request_id=self._request_id,
        )
        removed = range(self._lowest, min(self._lowest + _TOMBSTONES, self._first_segment))
        changes: list[tuple[Key, bytes | None]] = [
            *((SegmentKey(log, number), data) for number, data in segments.items()),
            *((SegmentKey(log, number), None) for number in removed),
            (PositionKey(log), encode_position(stored)),
        ]
        return stored, changes

    # -- beginning, and beginning again

    async def _begin_anew(self) -> None:
        """End the transaction of the partition's last writer, and read back what was committed."""
        self._drop()
        self._stale = True
        target = self._target
        self._partition = await target.find_partition(self._claim.partition)
        await wait_claim(self._claim)
        self._writer = target.make_writer(self._source)
        await self._writer.init()
        if failpoints.ENABLED:
            failpoints.reach("after_mirror_init")
        self._states = await target.read_positions(self._source)
        if not self._states and (other := target.find_other_source(self._source, self._partition.topic)) is not None:
            raise RetriableSinkError(
                f"{target.name}: {self._partition.topic} has records of {self._claim.partition} of cluster "
                f"{other.cluster}, which group {other.group} has mirrored; this source is cluster "
                f"{self._source.cluster}. If it is the same one, which has left ZooKeeper or got a new one, give "
                "cluster.identities; if it is another one, mirror it into other topics (topic: NAME.{topic}), or with "
                "another group.id to have both in one topic"
            )
        self._stale = False

    def _adopt(self, position: int) -> None:
        """Go on where the stored position ends; at ``position`` if nothing is stored."""
        state = next((one for one in self._states if one.log == self._log), None)
        self._next = position
        if state is None:
            self._stored, self._request_id, self._target_end = None, None, 0
            self._lowest = 0
            self._begin_map(0)
            self._positions_partition = self._target.choose_positions_partition(self._source)
        else:
            self._stored = stored = state.stored
            self._request_id, self._target_end = stored.request_id, stored.target
            self._lowest = state.lowest_segment if len(state.target_starts) else stored.first_segment
            self._positions_partition = self._target.get_positions_partition(state.partition)
            self._next = max(position, stored.source)
            self._adopt_map(state)
        self._acknowledged = self._next

    def _adopt_map(self, state: MirrorState) -> None:
        stored = state.stored
        last = state.segments.get(stored.last_segment)
        target = TopicPartition.modern(stored.target_topic, stored.target_partition)
        is_mapped = stored.is_mapped and self._options.partitioner == "same"
        if not is_mapped or target != self._partition or (last is None and stored.last_segment >= stored.first_segment):
            # the map is of another topic, there was none or shall be none, or the target has lost a segment
            self._begin_map(stored.last_segment + 1)
            self._target_end = stored.target if is_mapped and target == self._partition else 0
            return
        self._first_segment, self._last_segment = stored.first_segment, stored.last_segment
        self._starts = array("q", state.target_starts[max(0, stored.first_segment - state.lowest_segment) :])
        if last is None:
            self._map = MapWriter(counts_bytes=self._counts_bytes, number=stored.last_segment + 1)
        else:
            self._map = MapWriter(counts_bytes=self._counts_bytes, number=stored.last_segment, last=last)

    async def _begin_log(self) -> None:
        """Begin the transaction that stores a log's start, unless that is stored already."""
        stored = self._stored
        is_mapped = self._options.partitioner == "same"
        if stored is not None and (
            not is_mapped or self._partition == TopicPartition.modern(stored.target_topic, stored.target_partition)
        ):
            return
        if is_mapped:
            self._target_end = (await self._target.read_log(self._partition)).latest
        self._begin_transaction()

    def _begin_map(self, number: int) -> None:
        """Begin a map with a segment number; segments below it are removed by and by."""
        self._map = MapWriter(counts_bytes=self._counts_bytes, number=number)
        self._first_segment, self._last_segment = number, number - 1
        self._starts = array("q")

    async def _fail(self, error: ConsumerdError) -> ConsumerdError:
        """Begin again after an error; return what to tell the pipeline."""
        self._stale = True
        explained = await self._explain(error)
        return await self._begin_again(str(explained))

    async def _begin_again(self, reason: str) -> ConsumerdError:
        """Begin again; return the error that makes the pipeline go on where the mirror ends.

        If the target does not let us, the pipeline makes the same call again later.
        """
        known, acknowledged = self._known, self._acknowledged
        try:
            await self._begin_anew()
        except TARGET_ERRORS as error:
            explained = str(await self._explain(error))
            return RetriableSinkError(reason if explained == reason else f"{reason}; then: {explained}")
        if self._log is None:
            return RetriableSinkError(reason)
        self._adopt(acknowledged)
        if known is not None and (self._stored is None or self._stored.source < known.source):
            self._stale = True
            return RetriableSinkError(
                f"{self._target.name}: the position {known.source} of {self._claim.partition} was stored in "
                f"{self._positions_partition}, and is not there any more: the target has lost records (an unclean "
                "leader election), or the topic was deleted. Restart the daemon to go on at the group's position"
            )
        try:
            await self._begin_log()
        except TARGET_ERRORS as error:
            self._stale = True
            return RetriableSinkError(f"{reason}; then: {await self._explain(error)}")
        self._known = self._stored
        return RetriableSinkError(reason, resume_position=self._next)

    async def _explain(self, error: ConsumerdError) -> ConsumerdError:
        """Return an error of the target for the pipeline.

        Raises OwnershipLost if another member has fenced us.
        """
        own_id = self._target.name_id(self._source)
        text = explain_failure(
            error, self._partition.topic, self._positions_partition.topic, own_id, self._target.principal
        )
        if isinstance(error, ProducerFenced):
            await confirm_claim(self._claim)
            now = self._now()
            # the target also fences the producer of a transaction that has timed out
            if self._opened_at is None or (now - self._opened_at) * 1000 < self._options.transaction_timeout_ms:
                self._target.report_fenced(self._claim.partition)
                text += self._fencings.note(now)
        return RetriableSinkError(f"{self._target.name}: {text}")

    def _drop(self) -> None:
        """Drop what was not committed."""
        if self._opened_at is not None:
            self._target.report_abort(self._now() - self._opened_at)
        self._open.clear()
        self._opened_at = None
        self._account()

    def _make_batch(self) -> MirroredBatch:
        return MirroredBatch(codec=self._options.codec, counts_bytes=self._counts_bytes)

    def _account(self) -> bool:
        """Count the memory that is held; return True if it should be sent."""
        held = sum(batch.size + _ROW_MEMORY * len(batch) for batch in self._open.values())
        difference, self._charged = held - self._charged, held
        return self._target.charge(difference)

    def _get_writer(self) -> TransactionWriter:
        assert self._writer is not None, "recovered first"
        return self._writer


def _join(batch: MirroredBatch, parts: Sequence[tuple[MirroredBatch, int]]) -> Sequence[tuple[MirroredBatch, int]]:
    """Return a batch as one part, if its parts are consecutive in the target."""
    ends = [start + len(part) for part, start in parts]
    is_whole = ends[:-1] == [start for _, start in parts[1:]]
    return [(batch, parts[0][1])] if is_whole else parts
