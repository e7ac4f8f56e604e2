# SPDX-License-Identifier: Apache-2.0
"""Compaction of one log, as by Kafka's LogCleaner: each key's last record stays.

All segments but the newest are compacted. The part that was not compacted before is read for its keys. Then every
segment is rewritten without the records whose key occurs again later. A record without a value (a tombstone) removes
earlier records of its key, and is itself removed after ``delete_retention_ms`` in the compacted part, so that readers
that began earlier see it. Records keep their offsets, and batches theirs.
Records of aborted transactions are removed, and do not replace others. A record without a key, which a compacted log
does not accept, is removed.

Example: offsets 0-3 hold a=1, b=2, a=3, b=null. Compaction keeps 2 (a=3) and 3 (b=null). A compaction at least
``delete_retention_ms`` later keeps only 2.

The result is written to a ``.cleaned`` file. Once durable, that is renamed to ``.swap``, and from then on it counts
(see ``recovery``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.headers import CHUNK_BYTES, UnitHeader, UnitWalker, parse_header
from consumerd.embedded.log.index import MOST_RELATIVE
from consumerd.embedded.log.producers import AbortedSpan, find_owner
from consumerd.embedded.log.recovery import CLEANED_ENDING, SWAP_ENDING
from consumerd.embedded.log.segment import LOG_SUFFIX, Segment, segment_path
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import build_batch, build_messages
from consumerd.wire.modern.entry import ATTRIBUTES_AT, CODEC_MASK, LOG_APPEND_TIME_FLAG, MAGIC_AT
from consumerd.wire.modern.extent import BATCH_MAGIC
from consumerd.wire.modern.record_batch import ATTRIBUTES_AT as BATCH_ATTRIBUTES_AT
from consumerd.wire.modern.record_batch import CONTROL_FLAG, HEADER, TRANSACTIONAL_FLAG
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LastOffsets:
    """The last offset of each key in the segments to be compacted.

    ``by_key`` has the keys of segments that were not compacted before. ``end`` is the offset up to which these segments
    were read.
    """

    by_key: dict[bytes, int]
    end: int

    def keeps(self, batch: RecordBatch, *, tombstones: bool) -> list[int]:
        """Return the indexes of a batch's records that compaction keeps.

        Records without a value are kept only if ``tombstones`` is True.
        """
        last = self.by_key
        return [
            row
            for row, (key, offset, value_start) in enumerate(
                zip(batch.keys(), batch.offsets, batch.value_starts, strict=True)
            )
            if key is not None and last.get(key, offset) <= offset and (tombstones or value_start >= 0)
        ]


def dirty_ratio(segments: Sequence[Segment], cleaned_to: int) -> float:
    """Return the share of a log's bytes that is not compacted, from 0 to 1.

    Args:
        cleaned_to: Offset up to which the log is compacted.
    """
    total = sum(segment.size for segment in segments)
    dirty = sum(segment.size for segment in segments if segment.base_offset >= cleaned_to)
    return dirty / total if total else 0.0


def read_last_offsets(
    segments: Sequence[Segment],
    cleaned_to: int,
    end: int,
    partition: TopicPartition,
    most_keys: int,
    aborted: Sequence[AbortedSpan] = (),
) -> LastOffsets:
    """Return the last offset of each key in the segments that are not compacted yet.

    Segments are read until there are ``most_keys`` keys, each as a whole, so there may be more. Raises
    CorruptMessageError, OSError.

    Args:
        cleaned_to: Offset up to which the log is compacted.
        end: Offset at which reading ends.
        aborted: Transactions whose records do not count.
    """
    by_key: dict[bytes, int] = {}
    for segment in segments:
        if segment.base_offset < cleaned_to:
            continue
        if len(by_key) >= most_keys:
            end = segment.base_offset
            break
        for raw, batch in _read_units(segment, partition):
            if _is_void(raw, aborted):
                continue
            by_key.update(
                (key, offset) for key, offset in zip(batch.keys(), batch.offsets, strict=True) if key is not None
            )
    return LastOffsets(by_key=by_key, end=end)


def plan_groups(segments: Sequence[Segment], most_bytes: int, tombstones_from_ms: int) -> list[Sequence[Segment]]:
    """Divide segments into groups of neighbours, each to become one compacted segment.

    The segments of a group have at most ``most_bytes`` together. A segment with tombstones that must be kept is a group
    of its own. In a larger group it would get the modification time of the youngest segment, and its tombstones would
    be kept for ever (KAFKA-8522). Raises OSError.

    Args:
        segments: The segments, in order.
        tombstones_from_ms: Tombstones are kept in segments modified after this time, in ms since the Unix epoch.
    """
    groups: list[list[Segment]] = []
    alone = True
    for segment in segments:
        young = segment.modified_ms() > tombstones_from_ms
        if alone or young or not _fits(groups[-1], segment, most_bytes):
            groups.append([])
        groups[-1].append(segment)
        alone = young
    return list(groups)


def _fits(group: Sequence[Segment], segment: Segment, most_bytes: int) -> bool:
    size = sum(one.size for one in group) + segment.size
    return size <= most_bytes and segment.next_offset - group[0].base_offset <= MOST_RELATIVE


def write_cleaned(
    group: Sequence[Segment],
    last: LastOffsets,
    tombstones_from_ms: int,
    partition: TopicPartition,
    settings: LogSettings,
    files: OsLogFiles,
    aborted: Sequence[AbortedSpan] = (),
) -> Segment:
    """Compact a group of segments into one durable segment, a ``.swap`` file, and return it.

    Tombstones of segments modified at ``tombstones_from_ms`` or earlier are removed. Raises CorruptMessageError,
    OSError.
    """
    folder, base = group[0].folder, group[0].base_offset
    cleaned = segment_path(folder, base, LOG_SUFFIX + CLEANED_ENDING)
    target = Segment(folder, base, files, index_interval_bytes=settings.index_interval_bytes)
    try:
        target.open(create=True, path=cleaned)
        target.cut()
        for segment in group:
            tombstones = segment.modified_ms() > tombstones_from_ms
            _copy_kept(segment, target, last, partition, aborted, tombstones=tombstones)
        target.set_modified_ms(group[-1].modified_ms())
        target.sync()
        files.rename(cleaned, segment_path(folder, base, LOG_SUFFIX + SWAP_ENDING))
        files.sync_folder(folder)
    except BaseException:
        target.close()
        raise
    target.created_ms = group[0].created_ms
    return target


def _copy_kept(
    source: Segment,
    target: Segment,
    last: LastOffsets,
    partition: TopicPartition,
    aborted: Sequence[AbortedSpan],
    *,
    tombstones: bool,
) -> None:
    pending = bytearray()
    units: list[UnitHeader] = []
    for raw, batch in _read_units(source, partition):
        if _is_void(raw, aborted):
            continue
        unit = keep_rows(raw, batch, last.keeps(batch, tombstones=tombstones))
        if not unit:
            continue
        header = parse_header(unit, 0, len(pending))
        assert header is not None, "a whole unit"
        units.append(header)
        pending += unit
        if len(pending) >= CHUNK_BYTES:
            target.append(pending, units)
            pending, units = bytearray(), []
    if units:
        target.append(pending, units)


def _is_void(raw: bytes, aborted: Sequence[AbortedSpan]) -> bool:
    """Return True if a unit is a batch of an aborted transaction."""
    if not aborted or raw[MAGIC_AT] != BATCH_MAGIC:
        return False
    owner = find_owner(raw)
    return owner is not None and any(span.covers(owner) for span in aborted)


def keep_rows(raw: bytes, batch: RecordBatch, rows: Sequence[int]) -> bytes:
    """Return a message or batch with only some of its records.

    Empty if none is left. Format, codec and offset are kept. Data that keeps all its records is unchanged, and so are
    control batches, which have no user keys.

    Args:
        raw: The bytes of the message or batch.
        rows: Indexes of the records to keep.
    """
    magic = raw[MAGIC_AT]
    attributes = raw[BATCH_ATTRIBUTES_AT if magic == BATCH_MAGIC else ATTRIBUTES_AT]
    if magic == BATCH_MAGIC and attributes & CONTROL_FLAG:
        return raw
    if len(rows) == len(batch):
        return raw if rows else b""
    if not rows:
        return b""
    codec = attributes & CODEC_MASK
    append_time = batch.timestamps[rows[0]] if magic and attributes & LOG_APPEND_TIME_FLAG else None
    keys, values = batch.keys(), batch.values()
    if magic != BATCH_MAGIC:
        messages = [(batch.offsets[row], batch.timestamps[row], keys[row], values[row]) for row in rows]
        return build_messages(messages, magic=magic, codec=codec, log_append_time_ms=append_time)
    base_offset, _, epoch, _, _, attributes, last_delta, _, _, *producer, _ = HEADER.unpack_from(raw)
    return build_batch(
        [
            (batch.offsets[row], batch.timestamps[row], keys[row], values[row], batch.header_bytes(row) or b"\0")
            for row in rows
        ],
        base_offset=base_offset,
        codec=codec,
        log_append_time_ms=append_time,
        leader_epoch=epoch,
        producer=(producer[0], producer[1], producer[2]),
        transactional=bool(attributes & TRANSACTIONAL_FLAG),
        last_offset=base_offset + last_delta,
    )


def _read_units(segment: Segment, partition: TopicPartition) -> Iterator[tuple[bytes, RecordBatch]]:
    """Yield the units of a segment with their records. Raises CorruptMessageError, OSError."""
    walker = UnitWalker(segment.file.read, 0, segment.size)
    for header in walker:
        raw = walker.unit(header)
        yield raw, decode_record_set(raw, partition=partition, start=0)
