# SPDX-License-Identifier: Apache-2.0
"""Everything that a file's rows can have wrong is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from consumerd.landing import footers
from consumerd.landing.chain import FileMetadata, LandedGap
from consumerd.landing.findings import Finding, FindingKind
from consumerd.landing.scan import scan_landing
from consumerd.model import Gap, GapReason
from consumerd.spark.data_check import check_data
from tests.support.landing_zone import Kind, LandingZone, flip_bytes, rewrite_lines, rewrite_parquet

GAPS = [Gap(30, 40, GapReason.COMPACTION)]
Found = list[tuple[FindingKind, int | None, int | None]]


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    return LandingZone(tmp_path / "landing")


def check(zone: LandingZone) -> tuple[int, tuple[Finding, ...]]:
    [chain] = footers.read_all(scan_landing([zone.path])).chains
    [file] = chain.files
    assert file.metadata is not None
    return check_data(file.path, chain.record.extension, file.metadata)


def found(zone: LandingZone) -> Found:
    return [(finding.kind, finding.start, finding.end) for finding in check(zone)[1]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_sound_file_has_nothing_wrong(tmp_path: Path, kind: Kind) -> None:
    """Records and gaps cover the span, once."""
    zone = LandingZone(tmp_path / "landing", kind)
    zone.land("orders", 0, 0, 100, gaps=GAPS)

    assert (90, ()) == check(zone)


def test_sound_file_without_records(zone: LandingZone) -> None:
    """Progress without records is as sound."""
    zone.land("orders", 0, 0, 10, gaps=[Gap(0, 10, GapReason.ABORTED)])

    assert (0, ()) == check(zone)


def test_sound_file_with_gaps_summed_up(zone: LandingZone) -> None:
    """Where gaps are summed up, any offset of theirs may be missing."""
    gaps = [Gap(offset, offset + 1, GapReason.COMPACTION) for offset in range(1, 2400, 2)]
    zone.land("orders", 0, 0, 2400, gaps=gaps)

    assert (1200, ()) == check(zone)


def drop(offset: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.filter(pc.not_equal(table["offset"], offset))


def repeat(offset: int) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        row = table.filter(pc.equal(table["offset"], offset))
        lower = table.filter(pc.less_equal(table["offset"], offset))
        return pa.concat_tables([lower, row, table.filter(pc.greater(table["offset"], offset))])

    return change


def swap(table: pa.Table) -> pa.Table:
    return table.take([1, 0, *range(2, len(table))])


def shift(table: pa.Table) -> pa.Table:
    offsets = pc.if_else(pc.equal(table["offset"], 99), 150, table["offset"])
    place = table.schema.get_field_index("offset")
    return table.set_column(place, table.schema.field(place), offsets.cast(pa.int64()))


CHANGES: list[tuple[Callable[[pa.Table], pa.Table], Found]] = [
    (drop(50), [(FindingKind.RECORD_MISSING, 50, 51), (FindingKind.DATA_CONTRADICTS, 0, 100)]),
    (repeat(60), [(FindingKind.RECORD_TWICE, 60, 61), (FindingKind.DATA_CONTRADICTS, 0, 100)]),
    (swap, [(FindingKind.DATA_CONTRADICTS, 0, 1), *[(FindingKind.DATA_CONTRADICTS, 0, 100)]]),
    (
        shift,
        [
            (FindingKind.RECORD_OUTSIDE, 150, 151),
            (FindingKind.RECORD_MISSING, 99, 100),
            (FindingKind.DATA_CONTRADICTS, 0, 100),
        ],
    ),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=["dropped", "repeated", "swapped", "outside"])
def test_rows_that_are_not_what_the_metadata_say(
    zone: LandingZone, change: Callable[[pa.Table], pa.Table], expected: Found
) -> None:
    """A lost, repeated, misplaced or foreign record is found by its offset."""
    [path] = zone.land("orders", 0, 0, 100, gaps=GAPS)
    rewrite_parquet(path, change)

    assert expected == found(zone)


def misdate(metadata: FileMetadata) -> FileMetadata:
    return replace(metadata, max_timestamp=5)


def deny(metadata: FileMetadata) -> FileMetadata:
    gaps = (LandedGap(start=20, end=40, reason=GapReason.RETENTION, offsets=20),)
    return replace(metadata, gaps=gaps, count=80)


@pytest.mark.parametrize(
    ("describe", "expected"),
    [
        (misdate, [(FindingKind.DATA_CONTRADICTS, 0, 100)]),
        (deny, [(FindingKind.DATA_CONTRADICTS, 20, 40), (FindingKind.DATA_CONTRADICTS, 0, 100)]),
    ],
)
def test_metadata_that_are_not_what_the_rows_say(
    zone: LandingZone, describe: Callable[[FileMetadata], FileMetadata], expected: Found
) -> None:
    """Times that are wrong, gaps that are none."""
    [path] = zone.land("orders", 0, 0, 100, gaps=GAPS)
    rewrite_parquet(path, describe=describe)

    assert expected == found(zone)


@pytest.mark.parametrize("at", [100, 500, 1000], ids=str)  # not within a page's header, which has no checksum
def test_flipped_bytes_are_found(zone: LandingZone, at: int) -> None:
    """Pages have checksums: what a disk changes does not pass for data."""
    [path] = zone.land("orders", 0, 0, 1000)
    assert path.stat().st_size > at + 1500
    flip_bytes(path, at, 1)

    assert [(FindingKind.FILE_DAMAGED, 0, 1000)] == found(zone)
    assert str(path) in check(zone)[1][0].detail


def test_changed_lines_are_found(tmp_path: Path) -> None:
    """A repeated line is found, with or without metadata that were made to match it."""
    zone = LandingZone(tmp_path / "landing", "jsonl")
    [path] = zone.land("orders", 0, 0, 10)
    rewrite_lines(path, lambda lines: [*lines[:5], lines[4], *lines[5:]])

    assert {(FindingKind.FILE_DAMAGED, 0, 10), (FindingKind.RECORD_TWICE, 4, 5)} == set(found(zone))


def test_line_that_is_no_json_is_found(tmp_path: Path) -> None:
    """A line that cannot be read names its file."""
    zone = LandingZone(tmp_path / "landing", "jsonl")
    [path] = zone.land("orders", 0, 0, 10)
    rewrite_lines(path, lambda lines: [*lines[:5], b"{\n", *lines[6:]])

    assert [(FindingKind.FILE_DAMAGED, 0, 10)] == found(zone)


def test_file_that_is_gone_is_found(zone: LandingZone) -> None:
    """Between reading names and data a file may go."""
    [path] = zone.land("orders", 0, 0, 10)
    [chain] = footers.read_all(scan_landing([zone.path])).chains
    [file] = chain.files
    assert file.metadata is not None
    path.unlink()

    count, [finding] = check_data(file.path, "parquet", file.metadata)

    assert (0, FindingKind.FILE_DAMAGED, str(path)) == (count, finding.kind, finding.where)
    assert finding == Finding.parse(finding.encode())


def test_rows_of_another_partition_are_found(zone: LandingZone) -> None:
    """A file whose rows say that they are elsewhere's was made of other data, whatever its metadata say."""
    [path] = zone.land("orders", 0, 0, 100)
    rewrite_parquet(path, lambda table: table.set_column(0, "topic", pa.repeat("clicks", len(table))))

    assert [(FindingKind.FILE_DAMAGED, 0, 100)] == found(zone)
    assert "holds rows of topic clicks, its metadata say orders" in check(zone)[1][0].detail
