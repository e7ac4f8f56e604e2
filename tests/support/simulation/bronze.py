# SPDX-License-Identifier: Apache-2.0
"""The bronze job beside a simulated group, without Spark, and the judge of its table.

Owns a copy of the published files in a real folder, the bronze table beside it, and the jobs that fill it. The job is
the real one (scan, footers, plan, parts, copied rows, transactions), but for Spark, which would only run the copy in tasks.
A job runs at one moment of virtual time. What other processes do meanwhile happens while it copies the rows of a part:
files land, another job runs to its end, or the job dies. It may also die before any change of the table's folder.

What must be true after each job, whether it has ended or died:

- each row's identity (topic, incarnation with truncation, partition, offset, index) is there once;
- each row is the record that the log once had there: time, key and value; a landed file has it under that identity;
- rows never go away, and a job that has ended has brought each record of the files that it could read;
- within one incarnation rows are of one history of the log: none was lost before a later one was written;
- records that took one offset after each other have truncation numbers in the same order;
- files of another cluster are refused, and change nothing.

A record that a log has lost need not be in the table if it was never landed. If it was, it stays, under its own number.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from consumerd.errors import ConfigError
from consumerd.landing.chain import ROOT_RECORD
from consumerd.landing.plan import LandingPlan
from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.spark.bronze import take_over
from consumerd.spark.bronze_rows import FOLDERS, FilePiece
from consumerd.spark.bronze_table import BOUNDS, JOB, SCHEMA, BronzeTable
from consumerd.spark.bronze_tasks import FilesDamaged, copy_pieces, plan_tasks
from consumerd.spark.job import Sessions, Silent
from consumerd.spark.table.commit import DataFile
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.folder_values import unescape_value
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.transaction import Transaction, create_table, find_table
from consumerd.wire.records import Record
from consumerd.zk.layout import topic_path
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.faulty_files import PowerCut, RecordingFileSystem
from tests.support.landing_zone import LandingZone
from tests.support.record_batches import record
from tests.support.simulation.brokers import make_key, make_value, parse_mark
from tests.support.simulation.disk import ROOT, SharedDisk
from tests.support.simulation.judge import Identity, Judge

Row = tuple[int, bytes | None, bytes | None]
"""A row's time in ms, key and value."""

_SETTINGS = FileSettings(bounds=BOUNDS)


class TableFiles(RecordingFileSystem):
    """The file system of one job, which can die or fail. Syncs cost nothing.

    Args:
        left: number of changes before the job dies, or before one change fails; None for neither.
        fails: True if that change fails instead.
    """

    def __init__(self, left: int | None = None, *, fails: bool = False) -> None:
        super().__init__(self._count)
        self._left = left
        self._fails = fails
        self._dead = False

    def die(self) -> None:
        """End the job as SIGKILL does."""
        self._dead = True
        raise PowerCut

    def _count(self, operation: str, name: str) -> None:
        if self._dead:
            raise PowerCut
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            self._left = None
            if self._fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
            self.die()

    def sync(self, descriptor: int) -> None:
        """See FileSystem."""
        self._note("sync", str(descriptor))

    def sync_path(self, path: Path) -> None:
        """See FileSystem."""
        self._note("sync_path", path.name)

    def sync_folder(self, path: Path) -> None:
        """See FileSystem."""
        self._note("sync_folder", path.name)


@dataclass(slots=True)
class _Disturbance:
    """Something that happens once while a job copies rows: after ``parts`` parts were committed."""

    parts: int
    act: Callable[[TableFiles], None]

    def reach(self, files: TableFiles) -> None:
        """Note that a part's rows were copied."""
        self.parts -= 1
        if self.parts == -1:
            self.act(files)


