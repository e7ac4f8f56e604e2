# SPDX-License-Identifier: Apache-2.0
"""Landed files without some of their records: readable at every instant, and telling the truth."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.landing.chain import META_FOLDER, FileMetadata, LandedGap
from consumerd.landing.examine import examine
from consumerd.landing.filesystem import OsFileSystem
from consumerd.landing.footers import read_all
from consumerd.landing.holding import Holding
from consumerd.landing.line_compression import open_lines
from consumerd.landing.metadata import find_metadata_reader
from consumerd.landing.publish import find_chain, remove_hidden
from consumerd.landing.ranges import RangeSet
from consumerd.landing.scan import scan_landing
from consumerd.model import Gap, GapReason, Incarnation, PartitionKey, TopicPartition
from consumerd.spark.data_check import check_data
from consumerd.spark.erase_landed import LandedBusy, SearchedFile, _FileTally, list_files, remove
from consumerd.spark.erase_tables import Removal
from consumerd.spark.identities import SCHEMA, Identities
from tests.support.faulty_files import RecordingFileSystem
from tests.support.landing_zone import Kind, LandingZone

KINDS: tuple[Kind, ...] = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")


class Died(BaseException):
    """The process has ended."""


def identities(*offsets: int, partition: int = 0, incarnation: str = "7") -> Identities:
    count = len(offsets)
    columns = [
        pa.array([incarnation] * count, pa.string()),
        pa.nulls(count, pa.int32()),
        pa.array([partition] * count, pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array([0] * count, pa.int32()),
    ]
    return Identities.of(pa.Table.from_arrays(columns, schema=SCHEMA))


def listed(zone: LandingZone) -> list[SearchedFile]:
    files, damage = list_files(read_all(scan_landing([zone.path])))
    assert [] == damage
    return files


def offsets_of(path: Path) -> list[int]:
    if path.suffix == ".parquet":
        found: list[int] = pq.read_table(path, columns=["offset"], partitioning=None)["offset"].to_pylist()
        return found
    with path.open("rb") as file:
        return [
            json.loads(line)["offset"] for line in open_lines(file, path.name.partition(".")[2]).read().splitlines()
        ]


def errors_of(zone: LandingZone) -> list[str]:
    """Return what an audit with proof calls an error."""
    landing = read_all(scan_landing([zone.path]))
    report = examine(landing, depth="proof")
    found = [str(one) for one in report.errors]
    for one in list_files(landing)[0]:
        found += [str(finding) for finding in check_data(one.content.path, one.content.extension, one.metadata)[1]]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_records_go_and_the_others_stay_as_they_were(tmp_path: Path, kind: Kind) -> None:
    """Also all of a file, the newest one, and beside gaps of other reasons."""
    zone = LandingZone(tmp_path / "landing", kind=kind)
    zone.land("orders", 0, 0, 30, files=3, gaps=[Gap(4, 6, GapReason.COMPACTION)])
    zone.land("orders", 1, 0, 10)
    gone = [0, 3, *range(10, 20), 29]

    assert Removal(rows=len(gone), files=3) == remove(OsFileSystem(), listed(zone), identities(*gone))

    kept = [offset for offset in range(30) if offset not in (*gone, 4, 5)]
    assert kept == [offset for path in zone.files("orders", 0) for offset in offsets_of(path)]
    assert [*range(10)] == [offset for path in zone.files("orders", 1) for offset in offsets_of(path)]
    assert [] == errors_of(zone)
    [chain, _] = read_all(scan_landing([zone.path])).chains
    gaps = [gap for file in chain.files if file.metadata is not None for gap in file.metadata.gaps]
    assert [
        LandedGap(start=0, end=1, reason=GapReason.ERASED, offsets=1),
        LandedGap(start=3, end=4, reason=GapReason.ERASED, offsets=1),
        LandedGap(start=4, end=6, reason=GapReason.COMPACTION, offsets=2),
        LandedGap(start=10, end=20, reason=GapReason.ERASED, offsets=10),
        LandedGap(start=29, end=30, reason=GapReason.ERASED, offsets=1),
    ] == gaps
    assert Removal() == remove(OsFileSystem(), listed(zone), identities(*gone))


def die_at(number: int) -> Callable[[str, str], None]:
    """Return a ``before`` that ends everything with the ``number``-th change, from 0; writes are part of the next change."""
    seen = [0]

    def before(operation: str, name: str) -> None:
        if seen[0] == number:
            raise Died(operation, name)
        seen[0] += operation != "write"

    return before


@pytest.mark.parametrize("kind", KINDS)
def test_a_death_at_any_step_leaves_a_chain_that_can_be_read(tmp_path: Path, kind: Kind) -> None:
    """With the old file or the new one; the next run does the rest. A daemon that resumes sees the same end."""
    read_metadata = find_metadata_reader(kind)
    assert read_metadata is not None
    for step in range(40):
        zone = LandingZone(tmp_path / str(step), kind=kind)
        zone.land("orders", 0, 0, 10)
        files = RecordingFileSystem(die_at(step))
        try:
            remove(files, listed(zone), identities(4))
        except Died:
            died = True
        else:
            died = False
        assert [] == errors_of(zone)
        assert offsets_of(zone.files("orders", 0)[0]) in ([*range(10)], [0, 1, 2, 3, 5, 6, 7, 8, 9])
        place = TopicPartition.modern("orders", 0)
        chain = find_chain(OsFileSystem(), zone.path, place, extension=kind, read_metadata=read_metadata)
        assert chain is not None
        assert (10, False) == (chain.end, chain.sealed)
        remove(OsFileSystem(), listed(zone), identities(4))
        assert [0, 1, 2, 3, 5, 6, 7, 8, 9] == offsets_of(zone.files("orders", 0)[0])
        assert [] == errors_of(zone)
        if not died:
            assert step > 3
            return
    raise AssertionError("it never came to its end")


def test_the_new_file_is_durable_before_it_has_its_name(tmp_path: Path) -> None:
    """Content and metadata, then the name, then the folder."""
    zone = LandingZone(tmp_path / "landing", kind="jsonl")
    [path] = zone.land("orders", 0, 0, 10)
    files = RecordingFileSystem()

    remove(files, listed(zone), identities(4))

    steps = [operation for operation, name in files.calls if operation not in ("create", "write", "unlink")]
    assert ["sync", "link", "sync_folder", "sync", "replace", "sync_folder"] == steps
    assert ("replace", path.name) in files.calls


def test_a_claim_meanwhile_changes_nothing_and_the_erasure_is_tried_again(tmp_path: Path) -> None:
    """A daemon that claims the partition removes hidden files before it looks where the chain ends."""
    zone = LandingZone(tmp_path / "landing", kind="jsonl")
    zone.land("orders", 0, 0, 10)
    folder, left = zone.chain("orders", 0), [2]

    def claim(operation: str, name: str) -> None:
        if operation == "replace" and left[0]:
            left[0] -= 1
            remove_hidden(OsFileSystem(), folder)

    assert Removal(rows=1, files=1) == remove(RecordingFileSystem(claim), listed(zone), identities(4))
    left[0] = 3
    with pytest.raises(LandedBusy, match="nothing of it was changed"):
        remove(RecordingFileSystem(claim), listed(zone), identities(5))
    assert [0, 1, 2, 3, 5, 6, 7, 8, 9] == offsets_of(zone.files("orders", 0)[0])
    assert [] == errors_of(zone)


def test_metadata_beside_lines_do_not_pile_up(tmp_path: Path) -> None:
    """That of the file that is there, and of the one before it."""
    zone = LandingZone(tmp_path / "landing", kind="jsonl")
    zone.land("orders", 0, 0, 10)

    for offset in range(5):
        remove(OsFileSystem(), listed(zone), identities(offset))

    assert 2 == len(list((zone.chain("orders", 0) / META_FOLDER).iterdir()))
    assert [*range(5, 10)] == offsets_of(zone.files("orders", 0)[0])


def test_more_gaps_than_a_file_lists_are_summed_up(tmp_path: Path) -> None:
    """Their number still adds up."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 3000, gaps=[Gap(offset, offset + 1, GapReason.COMPACTION) for offset in range(0, 900, 3)])

    remove(OsFileSystem(), listed(zone), identities(*range(1, 3000, 3)))

    assert [] == errors_of(zone)
    [one] = listed(zone)
    [summed] = [gap for gap in one.metadata.gaps if gap.reason is GapReason.ERASED]
    assert (1, 2999, 1000) == (summed.start, summed.end, summed.offsets)


