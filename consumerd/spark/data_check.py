# SPDX-License-Identifier: Apache-2.0
"""Holds a landed file's rows against what the file says of itself. Reads every column of every row; no Spark in here.

Offsets are looked at as arrays, 24 bytes a record, whatever the records are. A record covers ``[offset, next_offset)``;
with the recorded gaps, a file's records cover its whole span, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd.landing.chain import FileMetadata
from consumerd.landing.examine import SPANS_NAMED
from consumerd.landing.findings import Finding, FindingKind, Severity
from consumerd.landing.metadata import PARQUET
from consumerd.landing.ranges import RangeSet
from consumerd.model import TopicPartition
from consumerd.spark.landed_rows import DamagedFile, LandedContent, read_rows

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Rows:
    """What was read of a file, and why no more, if so."""

    count: int = 0
    damage: str | None = None
    offsets: list[Numbers] = field(default_factory=list)
    ends: list[Numbers] = field(default_factory=list)
    indexes: list[Numbers] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)


def check_data(path: str, extension: str, metadata: FileMetadata) -> tuple[int, tuple[Finding, ...]]:
    """Return how many records a file holds, and what about them is not as its metadata say. Raises nothing."""
    rows = _read(path, extension, metadata)
    findings = []
    if rows.damage is not None:
        findings.append(
            _find(FindingKind.FILE_DAMAGED, path, metadata, rows.damage, metadata.position, metadata.next_offset)
        )
    offsets, ends, indexes = (_join(parts) for parts in (rows.offsets, rows.ends, rows.indexes))
    findings += _check_order(path, metadata, offsets, indexes)
    if rows.damage is None:
        findings += _check_span(path, metadata, offsets, ends)
        findings += _check_words(path, metadata, offsets, rows)
    return rows.count, tuple(findings)


def _read(path: str, extension: str, metadata: FileMetadata) -> _Rows:
    rows = _Rows()
    partition = TopicPartition(metadata.topic, metadata.partition)
    try:
        # a file that holds more or less than it says is looked at nevertheless
        count = pq.read_metadata(path).num_rows if extension == PARQUET else metadata.count
        content = LandedContent(
            path=path, partition=partition, extension=extension, count=count, sha256=metadata.sha256
        )
        for batch in read_rows(content):
            batch.validate(full=True)
            rows.count += len(batch)
            rows.offsets.append(_numbers(batch["offset"]))
            rows.ends.append(_numbers(batch["next_offset"]))
            rows.indexes.append(_numbers(batch["index"]))
            extent = pc.min_max(batch["timestamp"].cast(pa.int64())).as_py()
            if extent["min"] is not None:
                rows.times.append((extent["min"], extent["max"]))
    except DamagedFile as error:
        rows.damage = str(error)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        rows.damage = f"{path}: cannot be read: {error}"
    except OSError as error:
        rows.damage = f"{path}: cannot be read: {error.strerror or error}"
    return rows


def _check_order(path: str, metadata: FileMetadata, offsets: Numbers, indexes: Numbers) -> Iterator[Finding]:
    steps = np.diff(offsets)
    rises = (steps > 0) | ((steps == 0) & (np.diff(indexes) > 0))
    if rises.all():
        return
    order = np.lexsort((indexes, offsets))
    same = (np.diff(offsets[order]) == 0) & (np.diff(indexes[order]) == 0)
    twice = _named(offsets[order][1:][same])
    for span in twice.spans[:SPANS_NAMED]:
        detail = f"{path}: holds records of {span} more than once"
        yield _find(FindingKind.RECORD_TWICE, path, metadata, detail, span.start, span.end)
    if (steps < 0).any():
        at = int(offsets[1:][steps < 0][0])
        detail = f"{path}: its records do not rise: {at} comes after a higher offset"
        yield _find(FindingKind.DATA_CONTRADICTS, path, metadata, detail, at, at + 1)


def _check_span(path: str, metadata: FileMetadata, offsets: Numbers, ends: Numbers) -> Iterator[Finding]:
    position, end = metadata.position, metadata.next_offset
    outside = _named(offsets[(offsets < position) | (offsets >= end)])
    for span in outside.spans[:SPANS_NAMED]:
        detail = f"{path}: holds records of {span}, outside of [{position}, {end})"
        yield _find(FindingKind.RECORD_OUTSIDE, path, metadata, detail, span.start, span.end)
    gaps = RangeSet.of((gap.start, gap.end) for gap in metadata.gaps)
    missing = _find_holes(position, end, offsets, ends) - gaps
    for span in missing.spans[:SPANS_NAMED]:
        detail = f"{path}: has no record of {span}, and no gap that says why"
        yield _find(FindingKind.RECORD_MISSING, path, metadata, detail, span.start, span.end)
    exact = RangeSet.of((gap.start, gap.end) for gap in metadata.gaps if gap.offsets >= gap.end - gap.start)
    for span in exact:
        inside = offsets[(offsets >= span.start) & (offsets < span.end)]
        if inside.size:
            reason = next(gap.reason for gap in metadata.gaps if gap.start <= inside[0] < gap.end)
            detail = f"{path}: holds {inside.size} records of {span}, which by its metadata were not landed: {reason}"
            yield _find(FindingKind.DATA_CONTRADICTS, path, metadata, detail, span.start, span.end)


def _find_holes(position: int, end: int, offsets: Numbers, ends: Numbers) -> RangeSet:
    """Return what of ``[position, end)`` no record covers."""
    order = np.argsort(offsets, kind="stable")
    starts = np.append(offsets[order], end)
    covered = np.maximum.accumulate(np.concatenate((np.array([position], dtype=np.int64), ends[order])))
    open_at = starts > covered
    holes = zip(covered[open_at].tolist(), starts[open_at].tolist(), strict=True)
    return RangeSet.of(holes) & RangeSet.of([(position, end)])


def _check_words(path: str, metadata: FileMetadata, offsets: Numbers, rows: _Rows) -> Iterator[Finding]:
    held = {
        "count": rows.count,
        "first_offset": int(offsets[0]) if offsets.size else None,
        "last_offset": int(offsets[-1]) if offsets.size else None,
        "min_timestamp": min((low for low, _ in rows.times), default=None),
        "max_timestamp": max((high for _, high in rows.times), default=None),
    }
    for name, value in held.items():
        said = getattr(metadata, name)
        if said != value:
            detail = f"{path}: its metadata say {name} {said}, and by its data it is {value}"
            position, end = metadata.position, metadata.next_offset
            yield _find(FindingKind.DATA_CONTRADICTS, path, metadata, detail, position, end)


def _join(parts: list[Numbers]) -> Numbers:
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)


def _numbers(column: pa.Array) -> Numbers:
    if column.null_count:
        raise pa.ArrowInvalid("an offset is null")
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _named(offsets: Numbers) -> RangeSet:
    return RangeSet.of((offset, offset + 1) for offset in offsets.tolist())


def _find(kind: FindingKind, path: str, metadata: FileMetadata, detail: str, start: int, end: int) -> Finding:
    return Finding(
        kind=kind,
        severity=Severity.ERROR,
        detail=detail,
        topic=metadata.topic,
        partition=str(metadata.partition),
        incarnation=str(metadata.incarnation),
        chain=metadata.chain,
        path=path,
        start=start,
        end=end,
    )
