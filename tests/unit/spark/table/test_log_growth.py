# SPDX-License-Identifier: Apache-2.0
"""A log's size and the cost of opening a table do not grow with commits.

Commits are those of a stream: one small file each, and a compaction now and then.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from consumerd.spark.table import log as table_log
from consumerd.spark.table import log_files
from consumerd.spark.table.actions import encode_commit
from consumerd.spark.table.attempts import StagedCommit
from consumerd.spark.table.commit import LOG_FOLDER, DataFile, Operation, TableCommit, checkpoint_name, commit_name
from consumerd.spark.table.errors import VersionVacuumed
from consumerd.spark.table.log import MAX_COMMITS
from consumerd.spark.table.transaction import Table, create_table, open_table
from tests.support.faulty_files import MemoryFileSystem
from tests.support.tables import SCHEMA, NoLock

PATH = Path("/table")
LOG = PATH / LOG_FOLDER
LIVE = 20
"""Files that the table has at any time, at most."""
SOURCE = "stream:6bd1c2f0-2d2c-4b43-93b2-5a3c9ac7f6cb"


class CountingFileSystem(MemoryFileSystem):
    """A file system in memory. ``reads`` has the names of files that were read."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.reads: list[str] = []

    def read(self, path: Path) -> bytes:
        """See FileSystem."""
        data = super().read(path)
        self.reads.append(path.name)
        return data


def make_table(files: MemoryFileSystem) -> Table:
    """Return the table of a file system, made if there is none."""
    return create_table(PATH, name="rows", schema=SCHEMA, partition_by=("topic", "day"), files=files, make_lock=NoLock)


def open_again(files: MemoryFileSystem) -> Table:
    """Open the table of a file system as a new process does."""
    return open_table(PATH, files=files, make_lock=NoLock)


def put(files: MemoryFileSystem, name: str, data: bytes) -> None:
    """Write a file of the log, in place of one that is there."""
    files.unlink(LOG / name)
    descriptor = files.create(LOG / name)
    files.write(descriptor, data)
    files.close(descriptor)


def make_commit(version: int) -> TableCommit:
    """Return the commit of a batch; each 20th compacts those before it."""
    name = f"topic=orders/day=2026-11-22/{version:020d}.parquet"
    file = DataFile(path=name, size=1000, rows=10, values=("orders", "2026-11-22"))
    first = version - version % LIVE or LIVE
    old = range(max(1, first - LIVE), first) if version % LIVE == 0 else ()
    return TableCommit(
        version=version,
        plan=f"{SOURCE}:{version}",
        operation=Operation.COMPACT if version % LIVE == 0 else Operation.APPEND,
        job="stream",
        writer=f"{version:020d}-abcdefabcdef",
        time_ms=1000 * version,
        added=(file,),
        removed=tuple(f"topic=orders/day=2026-11-22/{one:020d}.parquet" for one in old),
        progress={SOURCE: version},
    )


def publish(table: Table, version: int) -> None:
    """Publish a version as a transaction does."""
    with StagedCommit(table.log.files, table.path / ".commit") as staged:
        assert table.log.publish(make_commit(version), staged)


def grow(files: MemoryFileSystem, versions: Iterable[int], *, publish_each: int) -> Table:
    """Make versions, and return the table.

    Only multiples of ``publish_each`` are published, because that takes longer than to write a commit's file.
    """
    table = make_table(files)
    for version in versions:
        if version % publish_each == 0:
            publish(table, version)
        else:
            put(files, commit_name(version), encode_commit(make_commit(version), table.record))
    return table


def live_files(version: int) -> set[str]:
    """Return the names of the files that a version has."""
    first = max(1, version - version % LIVE)
    return {f"{one:020d}.parquet" for one in range(first, version + 1)}


def check_version(table: Table, wanted: int | None) -> None:
    """Compare a version, or the newest, with what it was made of."""
    snapshot = table.snapshot(wanted)
    version = table.log.latest() if wanted is None else wanted
    assert live_files(version) == {Path(path).name for path in snapshot.files}
    assert (snapshot.version, snapshot.progress) == (version, {SOURCE: version})