def test_a_file_that_retention_has_removed_meanwhile_is_no_damage(tmp_path: Path) -> None:
    """A predicate would be refused for it, and by a key it would be a finding."""
    zone = LandingZone(tmp_path / "landing")
    first, _ = zone.land("orders", 0, 0, 20, files=2)
    landing = scan_landing([zone.path])
    last = replace(landing.chains[0].files[1], metadata=read_all(landing).chains[0].files[1].metadata)
    [chain] = landing.chains
    first.unlink()

    found, damage = list_files(replace(landing, chains=(replace(chain, files=(chain.files[0], last)),)))

    assert [one.content.path for one in found] == [last.path]
    assert damage == []


def test_erased_offsets_count_as_held() -> None:
    """Bronze takes them for done, so that no other chain's copy of such a record is landed."""
    metadata = FileMetadata(
        writer="w",
        group="g",
        cluster="c",
        topic="orders",
        partition=PartitionKey(0),
        incarnation=Incarnation(7),
        chain=1,
        position=0,
        next_offset=10,
        count=0,
        first_offset=None,
        last_offset=None,
        min_timestamp=None,
        max_timestamp=None,
        gaps=(
            LandedGap(start=0, end=6, reason=GapReason.ERASED, offsets=6),
            LandedGap(start=6, end=10, reason=GapReason.COMPACTION, offsets=4),
        ),
    )
    assert RangeSet.of([(0, 6)]) == Holding.of(metadata).certain


def test_an_offset_of_several_records_is_a_gap_once_all_are_erased() -> None:
    """Records of 0.7 share the offset of the set that they were in, across batches of rows as well."""
    account = _FileTally()
    rows = [(0, 50, 0), (0, 50, 1), (50, 90, 0), (50, 90, 1), (90, 99, 0)]
    batches = [
        (rows[:1], [True]),
        (rows[1:3], [False, True]),
        (rows[3:], [True, False]),
    ]
    for part, erased in batches:
        columns = {name: [row[place] for row in part] for place, name in enumerate(("offset", "next_offset", "index"))}
        batch = pa.RecordBatch.from_pydict({**columns, "timestamp": pa.array([None] * len(part), pa.timestamp("ms"))})
        account.add(batch, np.array(erased))

    assert [(50, 90)] == account.spans()
    assert (3, 2, 0, 90) == (
        account.erased,
        account.left.count,
        account.left.first_offset,
        account.left.last_offset,
    )
