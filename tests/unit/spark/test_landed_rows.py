# SPDX-License-Identifier: Apache-2.0
"""Landed files of both formats read alike; a file that is not what its metadata say is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from consumerd.landing.footers import read_all
from consumerd.landing.metadata import LANDED_FORMATS
from consumerd.landing.ranges import RangeSet
from consumerd.landing.scan import scan_landing
from consumerd.model import Incarnation, TopicPartition
from consumerd.spark import landed_rows
from consumerd.spark.landed_rows import ROW_FORMATS, DamagedFile, LandedContent, read_rows
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import Record
from tests.support.landing_zone import Kind, LandingZone, flip_bytes, truncate_file
from tests.support.record_batches import record

KINDS: tuple[Kind, ...] = ("parquet", "jsonl")


def make_odd(place: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    """Return records as producers send them: nothing, text, bytes of no text, headers, no time."""
    keys = [None, b"", b"\xff\x00", "grüße\n".encode()]
    values = [b'{"a": 1}', None, bytes(range(256)), b'\\"\t']
    headers = [(), (("h", b"v"), ("h", None)), (("binary", b"\xfe"),), ()]
    turn = offset % 4
    time = NO_TIMESTAMP if offset % 7 == 3 else 1_700_000_000_000 + offset
    return record(offset, values[turn], key=keys[turn], headers=headers[turn], timestamp=time)


def content(zone: LandingZone) -> list[LandedContent]:
    landing = read_all(scan_landing([zone.path]))
    return [
        LandedContent(
            path=file.path,
            partition=chain.partition,
            extension=chain.record.extension,
            count=file.metadata.count,
            sha256=file.metadata.sha256,
        )
        for chain in landing.chains
        for file in chain.files
        if file.metadata is not None and file.metadata.count
    ]


def rows_of(zone: LandingZone, wanted: RangeSet | None = None) -> list[dict[str, object]]:
    batches = [batch for file in content(zone) for batch in read_rows(file, wanted)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_what_was_landed(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bronze holds the bytes that were produced, whichever format carried them."""
    monkeypatch.setattr(landed_rows, "PIECE_BYTES", 300)  # less than some lines
    zone = LandingZone(tmp_path, kind, make=make_odd)
    zone.land("odd", 0, 0, 40, files=2)
    expected = [
        {
            "offset": identity.offset,
            "next_offset": identity.offset + 1,
            "index": 0,
            "timestamp": None if made.timestamp == NO_TIMESTAMP else made.timestamp,
            "timestamp_type": rows_type(made),
            "key": made.key,
            "value": made.value,
            "headers": [{"key": key, "value": value} for key, value in made.headers],
        }
        for identity, made in sorted(zone.expected.items(), key=lambda item: item[0].offset)
    ]
    found = rows_of(zone)
    for row in found:
        time = row["timestamp"]
        row["timestamp"] = None if time is None else round(time.timestamp() * 1000)  # type: ignore[attr-defined]

    assert expected == found


def rows_type(made: Record) -> int:
    return int(made.timestamp_type)


def test_row_groups_without_wanted_offsets_are_not_read(tmp_path: Path) -> None:
    """Of a file that overlaps another, only the rest is decoded."""
    zone = LandingZone(tmp_path)
    zone.land("orders", 0, 0, 100)

    assert rows_of(zone, RangeSet.of([(100, 200)])) == []
    assert len(rows_of(zone, RangeSet.of([(99, 200)]))) == 100


def swap_line(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.index(b"@7:1") + 3
    data[place : place + 1] = b"9"  # still JSON, another value
    path.write_bytes(bytes(data))


def drop_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("parquet", truncate_file),
        ("parquet", flip_bytes),
        ("jsonl", truncate_file),
        ("jsonl", drop_line),
        ("jsonl", swap_line),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, kind: Kind, damage: Callable[[Path], None]) -> None:
    """Somebody has to restore it, or remove it."""
    zone = LandingZone(tmp_path, kind)
    (path,) = zone.land("orders", 0, 0, 200)
    (file,) = content(zone)
    damage(path)

    with pytest.raises(DamagedFile, match=str(path)) as caught:
        list(read_rows(file))
    assert caught.value.path == str(path)


@pytest.mark.parametrize("broken", ["é".encode(), b"\xff\xfe", b"*"])
def test_bytes_that_are_no_base64_any_more_are_damage(tmp_path: Path, broken: bytes) -> None:
    """Whatever a disk has made of them; the file is left out, and the rest of the zone is taken over."""
    zone = LandingZone(tmp_path, "jsonl", make=make_odd)
    (path,) = zone.land("odd", 0, 0, 8)
    (file,) = content(zone)
    data = path.read_bytes()
    place = data.index(b'"value_base64":"') + 20
    path.write_bytes(data[:place] + broken + data[place + len(broken) :])

    with pytest.raises(DamagedFile, match=str(path)):
        list(read_rows(file))


def test_lines_that_were_changed_are_damage(tmp_path: Path) -> None:
    """A bit that a disk changed inside a value leaves valid JSON and as many rows: only the SHA-256 tells."""
    zone = LandingZone(tmp_path, "jsonl")
    [path] = zone.land("orders", 0, 0, 10)
    lines = path.read_bytes()
    at = lines.index(b'"timestamp":') + len(b'"timestamp":')
    path.write_bytes(lines[:at] + (b"2" if lines[at : at + 1] == b"1" else b"1") + lines[at + 1 :])

    with pytest.raises(DamagedFile, match="SHA-256"):
        rows_of(zone)


def test_lines_without_records_are_damage(tmp_path: Path) -> None:
    """A file of as many bytes as it had, of which none is left."""
    zone = LandingZone(tmp_path, "jsonl")
    (path,) = zone.land("orders", 0, 0, 8)
    (file,) = content(zone)
    path.write_bytes(b"\n" * path.stat().st_size)

    with pytest.raises(DamagedFile, match=str(path)):
        list(read_rows(file))


def test_file_that_has_gone_is_no_damaged_one(tmp_path: Path) -> None:
    """An unmounted volume is to stop the job, not to be counted as files that it may leave out."""
    orders = TopicPartition.modern("orders", 0)
    file = LandedContent(path=str(tmp_path / "gone.parquet"), partition=orders, extension="parquet", count=1)

    with pytest.raises(FileNotFoundError):
        list(read_rows(file))


def test_rows_of_every_format_can_be_read() -> None:
    """A new format has an entry in both tables."""
    assert LANDED_FORMATS.keys() == ROW_FORMATS.keys()


def test_a_file_of_an_unknown_format_is_damaged(tmp_path: Path) -> None:
    """A later release may have landed it: the job leaves it out and names it."""
    orders = TopicPartition.modern("orders", 0)
    file = LandedContent(path=str(tmp_path / "0.orc"), partition=orders, extension="orc", count=1)

    with pytest.raises(DamagedFile, match="no format that is known here"):
        list(read_rows(file))
