"""The log is the table: versions are taken once, snapshots are what they amount to, and damage is named."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from consumerd.model import Incarnation, PartitionKey
from consumerd.sinks.record_fields import MalformedRecord
from consumerd.spark.landing.coverage import Coverage
from consumerd.spark.landing.ranges import RangeSet
from consumerd.spark.landing.values import ChainRef, LogId
from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import Bounds, Commit, DataFile, Operation, TableRecord, commit_name
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.log import TableLog
from consumerd.spark.table.snapshot import EMPTY, Snapshot
from consumerd.spark.table.transaction import create_table, find_table, local_path, open_table
from tests.support.faulty_files import RecordingFileSystem
from tests.support.tables import SCHEMA, make_table

LOG = LogId("orders", PartitionKey(3), Incarnation(7, 1))


def make_file(name: str, rows: int = 10) -> DataFile:
    bounds = {"offset": Bounds(low=0, high=rows), "value": Bounds(low="a", high="z")}
    return DataFile(path=name, size=100, rows=rows, values=("orders", "2026-11-22"), bounds=bounds)


def make_commit(version: int, **fields: object) -> Commit:
    commit = Commit(
        version=version, plan=f"plan-{version}", operation=Operation.APPEND, job="test", writer=f"w{version}", time_ms=5
    )
    return dataclasses.replace(commit, **fields)  # type: ignore[arg-type]  # of the fields' own types


def covering(start: int, end: int) -> Coverage:
    ranges = RangeSet.of([(start, end)])
    return Coverage(covered={LOG: ranges}, taken={ChainRef("root:topic=orders/partition=3/chain=1"): ranges})


def test_commit_reads_as_it_was_written() -> None:
    """What a job says of its work is all that the next one knows of it."""
    commit = make_commit(
        1,
        added=(make_file("a.parquet"),),
        removed=("b.parquet",),
        covered=covering(5, 9),
        progress={"bronze": 17},
        counts={"read": 10, "quarantined": 0},
        schema=SCHEMA,
    )

    assert commit == Commit.parse(commit.encode())
    assert commit.rows == 10


def test_snapshot_reads_as_it_was_written() -> None:
    """Checkpoints stand for all commits before them."""
    commits = [
        make_commit(1, added=(make_file("a"), make_file("b")), covered=covering(0, 9), progress={"x": 1, "y": 1}),
        make_commit(2, removed=("a",), added=(make_file("c"),), operation=Operation.COMPACT, schema=SCHEMA),
        make_commit(3, removed=("b",), operation=Operation.REPLACE, covered=covering(9, 12), progress={"x": 2}),
    ]
    snapshot = EMPTY.apply(commits)

    assert snapshot == Snapshot.parse(snapshot.encode())
    assert list(snapshot.files) == ["c"]
    assert snapshot.covered == covering(0, 12)
    assert (snapshot.progress, snapshot.last_replace) == ({"x": 2, "y": 1}, 3)
    assert snapshot.plans == {"plan-1": 1, "plan-2": 2, "plan-3": 3}
    assert snapshot.schema == SCHEMA


@pytest.mark.parametrize(
    "commit",
    [make_commit(2), make_commit(1, removed=("never there",))],
)
def test_commits_that_do_not_fit_are_no_snapshot(commit: Commit) -> None:
    """A log with a hole would be read as a table that lacks rows."""
    with pytest.raises(MalformedRecord):
        EMPTY.apply([commit])


def test_version_is_given_once_though_many_want_it(tmp_path: Path) -> None:
    """Two jobs of one version would each believe that their rows are in the table."""
    log = make_table(tmp_path / "table").log
    barrier = threading.Barrier(8)
    won: list[int] = []

    def publish(number: int) -> None:
        barrier.wait()
        if log.publish(make_commit(1, writer=f"w{number}")):
            won.append(number)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1
    assert log.read(1).writer == f"w{won[0]}"


def test_snapshot_is_the_same_with_checkpoints_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint saves reading, and a damaged one costs no more than that."""
    log = make_table(tmp_path / "table").log
    every = 4
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", every)
    commits = [make_commit(number, added=(make_file(f"f{number}"),)) for number in range(1, 11)]
    for commit in commits:
        assert log.publish(commit)
    checkpoints = sorted((tmp_path / "table" / "_log").glob("*.checkpoint.json"))
    expected = [EMPTY.apply(commits[:number]) for number in range(11)]

    assert len(checkpoints) == 2
    assert expected == [log.snapshot(number) for number in range(11)]
    for number in range(1, every):  # what a checkpoint folds is not read again
        (tmp_path / "table" / "_log" / commit_name(number)).rename(tmp_path / f"{number}.away")
    assert log.snapshot() == expected[10]
    for number in range(1, every):
        (tmp_path / f"{number}.away").rename(tmp_path / "table" / "_log" / commit_name(number))
    for path in checkpoints:
        path.write_bytes(b"{")
    assert log.snapshot() == expected[10]