def test_log_that_nobody_vacuums_is_bounded() -> None:
    """A stream commits every second for years, and no job vacuums its table."""
    files = CountingFileSystem()
    newest = MAX_COMMITS + 2249
    table = grow(files, range(1, newest + 1), publish_each=250)

    oldest = table.log.oldest()
    names = files.names(LOG)
    checkpoints = [name for name in names if name.endswith(".checkpoint.parquet")]
    assert oldest == 2000
    assert len(names) <= MAX_COMMITS + 1000 + 250 + len(checkpoints)
    assert len(checkpoints) <= 3 + 11
    assert sum(files.size_and_mtime(LOG / name)[0] for name in names) < 50_000_000

    for version in (oldest, oldest + 1, 3999, 4001, 11_500, newest):
        check_version(table, version)
    with pytest.raises(VersionVacuumed):
        table.snapshot(oldest - 1)
    assert table.snapshot().plans.keys() == {f"{SOURCE}:{one}" for one in range(oldest, newest + 1)}


def test_opening_a_table_reads_few_files_of_a_long_log() -> None:
    """Each job opens its tables several times."""
    files = CountingFileSystem()
    table = grow(files, range(1, 2050), publish_each=50)
    table.log.expire(1000 * 1500)
    files.reads.clear()

    opened = open_again(files)
    assert files.reads == [checkpoint_name(2000)]
    check_version(opened, None)
    assert sorted(files.reads) == [checkpoint_name(2000)] + [commit_name(one) for one in range(2001, 2050)]


def test_expiry_finds_its_border_in_few_checkpoints() -> None:
    """Each checkpoint has all files of the table: reading all of them took minutes."""
    files = CountingFileSystem()
    table = grow(files, range(1, 3001), publish_each=10_000)
    for version in range(50, 3001, 50):
        table.log.publish_checkpoint(version)
    files.reads.clear()
    gone = table.log.expire(1000 * 777, dry_run=True)
    assert len(files.reads) <= 7

    assert gone == table.log.expire(1000 * 777)
    assert table.log.oldest() == 750
    for version in (750, 751, 999, 1049, 2051, 3000):
        check_version(table, version)
    assert table.log.expire(1000 * 777) == 0
    assert sorted(name for name in files.names(LOG) if name.endswith(".checkpoint.parquet")) == [
        checkpoint_name(one) for one in (750, 800, 1000, 2000, 2900, 2950, 3000)
    ]


def test_small_commits_onto_a_table_of_many_files_cost_little_disk() -> None:
    """Each checkpoint has all files of the table. Once there was one for every 50 commits, for ever."""
    many, last = 2000, 1500
    files = CountingFileSystem()
    table = make_table(files)
    [file] = make_commit(1).added
    base = tuple(replace(file, path=f"topic=orders/day=2026-11-21/{one:020d}.parquet") for one in range(many))
    put(files, commit_name(1), encode_commit(replace(make_commit(1), added=base), table.record))
    for version in range(2, last + 1):
        small = replace(make_commit(version), operation=Operation.APPEND, removed=())
        if version % 250 == 0:
            with StagedCommit(table.log.files, table.path / ".commit") as staged:
                assert table.log.publish(small, staged)
        else:
            put(files, commit_name(version), encode_commit(small, table.record))
    checkpoints = sorted(name for name in files.names(LOG) if name.endswith(".checkpoint.parquet"))
    files.reads.clear()
    snapshot = open_again(files).snapshot()

    assert checkpoints == [checkpoint_name(one) for one in (250, 1000, 1250, 1500)]
    assert sum(files.size_and_mtime(LOG / name)[0] for name in checkpoints) < 100 * len(checkpoints) * len(
        snapshot.files
    )
    assert len(snapshot.files) == many + last - 1
    assert {commit_name(one) for one in range(1, last + 1)}.isdisjoint(files.reads)


