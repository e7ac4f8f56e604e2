# SPDX-License-Identifier: Apache-2.0
"""Compressed JSON lines, as audit and bronze read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.demo.audit import read_json_lines
from consumerd.landing.examine import examine
from consumerd.landing.findings import FindingKind
from consumerd.landing.footers import read_all
from consumerd.landing.scan import scan_landing
from consumerd.spark import landed_rows
from consumerd.spark.data_check import check_data
from consumerd.spark.landed_rows import DamagedFile, LandedContent, read_rows
from tests.support.landing_zone import Kind, LandingZone, flip_bytes, truncate_file


@pytest.fixture(params=["jsonl.gz", "jsonl.zst"])
def zone(request: pytest.FixtureRequest, tmp_path: Path) -> LandingZone:
    kind: Kind = request.param
    return LandingZone(tmp_path / "landing", kind)


def content(zone: LandingZone, number: int = 0) -> LandedContent:
    (chain,) = read_all(scan_landing([zone.path])).chains
    file = chain.files[number]
    assert file.metadata is not None
    return LandedContent(
        path=file.path,
        partition=chain.partition,
        extension=chain.record.extension,
        count=file.metadata.count,
        sha256=file.metadata.sha256,
    )


def test_rows_are_what_was_landed(zone: LandingZone, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, whose bounds are nowhere near those of the frames."""
    monkeypatch.setattr(landed_rows, "PIECE_BYTES", 777)
    zone.land("orders", 0, 0, 300, files=2)
    rows = [row for number in (0, 1) for batch in read_rows(content(zone, number)) for row in batch.to_pylist()]
    assert list(range(300)) == [row["offset"] for row in rows]
    assert [one.value for one in zone.expected.values()] == [row["value"] for row in rows]
    assert 300 == len(list(read_json_lines(zone.path)))


def test_audit_reads_them(zone: LandingZone) -> None:
    """Names, metadata and every record."""
    zone.land("orders", 0, 0, 300, files=2)
    landing = read_all(scan_landing([zone.path]))
    assert [] == list(examine(landing, depth="footers").errors)
    for file in landing.chains[0].files:
        assert file.metadata is not None
        assert (150, ()) == check_data(file.path, zone.kind, file.metadata)


@pytest.mark.parametrize("at", [0, 2, 30, 200, -5])
def test_flipped_bytes_are_found(zone: LandingZone, at: int) -> None:
    """In a header, in the data, in a checksum: by the decompressor, or by the digest."""
    (path,) = zone.land("orders", 0, 0, 300)
    flip_bytes(path, at % path.stat().st_size, 1)
    with pytest.raises(DamagedFile, match=str(path)):
        list(read_rows(content(zone)))


@pytest.mark.parametrize("left", [0, 5, 100])
def test_cut_file_is_found(zone: LandingZone, left: int) -> None:
    """A frame that is cut off must not read as the end of the file."""
    (path,) = zone.land("orders", 0, 0, 300)
    file = content(zone)
    truncate_file(path, left)
    with pytest.raises(DamagedFile):
        list(read_rows(file))
    (chain,) = read_all(scan_landing([zone.path])).chains
    assert chain.files[0].damage is not None
    assert {FindingKind.FILE_DAMAGED} == {finding.kind for finding in examine_all(zone)}


def examine_all(zone: LandingZone) -> list[object]:
    return list(examine(read_all(scan_landing([zone.path])), depth="footers").errors)
