# SPDX-License-Identifier: Apache-2.0
"""Mirrors one partition without transactions, for one claim: each record at least once.

For targets that have no transactions (before 0.11), or give no rights for them. Sources of Kafka 0.6 and 0.7 are
refused (``target``): the places of their partitions are stored in transactions. Each record carries its origin
(``mirror.provenance``). A writer begins behind the last record of its partition that the target has.

Each call of ``write`` sends its records in parts, one after the other, and returns when all are acknowledged. Nothing
is kept between calls, so there is nothing to flush.

Records come twice
    if a part is sent again because its answer was lost, and if a stalled earlier owner of the partition writes once
    more. Example: an owner is killed after it has sent 100 to 149, and before the target has them. Its successor finds
    99 as the last record, and sends 100 to 149. If the first request arrives after all, both are in the log.

No record is lost
    since a part is sent when the one before is acknowledged: behind the last record that the target has, nothing was
    skipped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from consumerd.access.principal import Principal
from consumerd.client.record_writer import MakeRecords
from consumerd.errors import (
    ConsumerdError,
    PermanentSinkError,
    RetriableSinkError,
    WriteRefused,
)
from consumerd.mirror.provenance import HEADER, RecordOrigin, encode_origin, make_envelope
from consumerd.model import Claim, Gap, Incarnation, TopicPartition
from consumerd.sinks.base import Start
from consumerd.sinks.confirming import wait_claim
from consumerd.sinks.kafka.failures import OF_ONE_RECORD, TARGET_ERRORS, explain_failure, explain_refused, find_code
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import NewRecord, RecordBatch, check_headers

_FIRST_WITH_HEADERS: Final = 2
"""First record format (magic) with headers."""
_ROW_BYTES: Final = 150
"""Bytes of a record beside key, value and headers, about; most are the origin's."""