@pytest.mark.parametrize("place", ["footer", "pages"])
def test_log_never_begins_with_a_damaged_checkpoint(place: str) -> None:
    """It would be the only one by which the versions after it can be read."""
    files = CountingFileSystem()
    table = grow(files, range(1, 201), publish_each=10_000)
    for version in (50, 100, 150, 200):
        table.log.publish_checkpoint(version)
    data = files.read(LOG / checkpoint_name(150))
    put(files, checkpoint_name(150), data[:4] if place == "footer" else data[:4] + b"\xff" * 200 + data[204:])

    table.log.expire(1000 * 180)
    assert table.log.oldest() == 100
    for version in (100, 149, 150, 199, 200):
        check_version(table, version)


def test_commit_removes_a_limited_part_of_a_log_that_was_never_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit into a table of a million commits must not take minutes."""
    monkeypatch.setattr(table_log, "MAX_COMMITS", 100)
    monkeypatch.setattr(table_log, "_MAX_EXPIRED_BY_COMMIT", 400)
    monkeypatch.setattr(log_files, "KEEP_ONE_IN", 200)
    files = CountingFileSystem()
    table = grow(files, range(1, 1200), publish_each=10_000)
    for version in range(50, 1200, 50):
        table.log.publish_checkpoint(version)
    lengths = []
    for version in range(1200, 1450):
        before = set(files.names(LOG))
        publish(table, version)
        assert len(before - set(files.names(LOG))) <= 450
        if version % 50 == 0:
            lengths.append(version - table.log.oldest())
            check_version(table, table.log.oldest())
            check_version(table, None)
    assert lengths == [800, 450, 100, 100, 100]


def test_reader_that_is_overtaken_by_expiry_reads_again() -> None:
    """A stream's table expires beside its readers, who ask for nothing that is gone."""

    class Overtaken(CountingFileSystem):
        overtake = False

        def read(self, path: Path) -> bytes:
            """Let others commit and expire before the first checkpoint is read."""
            if self.overtake:
                self.overtake = False
                grow(self, range(60, 201), publish_each=50).log.expire(2**40)
            return super().read(path)

    files = Overtaken()
    reader = grow(files, range(1, 60), publish_each=50)
    files.overtake = True
    assert reader.snapshot().version == 200
    check_version(reader, 200)
    with pytest.raises(VersionVacuumed):
        reader.snapshot(59)


@pytest.mark.parametrize("more", [0, 1, 120])
def test_table_that_is_committed_to_while_it_is_opened_is_read_at_its_newest(more: int) -> None:
    """The listing of the log is used once more, if nothing has been committed since."""
    files = CountingFileSystem()
    grow(files, range(1, 160), publish_each=50).log.expire(1000 * 101)
    opened = open_again(files)
    grow(files, range(160, 160 + more), publish_each=50).log.expire(1000 * 201)

    check_version(opened, None)
    assert opened.snapshot().version == 159 + more
    grow(files, [160 + more], publish_each=50)
    assert opened.snapshot().version == 160 + more


def test_checkpoints_of_other_writers_stay_until_they_expire() -> None:
    """Delta's own readers may have been told of them in ``_last_checkpoint``."""
    files = CountingFileSystem()
    table = grow(files, range(1, 300), publish_each=10_000)
    for version in range(50, 300, 50):
        table.log.publish_checkpoint(version)
    put(files, checkpoint_name(110), b"PAR1")
    table.log.expire(0)
    assert checkpoint_name(110) in files.names(LOG)
    check_version(table, 120)
    table.log.expire(2**40)
    assert checkpoint_name(110) not in files.names(LOG)


def test_clock_that_went_back_keeps_commits_for_longer() -> None:
    """A binary search over times needs them in order, and checkpoints have them so."""
    files = CountingFileSystem()
    table = make_table(files)
    for version in range(1, 201):
        commit = replace(make_commit(version), time_ms=900_000 if version == 1 else version)
        put(files, commit_name(version), encode_commit(commit, table.record))
    for version in (50, 100, 150, 200):
        table.log.publish_checkpoint(version)
    assert table.log.expire(800_000) == 0
    table.log.expire(900_001)
    assert table.log.oldest() == 200
