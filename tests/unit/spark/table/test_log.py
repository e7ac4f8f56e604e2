# SPDX-License-Identifier: Apache-2.0
"""The log is the table: versions are taken once, snapshots are what they amount to, and damage is named."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from consumerd.landing.coverage import Coverage
from consumerd.landing.filesystem import OsFileSystem
from consumerd.landing.ranges import RangeSet
from consumerd.landing.record_fields import MalformedRecord
from consumerd.landing.values import ChainRef, LogId
from consumerd.model import Incarnation, PartitionKey
from consumerd.spark.table import log as table_log
from consumerd.spark.table.actions import encode_commit, parse_commit
from consumerd.spark.table.attempts import StagedCommit
from consumerd.spark.table.checkpoint import encode_checkpoint, parse_checkpoint
from consumerd.spark.table.commit import LOG_FOLDER, Bounds, DataFile, Operation, TableCommit, TableRecord, commit_name
from consumerd.spark.table.errors import TableError, VersionVacuumed
from consumerd.spark.table.log import TableLog
from consumerd.spark.table.snapshot import EMPTY
from consumerd.spark.table.transaction import create_table, find_table, local_path, open_table
from tests.support.faulty_files import RecordingFileSystem
from tests.support.tables import SCHEMA, make_table

TABLE = TableRecord(id="1", name="rows", schema=SCHEMA, partition_by=("topic", "day"), created_ms=17)
WIDER = json.dumps(
    {**json.loads(SCHEMA), "fields": [{"name": "more", "type": "timestamp_ntz"}, *json.loads(SCHEMA)["fields"]]}
)
"""The columns after a commit has added one."""
LOG = LogId("orders", PartitionKey(3), Incarnation(7, 1))


def make_file(name: str, rows: int = 10) -> DataFile:
    bounds = {"offset": Bounds(low=0, high=rows), "value": Bounds(low="a", high="z")}
    return DataFile(path=name, size=100, rows=rows, values=("orders", "2026-11-22"), bounds=bounds)


def make_commit(version: int, **fields: object) -> TableCommit:
    commit = TableCommit(
        version=version, plan=f"plan-{version}", operation=Operation.APPEND, job="test", writer=f"w{version}", time_ms=5
    )
    return replace(commit, **fields)  # type: ignore[arg-type]  # of the fields' own types


def covering(start: int, end: int) -> Coverage:
    ranges = RangeSet.of([(start, end)])
    return Coverage(covered={LOG: ranges}, taken={ChainRef("root:topic=orders/partition=3/chain=1"): ranges})


def publish(log: TableLog, commit: TableCommit) -> bool:
    """Publish a commit as a transaction does."""
    with StagedCommit(log.files, log.path / f".{uuid.uuid4().hex}.tmp") as staged:
        return log.publish(commit, staged)


def test_commit_reads_as_it_was_written() -> None:
    """What a job says of its work is all that the next one knows of it."""
    commit = make_commit(
        1,
        added=(make_file("a.parquet"),),
        removed=("b.parquet",),
        covered=covering(5, 9),
        progress={"bronze": 17},
        counts={"read": 10, "quarantined": 0},
        schema=WIDER,
    )

    assert commit == parse_commit(encode_commit(commit, TABLE), 1, TABLE.partition_by)
    assert commit.rows == 10


def test_snapshot_reads_as_it_was_written() -> None:
    """Checkpoints stand for all commits before them."""
    commits = [
        make_commit(1, added=(make_file("a"), make_file("b")), covered=covering(0, 9), progress={"x": 1, "y": 1}),
        make_commit(2, removed=("a",), added=(make_file("c"),), operation=Operation.COMPACT, schema=WIDER),
        make_commit(3, removed=("b",), operation=Operation.REPLACE, covered=covering(9, 12), progress={"x": 2}),
    ]
    snapshot = EMPTY.apply(commits)

    assert (snapshot, replace(TABLE, schema=WIDER)) == parse_checkpoint(encode_checkpoint(snapshot, TABLE), 3)
    assert list(snapshot.files) == ["c"]
    assert snapshot.covered == covering(0, 12)
    assert (snapshot.progress, snapshot.last_replace) == ({"x": 2, "y": 1}, 3)
    assert snapshot.plans == {"plan-1": 1, "plan-2": 2, "plan-3": 3}
    assert snapshot.schema == WIDER
    assert (snapshot.removed, snapshot.time_ms) == ({"a": 5, "b": 5}, 5)


def test_a_file_that_comes_back_under_its_name_is_not_vacuums() -> None:
    """Other writers of Delta tables restore a version so."""
    there, gone = make_commit(1, added=(make_file("a"),)), make_commit(2, removed=("a",))
    back = make_commit(3, added=(make_file("a"),))

    assert EMPTY.apply([there, gone]).removed == {"a": 5}
    assert EMPTY.apply([there, gone, back]).removed == {}


@pytest.mark.parametrize(
    "commit",
    [make_commit(2), make_commit(1, removed=("never there",))],
)
def test_commits_that_do_not_fit_are_no_snapshot(commit: TableCommit) -> None:
    """A log with a hole would be read as a table that lacks rows."""
    with pytest.raises(MalformedRecord):
        EMPTY.apply([commit])


def test_version_is_given_once_though_many_want_it(tmp_path: Path) -> None:
    """Two jobs of one version would each believe that their rows are in the table."""
    log = make_table(tmp_path / "table").log
    barrier = threading.Barrier(8)
    won: list[int] = []

    def race(number: int) -> None:
        barrier.wait()
        if publish(log, make_commit(1, writer=f"w{number}")):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
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
        assert publish(log, commit)
    checkpoints = sorted((tmp_path / "table" / LOG_FOLDER).glob("*.checkpoint.parquet"))
    expected = [EMPTY.apply(commits[:number]) for number in range(11)]

    assert len(checkpoints) == 2
    assert expected == [log.snapshot(number) for number in range(11)]
    for number in range(1, every):  # what a checkpoint folds is not read again
        (tmp_path / "table" / LOG_FOLDER / commit_name(number)).rename(tmp_path / f"{number}.away")
    plans = {plan: version for plan, version in expected[10].plans.items() if version >= every}
    assert log.snapshot() == replace(expected[10], plans=plans)
    for number in range(1, every):
        (tmp_path / f"{number}.away").rename(tmp_path / "table" / LOG_FOLDER / commit_name(number))
    for path in checkpoints:
        path.write_bytes(b"{")
    assert log.snapshot() == expected[10]


def test_damaged_commit_is_named(tmp_path: Path) -> None:
    """Somebody has to restore that very file."""
    log = make_table(tmp_path / "table").log
    publish(log, make_commit(1))
    path = tmp_path / "table" / LOG_FOLDER / commit_name(1)
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(TableError, match=rf"{path} is damaged"):
        log.snapshot()


def test_commit_under_another_number_is_refused(tmp_path: Path) -> None:
    """A log restored by hand would otherwise count the same rows twice."""
    log = make_table(tmp_path / "table").log
    publish(log, make_commit(1, added=(make_file("a"),)))
    folder = tmp_path / "table" / LOG_FOLDER
    (folder / commit_name(2)).write_bytes((folder / commit_name(1)).read_bytes())

    with pytest.raises(TableError, match="says that it is version 1; was it copied here"):
        log.read(2)


def test_version_that_is_not_there_is_said_with_the_newest(tmp_path: Path) -> None:
    """A job that asks for yesterday's version may have the wrong table."""
    log = make_table(tmp_path / "table").log
    publish(log, make_commit(1))

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