def test_damaged_commit_is_named(tmp_path: Path) -> None:
    """Somebody has to restore that very file."""
    log = make_table(tmp_path / "table").log
    log.publish(make_commit(1))
    path = tmp_path / "table" / "_log" / commit_name(1)
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(TableError, match=rf"{path} is damaged"):
        log.snapshot()


def test_commit_under_another_number_is_refused(tmp_path: Path) -> None:
    """A log restored by hand would otherwise count the same rows twice."""
    log = make_table(tmp_path / "table").log
    log.publish(make_commit(1, added=(make_file("a"),)))
    folder = tmp_path / "table" / "_log"
    (folder / commit_name(2)).write_bytes((folder / commit_name(1)).read_bytes())

    with pytest.raises(TableError, match="says that it is version 1; was it copied here"):
        log.read(2)


def test_version_that_is_not_there_is_said_with_the_newest(tmp_path: Path) -> None:
    """A job that asks for yesterday's version may have the wrong table."""
    log = make_table(tmp_path / "table").log
    log.publish(make_commit(1))

    with pytest.raises(TableError, match="no version 2; the newest is 1"):
        log.snapshot(2)


def test_table_is_made_once_and_stays_what_it_is(tmp_path: Path) -> None:
    """A job with another idea of the path would mix two tables."""
    path = tmp_path / "deep" / "table"
    assert find_table(path) is None
    made = make_table(path)

    assert made.record == make_table(path).record == open_table(path.as_uri()).record
    with pytest.raises(TableError, match="give it a path of its own"):
        create_table(path, name="other", schema=SCHEMA, partition_by=("topic", "day"))
    with pytest.raises(TableError, match="there is no table"):
        open_table(tmp_path)
    assert TableRecord.parse(made.record.encode()) == made.record


def test_folders_that_a_table_brings_are_durable_before_it_is(tmp_path: Path) -> None:
    """A power cut that took a folder above the table would take all that was ever committed."""
    files = RecordingFileSystem()
    create_table(tmp_path / "lake" / "deep" / "table", name="rows", schema=SCHEMA, partition_by=("day",), files=files)

    synced = [name for operation, name in files.calls if operation == "sync_folder"]
    published = [operation for operation, _ in files.calls].index("link")
    assert {"deep", "lake", tmp_path.name} <= {name for _, name in files.calls[:published]}
    assert synced[:3] == ["deep", "lake", tmp_path.name]


def test_place_that_cannot_link_is_refused() -> None:
    """An object store has no link, and a table there would be torn by the first two jobs."""
    with pytest.raises(TableError, match="give a local path"):
        local_path("s3a://bucket/bronze")
    assert local_path("file:///data/bronze") == local_path("file:/data/bronze") == Path("/data/bronze")


def test_log_of_a_path_without_table_is_empty(tmp_path: Path) -> None:
    """Nothing was ever committed there."""
    assert TableLog(tmp_path).latest() == 0
