# SPDX-License-Identifier: Apache-2.0
"""What files say of themselves, and what is said of files that cannot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.landing import footers
from consumerd.landing.coverage import Coverage
from consumerd.landing.ranges import RangeSet
from consumerd.landing.scan import scan_landing
from consumerd.landing.values import LandedFile
from tests.support.intake import plan_intake
from tests.support.landing_zone import Kind, LandingZone, flip_bytes, truncate_file


@pytest.fixture(params=["parquet", "jsonl"])
def zone(request: pytest.FixtureRequest, tmp_path: Path) -> LandingZone:
    kind: Kind = request.param
    return LandingZone(tmp_path / "landing", kind)


def read(zone: LandingZone) -> list[LandedFile]:
    return [file for chain in footers.read_all(scan_landing([zone.path])).chains for file in chain.files]


def test_metadata_of_every_file(zone: LandingZone) -> None:
    """Both formats say the same of themselves."""
    zone.land("orders", 0, 0, 150, files=3)
    zone.land("orders", 0, 160, 170)

    files = read(zone)

    assert [(0, 50), (50, 100), (100, 150), (150, 170)] == [file.span for file in files]
    assert [50, 50, 50, 10] == [file.metadata.count for file in files if file.metadata]
    assert [None] * 4 == [file.damage for file in files]


def test_only_what_is_wanted_is_read(zone: LandingZone) -> None:
    """A table's next run opens no file that it has taken; a look at chains' ends opens one file a chain."""
    zone.land("orders", 0, 0, 100, files=4)
    landing = scan_landing([zone.path])
    covered = Coverage(taken={landing.chains[0].ref: RangeSet.of([(0, 50)])})

    new = footers.read_new(landing, covered).chains[0]
    ends = footers.read_ends(landing).chains[0]

    assert [False, False, True, True] == [file.metadata is not None for file in new.files]
    assert [False, False, False, True] == [file.metadata is not None for file in ends.files]
    assert 100 == ends.end


def test_chain_of_a_number_that_was_taken_is_another_chain(zone: LandingZone) -> None:
    """The topic was deleted, what had landed of it was moved away, and then it was made again: numbers and offsets begin anew."""
    zone.land("orders", 0, 0, 100, files=2)
    covered = plan_intake([zone.path]).adds
    shutil.rmtree(zone.home("orders", 0))
    zone.land("orders", 0, 0, 40, czxid=9)

    assert [40] == [planned.metadata.count for planned in plan_intake([zone.path], covered=covered).files]


def test_seals_are_seen(zone: LandingZone) -> None:
    """A chain is over when its last file says so, and not by its successor's being there."""
    zone.land("orders", 0, 0, 10)
    zone.land("orders", 0, 4, 6, request="again")

    chains = footers.read_ends(scan_landing([zone.path])).chains

    assert [True, False] == [chain.sealed for chain in chains]
    assert [10, 6] == [chain.end for chain in chains]


@pytest.mark.parametrize(
    "damage",
    [truncate_file, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"x" * 500)],
    ids=["truncated", "empty", "other"],
)
def test_damaged_files_are_named(zone: LandingZone, damage: Callable[[Path], object]) -> None:
    """Nothing is known of a damaged file but its place, and all the others are read."""
    paths = zone.land("orders", 0, 0, 90, files=3)
    damage(paths[1])

    files = read(zone)

    assert [True, False, True] == [file.metadata is not None for file in files]
    assert files[1].damage is not None
    assert files[1].damage.startswith(f"{paths[1]}: its metadata cannot be read: ")
    assert (30, 60) == files[1].span


def test_unreadable_file_is_named(zone: LandingZone) -> None:
    """A name that is not a file does not stop the others from being read."""
    [path] = zone.land("orders", 0, 0, 10)
    path.unlink()
    path.mkdir()

    [file] = read(zone)

    assert file.metadata is None
    assert str(path) in (file.damage or "")


def test_misplaced_file_is_named(tmp_path: Path) -> None:
    """A copy under another name would be counted twice if names were believed."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 10)
    [path] = zone.land("orders", 0, 10, 20)
    shutil.copy(path, path.with_name(f"{20:020d}.parquet"))

    files = read(zone)

    assert files[2].metadata is None
    assert "its metadata say position 10, its place says 20" in (files[2].damage or "")


def test_file_of_another_cluster_is_named(tmp_path: Path) -> None:
    """Its offsets are other records, though topic, partition and incarnation may be the same."""
    zone = LandingZone(tmp_path / "landing")
    [path] = zone.land("orders", 0, 0, 10)
    other = LandingZone(tmp_path / "elsewhere", cluster="3-1800000000000")
    [copied] = other.land("orders", 0, 0, 10)
    shutil.copy(copied, path)

    [file] = read(zone)

    assert file.metadata is None
    assert f"say cluster 3-1800000000000, its place says {zone.cluster}" in (file.damage or "")


def test_files_published_while_names_are_read(zone: LandingZone) -> None:
    """A listing may show a new file and not the one before it: it is looked at again, and nothing is missing then."""
    paths = zone.land("orders", 0, 0, 90, files=3)
    aside = paths[1].with_name("aside")
    paths[1].rename(aside)
    landing = scan_landing([zone.path])
    assert [0, 60] == [file.position for file in landing.chains[0].files]
    aside.rename(paths[1])

    [chain] = footers.read_all(landing).chains

    assert [(0, 30), (30, 60), (60, 90)] == [file.span for file in chain.files]


def test_successor_that_is_begun_while_names_are_read(zone: LandingZone) -> None:
    """A chain whose seal was not listed yet, though its successor was, is looked at again."""
    zone.land("orders", 0, 0, 10)
    zone.land("orders", 0, 4, 6, request="again")
    seal = zone.files("orders", 0, 1)[-1]
    aside = seal.with_name("aside")
    seal.rename(aside)
    landing = scan_landing([zone.path])
    aside.rename(seal)

    assert [True, False] == [chain.sealed for chain in footers.read_ends(landing).chains]


def test_missing_file_stays_missing(zone: LandingZone) -> None:
    """Looking again ends, and does not make up what is not there."""
    paths = zone.land("orders", 0, 0, 90, files=3)
    paths[1].unlink()

    assert [(0, 30), (60, 90)] == [file.span for file in read(zone)]


def test_changed_footers_are_named(tmp_path: Path) -> None:
    """Whatever a disk has made of a footer, it is that file's damage and nobody's crash; or it is as it was."""
    zone = LandingZone(tmp_path / "landing")
    [path] = zone.land("orders", 0, 0, 50)
    whole = path.read_bytes()
    named = 0
    for at in range(len(whole) - 1200, len(whole), 25):
        path.write_bytes(whole)
        flip_bytes(path, at, 1)
        [file] = read(zone)
        assert (file.metadata is None) == (file.damage is not None and str(path) in file.damage)
        named += file.damage is not None

    assert named > 5