def test_folders_that_a_table_brings_are_durable_before_it_is(tmp_path: Path) -> None:
    """A power cut that took a folder above the table would take all that was ever committed."""
    files = RecordingFileSystem()
    create_table(tmp_path / "lake" / "deep" / "table", name="rows", schema=SCHEMA, partition_by=("day",), files=files)

    synced = [name for operation, name in files.calls if operation == "sync_folder"]
    published = [operation for operation, _ in files.calls].index("link")
    assert {"deep", "lake", tmp_path.name} <= {name for _, name in files.calls[:published]}
    assert synced[:4] == ["table", "deep", "lake", tmp_path.name]


def test_place_that_cannot_link_is_refused() -> None:
    """An object store has no link, and a table there would be torn by the first two jobs."""
    with pytest.raises(TableError, match="give a local path"):
        local_path("s3a://bucket/bronze")
    assert local_path("file:///data/bronze") == local_path("file:/data/bronze") == Path("/data/bronze")


def test_log_of_a_path_without_table_is_empty(tmp_path: Path) -> None:
    """Nothing was ever committed there."""
    assert TableLog(tmp_path).latest() == 0


def test_log_ends_below_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit every ten minutes for years: what nobody asks for any more is gone, and all that counts is there."""
    log = make_table(tmp_path / "table").log
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 5)
    commits = [
        make_commit(n, added=(make_file(f"f{n}"),), time_ms=1000 * n, covered=covering(n, n + 1), progress={"x": n})
        for n in range(1, 24)
    ]
    for commit in commits:
        assert publish(log, commit)
    whole = log.snapshot()
    assert log.expire(4000) == 0
    assert log.oldest() == 0
    assert log.expire(17_000) == 15 + 2

    assert (log.oldest(), log.latest()) == (15, 23)
    assert log.snapshot() == replace(whole, plans={f"plan-{n}": n for n in range(15, 24)})
    assert [commit.version for commit in log.read_after(14)] == [*range(15, 24)]
    for version in (3, 14):
        with pytest.raises(VersionVacuumed):
            log.snapshot(version)
    with pytest.raises(VersionVacuumed, match="what version 3 did has expired; the log begins with version 15"):
        next(log.read_after(2))
    again = open_table(tmp_path / "table")
    assert again.record == make_table(tmp_path / "table").record
    assert publish(again.log, make_commit(24))
    assert again.log.expire(0) == 0


def test_log_is_bounded_however_often_jobs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream commits every second."""
    log = make_table(tmp_path / "table").log
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(table_log, "MAX_COMMITS", 8)
    for n in range(1, 41):
        publish(log, make_commit(n))
        log.expire(0)

    assert (log.oldest(), log.latest()) == (30, 40)


