"""Record sets of one magic made into those of another: for clients and for logs of other releases.

As Kafka's own conversion has it (AbstractRecords.downConvert, LogValidator of 1.1): records keep their offsets, gaps and
all; what is compressed stays so, with the same codec; timestamps keep their type where the magic has one; headers, the
producer's id and control batches are gone below magic 2. Each wrapper becomes a batch and the other way round, messages
side by side become one batch, an uncompressed batch becomes messages.
"""

from __future__ import annotations

from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.model import TimestampType, TopicPartition
from consumerd.wire.modern.building import NO_HEADERS, BatchRow, build_batch, build_messages
from consumerd.wire.modern.extent import BATCH_MAGIC
from consumerd.wire.modern.record_batch import CONTROL_FLAG
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.modern.units import Unit, walk_units
from consumerd.wire.records import Limits, RecordBatch

_LIMITS: Final = Limits()
_NOWHERE: Final = TopicPartition.modern("", 0)


def convert(data: bytes | bytearray | memoryview, *, magic: int, limits: Limits = _LIMITS) -> bytes:
    """Return all records of whole units, which have offsets, in ``magic``.

    Raises CorruptMessageError for what cannot be read, LocalProtocolError for zstd below magic 2.
    """
    raw = bytes(data)
    return b"".join(_convert(raw, units, magic, limits, 0) for units in _group(raw))


def convert_down(
    data: bytes | bytearray | memoryview, *, magic: int, start: int = 0, limits: Limits = _LIMITS
) -> bytes:
    """Return whole units for a client that reads nothing above ``magic``; those that it reads are left as they are.

    Uncompressed records below ``start``, where the client wants to read from, are left out of converted units.
    Raises as :func:`convert`.
    """
    raw = bytes(data)
    pieces = []
    for units in _group(raw):
        if units[0].magic <= magic:
            pieces.append(raw[units[0].at : units[-1].end])
        else:
            pieces.append(_convert(raw, units, magic, limits, 0 if units[0].codec else start))
    return b"".join(pieces)


def _group(raw: bytes) -> list[list[Unit]]:
    """Put messages that stand side by side together; raises CorruptMessageError where bytes are left over."""
    groups: list[list[Unit]] = []
    end = 0
    for unit in walk_units(raw):
        end = unit.end
        last = groups[-1] if groups else None
        alike = last is not None and (last[-1].magic, last[-1].attributes) == (unit.magic, unit.attributes)
        if last is not None and alike and unit.magic < BATCH_MAGIC and not unit.codec:
            last.append(unit)
        else:
            groups.append([unit])
    if end != len(raw):
        raise CorruptMessageError(f"byte {end} of {len(raw)}: the last unit is cut off")
    return groups


def _convert(raw: bytes, units: list[Unit], magic: int, limits: Limits, start: int) -> bytes:
    first, last = units[0], units[-1]
    piece = raw[first.at : last.end]
    if first.magic == magic:
        return piece
    if first.magic == BATCH_MAGIC and first.attributes & CONTROL_FLAG:
        return b""
    try:
        batch = decode_record_set(piece, partition=_NOWHERE, start=0, limits=limits)
    except CorruptMessageError as error:
        raise type(error)(f"byte {first.at} of {len(raw)}: {error}") from None
    if batch.next_offset <= last.last_offset:
        raise CorruptMessageError(f"byte {first.at} of {len(raw)}: the record set cannot be read to its end")
    return _build(batch.slice_from(start), first, magic)


def _build(batch: RecordBatch, unit: Unit, magic: int) -> bytes:
    if not len(batch):
        return b""
    types = batch.timestamp_types
    by_broker = bool(types) and types[0] == TimestampType.LOG_APPEND_TIME + 1
    time_ms = batch.timestamps[0] if by_broker else None
    rows = list(zip(batch.offsets, batch.timestamps, batch.keys(), batch.values(), strict=True))
    if magic < BATCH_MAGIC:
        return build_messages(rows, magic=magic, codec=unit.codec, log_append_time_ms=time_ms)
    headed: list[BatchRow] = [(*row, NO_HEADERS) for row in rows]
    return build_batch(headed, base_offset=rows[0][0], codec=unit.codec, log_append_time_ms=time_ms)
