# SPDX-License-Identifier: Apache-2.0
"""Checks the rows of a landed file against the file's metadata. Needs no Spark.

It reads every column of every row, and keeps 24 bytes per record: offset, next offset and index. A record covers the
offsets ``[offset, next_offset)``. Records and recorded gaps together must cover the file's span exactly once.

Example: the metadata say position 100, next offset 110, and a gap [104, 106). Rows at 100-103 and 106-108 are found, so
the finding is that offset 109 has no record.
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
from consumerd.landing.ranges import RangeSet, Span
from consumerd.model import TopicPartition
from consumerd.spark.landed_rows import DamagedFile, LandedContent, read_rows

Numbers = npt.NDArray[np.int64]
_Problem = tuple[FindingKind, str, Span]
"""Kind, description, and offsets of one contradiction between a file and its metadata."""


@dataclass(slots=True)
class _RowsRead:
    """Rows read from a file.

    Attributes:
        damage: reason why reading stopped; None if the whole file was read.
        ends: ``next_offset`` of the rows.
        times: smallest and largest timestamp of each batch, in ms.
    """

    count: int = 0
    damage: str | None = None
    offsets: list[Numbers] = field(default_factory=list)
    ends: list[Numbers] = field(default_factory=list)
    indexes: list[Numbers] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)


def check_data(path: str, extension: str, metadata: FileMetadata) -> tuple[int, tuple[Finding, ...]]:
    """Return the number of records in a file, and findings where they contradict the metadata.

    Raises nothing: errors of reading are findings.
    """
    rows = _read(path, extension, metadata)
    whole = Span(metadata.position, metadata.next_offset)
    offsets, ends, indexes = (_join(parts) for parts in (rows.offsets, rows.ends, rows.indexes))
    problems = [*_check_order(offsets, indexes)]
    if rows.damage is None:
        problems += _check_span(metadata, whole, offsets, ends)
        problems += _check_metadata(metadata, whole, offsets, rows)
    else:
        problems.insert(0, (FindingKind.FILE_DAMAGED, rows.damage, whole))
    findings = (
        Finding(
            kind=kind,
            severity=Severity.CRITICAL,
            detail=f"{path}: {detail}",
            topic=metadata.topic,
            partition=str(metadata.partition),
            incarnation=str(metadata.incarnation),
            chain=metadata.chain,
            where=path,
            start=span.start,
            end=span.end,
        )
        for kind, detail, span in problems
    )
    return rows.count, tuple(findings)


def _read(path: str, extension: str, metadata: FileMetadata) -> _RowsRead:
    rows = _RowsRead()
    partition = TopicPartition(metadata.topic, metadata.partition)
    try:
        # the actual count, since read_rows refuses a file with another one: its rows are checked all the same
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
        rows.damage = error.reason
    except (pa.ArrowException, UnicodeDecodeError) as error:
        rows.damage = f"cannot be read: {error}"
    except OSError as error:
        rows.damage = f"cannot be read: {error.strerror or error}"
    return rows


def _check_order(offsets: Numbers, indexes: Numbers) -> Iterator[_Problem]:
    """Report records that occur twice, and offsets that do not ascend."""
    steps = np.diff(offsets)
    rises = (steps > 0) | ((steps == 0) & (np.diff(indexes) > 0))
    if rises.all():
        return
    # sorted, so that equal records are neighbours
    order = np.lexsort((indexes, offsets))
    same = (np.diff(offsets[order]) == 0) & (np.diff(indexes[order]) == 0)
    twice = _to_ranges(offsets[order][1:][same])
    for span in twice.spans[:SPANS_NAMED]:
        yield FindingKind.RECORD_TWICE, f"holds records of {span} more than once", span
    if (steps < 0).any():
        at = int(offsets[1:][steps < 0][0])
        detail = f"its records do not rise: {at} comes after a higher offset"
        yield FindingKind.DATA_CONTRADICTS, detail, Span(at, at + 1)


def _check_span(metadata: FileMetadata, whole: Span, offsets: Numbers, ends: Numbers) -> Iterator[_Problem]:
    """Report offsets without a record, and records outside of the span or in gaps."""
    outside = _to_ranges(offsets[(offsets < whole.start) | (offsets >= whole.end)])
    for span in outside.spans[:SPANS_NAMED]:
        yield FindingKind.RECORD_OUTSIDE, f"holds records of {span}, outside of {whole}", span
    gaps = RangeSet.of((gap.start, gap.end) for gap in metadata.gaps)
    missing = _find_holes(whole, offsets, ends) - gaps
    for span in missing.spans[:SPANS_NAMED]:
        yield FindingKind.RECORD_MISSING, f"has no record of {span}, and no gap that says why", span
    # a gap that counts fewer offsets than it spans is a sum of several gaps, and may have records in between
    exact = RangeSet.of((gap.start, gap.end) for gap in metadata.gaps if gap.offsets >= gap.end - gap.start)
    for span in exact:
        inside = offsets[(offsets >= span.start) & (offsets < span.end)]
        if inside.size:
            reason = next(gap.reason for gap in metadata.gaps if gap.start <= inside[0] < gap.end)
            detail = f"holds {inside.size} records of {span}, which by its metadata were not landed: {reason}"
            yield FindingKind.DATA_CONTRADICTS, detail, span


def _find_holes(whole: Span, offsets: Numbers, ends: Numbers) -> RangeSet:
    """Return the offsets of a span that no record covers."""
    order = np.argsort(offsets, kind="stable")
    starts = np.append(offsets[order], whole.end)
    # covered[i]: where the records before the i-th one end; a hole, if the i-th one starts later
    covered = np.maximum.accumulate(np.concatenate((np.array([whole.start], dtype=np.int64), ends[order])))
    open_at = starts > covered
    holes = zip(covered[open_at].tolist(), starts[open_at].tolist(), strict=True)
    return RangeSet.of(holes) & RangeSet.of([whole])


def _check_metadata(metadata: FileMetadata, whole: Span, offsets: Numbers, rows: _RowsRead) -> Iterator[_Problem]:
    """Report numbers of the metadata that the data contradict."""
    actual = {
        "count": rows.count,
        "first_offset": int(offsets[0]) if offsets.size else None,
        "last_offset": int(offsets[-1]) if offsets.size else None,
        "min_timestamp": min((low for low, _ in rows.times), default=None),
        "max_timestamp": max((high for _, high in rows.times), default=None),
    }
    for name, value in actual.items():
        expected = getattr(metadata, name)
        if expected != value:
            detail = f"its metadata say {name} {expected}, and by its data it is {value}"
            yield FindingKind.DATA_CONTRADICTS, detail, whole


def _join(parts: list[Numbers]) -> Numbers:
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)


def _numbers(column: pa.Array) -> Numbers:
    if column.null_count:
        raise pa.ArrowInvalid("an offset is null")
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _to_ranges(offsets: Numbers) -> RangeSet:
    return RangeSet.of((offset, offset + 1) for offset in offsets.tolist())