class BronzeJobs:
    """The jobs of one story.

    Args:
        folder: an empty folder.
        stranger: a landing root of another cluster.
    """

    def __init__(self, folder: Path, stranger: Path, chance: random.Random, judge: Judge, disk: SharedDisk) -> None:
        self.judge = judge
        self._folder = folder
        self._zone = folder / "zone"
        self._table = folder / "bronze"
        self._chance = chance
        self._disk = disk
        self._links: list[Path] = []
        """Names that were made public, in order; those of records included."""
        self._exported = 0
        self._damaged: dict[Path, bytes] = {}
        """Damaged files in the copy, with what they held."""
        self._marks: dict[Identity, int] = {}
        """The records of the copied files."""
        self._rows: Counter[Identity] = Counter()
        self._stranger = stranger
        self.runs = 0
        self.killed = 0

    def linked(self, path: Path) -> None:
        """Note a name that was made public."""
        self._links.append(path)

    # -- jobs

    def run_disturbed(self) -> None:
        """Run the job on what has landed, perhaps a moment ago, with disturbances."""
        chance = self._chance
        self._export(len(self._links) - chance.choice([0, 0, chance.randint(0, 6)]))
        if not self._roots():
            return
        if chance.random() < 0.3:
            self._restore()
        if chance.random() < 0.5:
            self._damage()
        if chance.random() < 0.2:
            self._offer_stranger()
        happens = None
        if chance.random() < 0.6:
            act = chance.choice([self._land_more, self._run_other, TableFiles.die, TableFiles.die])
            happens = _Disturbance(chance.choice([0, 1, 1, 2, 3]), act)
        left = chance.choice([None, None, chance.randrange(120)])
        files = TableFiles(left, fails=chance.random() < 0.3)
        readable = self._readable()
        ended = self._run(files, happens)
        self._check(readable if ended else ())

    def run_to_the_end(self) -> None:
        """Run the job on everything that has landed, and check that another run changes nothing."""
        self._restore()
        self._export(len(self._links))
        if not self._roots():
            return
        assert self._run(TableFiles(), None), "the last run of bronze has not ended"
        self._check(self.judge.landed)
        version = self._version()
        assert self._run(TableFiles(), None), "the last run of bronze has not ended"
        assert self._version() == version, f"nothing has landed, and bronze went from {version} to {self._version()}"
        self._offer_stranger()
        if self._chance.random() < 0.3:
            self._race_stranger()

    def find_missing(self) -> list[str]:
        """Return records that the logs hold now and the table lacks."""
        there = {(partition, mark, offset) for (partition, _, offset), mark in self._marks.items()}
        missing = []
        for (partition, czxid), log in self.judge.logs.items():
            if not self.judge.is_current((partition, czxid)):
                continue
            begin = max(self.judge.wishes[partition], default=0)  # what is below may be skipped by wish
            consumed = self.judge.consumed[partition, czxid]
            for offset, mark in enumerate(log.marks(begin, log.end), begin):
                if offset not in consumed and (partition, mark, offset) not in there:
                    missing.append(f"{partition}: {offset} of {mark}")
        return missing

    def _run(self, files: TableFiles, happens: _Disturbance | None) -> bool:
        """Run the job once; return False if it died, or failed by an injected error."""
        self.runs += 1
        try:
            target = self._open(self._table, files, happens)
            commit_bytes = self._chance.choice([1, 800, 1500, 3000, 1 << 30])
            take_over(_no_spark, self._roots(), target, progress=Silent(), commit_bytes=commit_bytes)
        except PowerCut:
            self.killed += 1
            self.judge.note("bronze dies")
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.judge.note("bronze fails")
            return False
        self.judge.note("bronze has run")
        return True

    def _open(self, place: Path, files: TableFiles, happens: _Disturbance | None) -> BronzeTable:
        table = create_table(place, name=JOB, schema=SCHEMA.json(), partition_by=FOLDERS, files=files)
        return BronzeTable(table, _SETTINGS, copy=functools.partial(self._copy, files, happens))

    def _copy(
        self,
        files: TableFiles,
        happens: _Disturbance | None,
        spark: Sessions,
        transaction: Transaction,
        plan: LandingPlan,
        settings: FileSettings,
    ) -> list[DataFile]:
        """Copy a part's rows in small tasks, some of which are attempted twice."""
        tabled = list(transaction.base.files.values())
        groups = plan_tasks(plan, tabled, transaction.table.path, cores=1)
        copied: list[DataFile] = []
        damaged: dict[str, str] = {}
        for number, pieces in enumerate(_divide(groups, self._chance.choice([1, 3, 100]))):
            attempts = self._chance.choice([1, 1, 1, 2])
            for attempt in range(attempts):
                prefix = f"{transaction.attempt}-{number:05d}{attempt}"
                task = copy_pieces(pieces, transaction.staging, prefix=prefix, settings=settings, files=files)
            copied += task.files
            damaged |= {error.path: error.reason for error in task.damaged}
        if happens is not None:
            happens.reach(files)
        if damaged:
            raise FilesDamaged(damaged)
        return copied

    def _version(self) -> int:
        table = find_table(self._table)
        return 0 if table is None else table.snapshot().version

    # -- what happens to them

    def _land_more(self, _: TableFiles) -> None:
        self._export(len(self._links))

    def _run_other(self, _: TableFiles) -> None:
        self._run(TableFiles(), None)

    def _damage(self) -> None:
        """Change bytes of a file in the middle, or cut it off."""
        data = [path for path in self._readable() if self.judge.landed[path]]
        counts = Counter(identity for path in data for identity in self.judge.landed[path])
        # of most interest: others have these records as well, and may be done with on the strength of this file
        shared = [
            path for path in data if any(counts[one] > 1 and one not in self._rows for one in self.judge.landed[path])
        ]
        if not data:
            return
        path = self._copy_of(self._chance.choice(shared if shared and self._chance.random() < 0.8 else data))
        content = path.read_bytes()
        if not content:
            return
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        self._damaged[path] = content
        if self._chance.random() < 0.3:
            path.write_bytes(content[: len(content) // 2])
        else:
            begin = min(8, len(content) // 2)
            path.write_bytes(
                content[:begin] + bytes(one ^ 0x55 for one in content[begin : begin + 16]) + content[begin + 16 :]
            )
        os.utime(path, ns=times)
        self.judge.note(f"{path.relative_to(self._zone)} is damaged")

    def _restore(self) -> None:
        for path, content in self._damaged.items():
            times = path.stat().st_atime_ns, path.stat().st_mtime_ns
            path.write_bytes(content)
            os.utime(path, ns=times)
        self._damaged.clear()

    def _offer_stranger(self) -> None:
        """Offer files of another cluster, alone and beside ours: both are refused."""
        version = self._version()
        if not version:
            return
        stranger = self._stranger
        for roots in ([stranger], [*self._roots(), stranger]):
            target = self._open(self._table, TableFiles(), None)
            try:
                take_over(_no_spark, roots, target, progress=Silent())
            except ConfigError as error:
                assert "of cluster" in str(error), f"another cluster's files are refused since {error}"  # noqa: PT017
                continue
            raise AssertionError(f"files of another cluster were taken into bronze: {roots}")
        assert self._version() == version, "files of another cluster were refused, and bronze has changed"

    def _race_stranger(self) -> None:
        """Let another cluster's job be the first to commit to a new table."""
        if not self.judge.landed:
            return
        place = self._folder / "raced"

        def begin_other(_: TableFiles) -> None:
            take_over(_no_spark, [self._stranger], self._open(place, TableFiles(), None), progress=Silent())

        try:
            take_over(
                _no_spark,
                self._roots(),
                self._open(place, TableFiles(), _Disturbance(0, begin_other)),
                progress=Silent(),
            )
        except (ConfigError, TableConflict):
            pass
        else:
            assert not any(self._marks), "two clusters have committed to one table"
        whose = {value is not None and value.startswith(b"stranger") for _, (_, _, value) in self._read(place)}
        assert len(whose) <= 1, "records of two clusters are in one table"

    # -- the copy of the landing zone

    def _roots(self) -> list[Path]:
        return sorted(path.parent for path in self._zone.glob(f"*/{ROOT_RECORD}"))

    def _export(self, count: int) -> None:
        """Copy what was published, up to the ``count``-th name."""
        for path in self._links[self._exported : count]:
            target = self._copy_of(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                content = self._disk.read(path)
            except FileNotFoundError:
                continue  # metadata whose file was never published
            target.write_bytes(content)
            self._marks |= self.judge.landed.get(path, {})
            _, modified_ns = self._disk.size_and_mtime(path)
            os.utime(target, ns=(modified_ns, modified_ns))
        self._exported = max(self._exported, count)

    def _copy_of(self, path: Path) -> Path:
        return self._zone / path.relative_to(ROOT.parent)

    def _readable(self) -> list[Path]:
        """Return the published files of which there is an undamaged copy."""
        return [
            path
            for path in self._links[: self._exported]
            if path in self.judge.landed and self._copy_of(path) not in self._damaged
        ]

    # -- the judge

    def _check(self, taken: Collection[Path]) -> None:
        """Hold the table against the logs.

        Args:
            taken: published files whose records must be there.
        """
        rows = self._read(self._table)
        counts = Counter(identity for identity, _ in rows)
        twice = [identity for identity, count in counts.items() if count > 1]
        assert not twice, f"bronze has {len(twice)} records more than once: {_describe(twice)}"
        landed = self._marks
        unknown = sorted(counts.keys() - landed.keys())
        assert not unknown, f"bronze has records that no file has: {_describe(unknown)}"
        for identity, row in rows:
            self._check_row(identity, row, landed[identity])
        gone = sorted(self._rows.keys() - counts.keys())
        assert not gone, f"bronze has lost {len(gone)} records: {_describe(gone)}"
        missing = sorted({identity for path in taken for identity in self.judge.landed[path]} - counts.keys())
        assert not missing, f"bronze lacks {len(missing)} records that have landed: {_describe(missing)}"
        self._rows = counts
        self._check_histories(landed)

    def _check_row(self, identity: Identity, row: Row, mark: int) -> None:
        partition, incarnation, offset = identity
        czxid, era = parse_mark(row[0])
        log = self.judge.logs.get((partition, czxid))
        assert czxid == incarnation.czxid, f"{_describe([identity])} is a record of another making, {czxid}"
        assert log is not None, f"no log was ever that of {_describe([identity])}"
        assert (offset, era) in log.held, f"no log ever held {_describe([identity])} of {row[0]}"
        expected = (mark, make_key(offset), make_value(partition, offset, mark))
        assert row == expected, f"{_describe([identity])} is {row}, expected {expected}"

    def _check_histories(self, marks: dict[Identity, int]) -> None:
        """Hold the truncation numbers against what the logs have lost."""
        offsets: defaultdict[tuple[TopicPartition, int, int], list[tuple[int, int]]] = defaultdict(list)
        histories: defaultdict[tuple[TopicPartition, Incarnation], list[tuple[int, int]]] = defaultdict(list)
        for identity in sorted(self._rows):
            partition, incarnation, offset = identity
            era = parse_mark(marks[identity])[1]
            offsets[partition, incarnation.czxid, offset].append((era, incarnation.truncation))
            histories[partition, incarnation].append((offset, era))
        for place, found in offsets.items():
            found.sort()
            for (era, number), (later, higher) in itertools.pairwise(found):
                assert number < higher or era == later, (
                    f"{place}: era {era} is truncation {number}, {later} is {higher}"
                )
        for (partition, incarnation), records in histories.items():
            cuts = self.judge.logs[partition, incarnation.czxid].cuts
            for (offset, era), (_, later) in itertools.pairwise(records):
                lost = [cut for cut in cuts[era:later] if offset >= cut]
                what = f"{partition}@{incarnation}: {offset} of era {era}"
                assert era <= later, f"{what} comes before a record of era {later}"
                assert not lost, f"{what} was lost before era {later}"

    def _read(self, place: Path) -> list[tuple[Identity, Row]]:
        table = find_table(place)
        if table is None:
            return []
        rows: list[tuple[Identity, Row]] = []
        for file in table.snapshot().files.values():
            topic = unescape_value(file.values[0])
            assert topic is not None
            found = pq.read_table(table.path / file.path, partitioning=None)
            times = found["timestamp"].cast(pa.int64()).to_pylist()
            columns = [
                found[name].to_pylist() for name in ("incarnation", "partition", "offset", "index", "key", "value")
            ]
            for time, incarnation, partition, offset, index, key, value in zip(times, *columns, strict=True):
                assert index == 0
                place_of = TopicPartition(topic, PartitionKey(partition))
                rows.append(((place_of, Incarnation.parse(incarnation), offset), (time // 1000, key, value)))
        return rows


def _divide(groups: Iterable[tuple[FilePiece, ...]], most: int) -> list[tuple[FilePiece, ...]]:
    return [group[begin : begin + most] for group in groups for begin in range(0, len(group), most)]


def _describe(identities: Collection[Identity]) -> str:
    first = [f"{partition}@{incarnation}:{offset}" for partition, incarnation, offset in list(identities)[:3]]
    return f"{', '.join(first)}{' ...' if len(identities) > 3 else ''}"


def land_stranger(path: Path) -> Path:
    """Land files of another cluster.

    Their log has the name and the incarnation of the first one of each story. For callers without a running loop.
    """
    server = FakeZooKeeper(seed=0)
    server.put(topic_path("t"), b"{}")
    node = server.read(topic_path("t"))
    assert node is not None
    LandingZone(path, cluster="2-2", make=_make_strange).land("t", 0, 0, 40, files=3, czxid=node[1].czxid)
    return path


def _make_strange(partition: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    return record(offset, f"stranger {partition}@{incarnation}:{offset}".encode(), timestamp=incarnation.czxid)


def _no_spark() -> NoReturn:
    raise AssertionError("a simulated job has asked for a Spark session")