class RecordAppender(Protocol):
    """Writer to the target, such as ``client.record_writer.RecordWriter``."""

    async def write(self, partition: TopicPartition, make: MakeRecords) -> int | None:
        """Append records; return the offset of the first one, None if it is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSettings:
    """Settings of a writer without transactions.

    Attributes:
        name: Sink and target, with which error messages begin.
        principal: Our identity at the target's brokers.
        cluster_id: Id of the source cluster.
        batch_bytes: Size limit of a part, in bytes before compression.
        arrival_ms: Returns the timestamp for records without one, in ms since the epoch; None leaves them without.
        advanced: Called with the source and target offset behind the records that are safe.
    """

    name: str
    principal: Principal
    cluster_id: str
    batch_bytes: int
    arrival_ms: Callable[[], int] | None
    advanced: Callable[[int, int], None]


class PlainWriter:
    """Mirrors the records of one partition, under one claim. Implements ``base.PartitionWriter``.

    Args:
        target: Partition of the target.
        last: Origin of the partition's last record in the target; None if none was found.
    """

    request_id = None

    def __init__(
        self,
        claim: Claim,
        records: RecordAppender,
        target: TopicPartition,
        settings: PlainSettings,
        *,
        last: RecordOrigin | None,
    ) -> None:
        self._claim = claim
        self._records = records
        self._target = target
        self._settings = settings
        self._found = last
        self._last = -1
        self._incarnation = str(claim.incarnation)
        self._acknowledged = 0

    @property
    def resume_position(self) -> int | None:
        """Source offset behind the last record in the target; None if none was found."""
        return None if self._found is None else self._found.next_offset

    @property
    def truncation(self) -> int:
        """Number of truncations of the source log when the last record was written."""
        return 0 if self._found is None else Incarnation.parse(self._found.incarnation).truncation

    async def find_missing(self, position: int) -> Gap | None:
        """Return None: removed records of the target cannot be told from others."""
        del position
        return None

    @property
    def finished_position(self) -> int:
        """The acknowledged position, which moves with each part of a batch."""
        return self._acknowledged

    async def start(self, start: Start) -> None:
        """Set the position of the first record to write."""
        self._incarnation = str(self._claim.incarnation.truncated(start.truncation))
        self._acknowledged, self._last = start.position, start.position - 1

    async def write(self, batch: RecordBatch) -> int:
        """Write the records of a batch to the target; return the offset behind it."""
        check_headers(batch)
        if batch.next_offset > self._acknowledged:
            for rows in _cut(batch, self._find_first(batch), self._settings.batch_bytes):
                await self._send(batch, rows)
            self._acknowledged = batch.next_offset
        return self._acknowledged

    async def flush(self) -> int:
        """Return the acknowledged position; :meth:`write` leaves nothing to flush."""
        return self._acknowledged

    def deadline(self) -> float | None:
        """Return None: there is never anything to flush."""
        return None

    async def abandon(self) -> None:
        """Do nothing: no record waits to be acknowledged."""

    # -- sending

    def _find_first(self, batch: RecordBatch) -> int:
        """Return the first row that was not written yet."""
        return bisect_right(batch.offsets, self._last)

    async def _send(self, batch: RecordBatch, rows: range) -> None:
        """Write some rows; halve them if the target refuses one."""
        await wait_claim(self._claim)
        try:
            first = await self._records.write(self._target, partial(self._make, batch, rows))
        except WriteRefused as error:
            if find_code(error) not in OF_ONE_RECORD:
                raise self._explain(error) from error
            if len(rows) == 1:
                size = sum(_measure(batch, rows.start))
                raise PermanentSinkError(explain_refused(error, size), refused=rows.start) from error
            middle = len(rows) // 2
            await self._send(batch, rows[:middle])
            await self._send(batch, rows[middle:])
            return
        except TARGET_ERRORS as error:
            raise self._explain(error) from error
        self._last = batch.offsets[rows[-1]]
        self._acknowledged = batch.position_after(rows.stop)
        if first is not None:
            self._settings.advanced(self._acknowledged, first + len(rows))

    def _make(self, batch: RecordBatch, rows: range, magic: int) -> Sequence[NewRecord]:
        """Return some rows as records for the target. Raises PermanentSinkError."""
        return list(self._make_records(batch, rows, magic))

    def _make_records(self, batch: RecordBatch, rows: range, magic: int) -> Iterator[NewRecord]:
        picked = batch.rows(rows.start, rows.stop)
        arrival_ms = self._settings.arrival_ms
        for row, record in zip(rows, picked.records(), strict=True):
            origin = RecordOrigin(
                self._settings.cluster_id,
                batch.partition.topic,
                str(batch.partition.partition),
                self._incarnation,
                record.offset,
                batch.following(row),
            )
            has_none = record.timestamp == NO_TIMESTAMP
            timestamp = arrival_ms() if has_none and arrival_ms is not None else record.timestamp
            if magic >= _FIRST_WITH_HEADERS:
                headers = (*record.headers, (HEADER, encode_origin(origin)))
                yield NewRecord(key=record.key, value=record.value, timestamp=timestamp, headers=headers)
                continue
            if record.headers:
                raise PermanentSinkError(
                    f"{self._settings.name}: the record at {record.offset} has headers, which brokers before 0.11 "
                    "cannot store",
                    refused=row,
                )
            yield NewRecord(key=record.key, value=make_envelope(origin, record.value), timestamp=timestamp)

    def _explain(self, error: ConsumerdError) -> RetriableSinkError:
        text = explain_failure(error, self._target.topic, "", "", self._settings.principal)
        return RetriableSinkError(f"{self._settings.name}: {text}")


def _cut(batch: RecordBatch, first: int, size: int) -> Iterator[range]:
    """Yield the rows from ``first`` on, in parts of about ``size`` bytes."""
    held, begin = 0, first
    for row in range(first, len(batch)):
        needed = _ROW_BYTES + sum(_measure(batch, row))
        if held and held + needed > size:
            yield range(begin, row)
            held, begin = 0, row
        held += needed
    if begin < len(batch):
        yield range(begin, len(batch))


def _measure(batch: RecordBatch, row: int) -> Sequence[int]:
    spans = [(batch.key_starts, batch.key_ends), (batch.value_starts, batch.value_ends)]
    if batch.header_starts:
        spans.append((batch.header_starts, batch.header_ends))
    return [ends[row] - starts[row] for starts, ends in spans]