def test_a_process_that_dies_while_a_log_expires_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits go from the first one on, so that none is missing between others."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 5)

    class Dying(OsFileSystem):
        left = 3

        def unlink(self, path: Path) -> None:
            if path.suffix == ".json":
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
            super().unlink(path)

    path = tmp_path / "table"
    make_table(path)
    log = open_table(path, files=Dying()).log
    for n in range(1, 12):
        publish(log, make_commit(n, added=(make_file(f"f{n}"),)))
    with pytest.raises(KeyboardInterrupt):
        log.expire(2**40)

    left = open_table(path).log
    assert left.oldest() == 3
    assert list(left.snapshot().files) == [f"f{n}" for n in range(1, 12)]
    assert left.expire(2**40) > 0
    assert left.oldest() == 10


def test_commits_that_a_power_cut_has_left_below_a_missing_one_have_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are removed from a disk in no certain order."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 5)
    log = make_table(tmp_path / "table").log
    for n in range(1, 8):
        publish(log, make_commit(n, added=(make_file(f"f{n}"),)))
    (tmp_path / "table" / LOG_FOLDER / commit_name(3)).unlink()

    assert log.oldest() == 4
    assert log.snapshot().plans.keys() == {f"plan-{n}" for n in range(4, 8)}
    with pytest.raises(VersionVacuumed, match="the log begins with version 4"):
        log.read(3)


def test_files_that_are_gone_are_forgotten_by_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the checkpoints of a table that is replaced each hour would only grow."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 3)
    log = make_table(tmp_path / "table").log
    for name in ("there", "gone"):
        (tmp_path / "table" / name).touch()
        publish(log, make_commit(log.latest() + 1, added=(make_file(name),)))
    (tmp_path / "table" / "gone").unlink()
    publish(log, make_commit(3, removed=("there", "gone"), operation=Operation.REPLACE))

    assert log.snapshot().removed == {"there": 5}
