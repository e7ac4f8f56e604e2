# SPDX-License-Identifier: Apache-2.0
"""Readers of the pipeline's tables that read while all jobs, compactions and vacuums run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.delta_readers import Rows, rows_of
from tests.support.lake import TABLES, compact_lake, fill_lake, make_order
from tests.support.landing_zone import LandingZone

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Reader = Callable[[Path, int], "pa.Table"]
"""Reads a table at a version."""

_TURNS: Final = 2
_READ_S: Final = 300.0
"""Time that one read may take, on a machine that does much else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What readers have seen of a lake: for each reader the table, the version and the rows of each read."""

    lake: Path
    reads: Mapping[str, list[tuple[str, int, Rows]]]


class _Watcher(threading.Thread):
    """Reads the newest version of each table, again and again, by one reader."""

    def __init__(self, name: str, reader: Reader, lake: Path) -> None:
        super().__init__(name=f"reads by {name}", daemon=True)
        self.seen: list[tuple[str, int, Rows]] = []
        self.failure: Exception | None = None
        self.over = threading.Event()
        self._reader = reader
        self._lake = lake
        self._done = threading.Condition()
        self._ended = False

    def run(self) -> None:
        """Read until ``over``, or a read fails."""
        try:
            while not self.over.wait(0.5):  # the jobs need the processor, too
                for table in TABLES:
                    self._read(table)
        except Exception as error:  # noqa: BLE001 - told by the test, whatever a reader raises
            self.failure = error
        finally:
            with self._done:
                self._ended = True
                self._done.notify_all()

    def wait_for_reads(self, count: int) -> None:
        """Wait until so many more reads have ended, or all have."""
        with self._done:
            until = len(self.seen) + count
            if not self._done.wait_for(lambda: self._ended or len(self.seen) >= until, count * _READ_S):
                pytest.fail(f"{self.name}: a read takes longer than {_READ_S:g} s")

    def _read(self, table: str) -> None:
        from consumerd.spark.table.transaction import open_table

        path = self._lake / table
        version = open_table(path).snapshot().version
        rows = rows_of(self._reader(path, version))
        with self._done:
            self.seen.append((table, version, rows))
            self._done.notify_all()


def read_beside_jobs(spark: SparkSession, folder: Path, readers: Mapping[str, Reader]) -> Seen:
    """Run all jobs, compact and vacuum all tables of a lake, while readers read it; return what they saw.

    Each reader reads every table at least once while a job runs or between two. A read that fails fails the test.
    """
    zone, lake = LandingZone(folder / "landing", make=make_order), folder / "lake"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("consumerd.spark.table.log.CHECKPOINT_EVERY", 3)
        fill_lake(spark, zone, lake, 0)
        watchers = {name: _Watcher(name, reader, lake) for name, reader in readers.items()}
        for watcher in watchers.values():
            watcher.start()
        try:
            removed = _work(spark, zone, lake, list(watchers.values()))
        finally:
            for watcher in watchers.values():
                watcher.over.set()
            for watcher in watchers.values():
                watcher.join(len(TABLES) * _READ_S)
    for watcher in watchers.values():
        assert watcher.failure is None, f"{watcher.name}: {watcher.failure}"
    assert all(removed.values()), removed
    return Seen(lake=lake, reads={name: watcher.seen for name, watcher in watchers.items()})


def _work(spark: SparkSession, zone: LandingZone, lake: Path, watchers: list[_Watcher]) -> Mapping[str, int]:
    """Run jobs, compactions and vacuums; return how many replaced files vacuum has removed of each table."""
    from consumerd.spark.table.transaction import open_table
    from consumerd.spark.table.vacuum import vacuum

    removed = dict.fromkeys(TABLES, 0)
    before_ms = time.time_ns() // 1_000_000
    for turn in range(1, _TURNS + 1):
        # vacuum must not remove what a read has begun with: one that began before the turn has ended then
        fill_lake(spark, zone, lake, turn)
        for watcher in watchers:
            watcher.wait_for_reads(1)
        compact_lake(spark, lake)
        now_ms = time.time_ns() // 1_000_000
        for name in TABLES:
            # what a turn has replaced stays for the next one
            keep_ms = now_ms - before_ms
            done = vacuum(open_table(lake / name), keep_ms=keep_ms, now_ms=now_ms, keep_log_ms=keep_ms)
            removed[name] += done.replaced
        before_ms = now_ms
    for watcher in watchers:
        watcher.wait_for_reads(len(TABLES))  # what vacuum has left
    return removed


def assert_whole_versions(spark: SparkSession, seen: Seen) -> None:
    """Each read had the rows of the version that it asked for: by all readers, and by ``read_table`` where that is kept."""
    from consumerd.spark.table.errors import VersionVacuumed
    from consumerd.spark.table.reading import read_table
    from consumerd.spark.table.transaction import open_table

    by_version: dict[tuple[str, int], Rows] = {}
    for name, reads in seen.reads.items():
        assert {table for table, _, _ in reads} == set(TABLES), name
        for table, version, rows in reads:
            assert by_version.setdefault((table, version), rows) == rows, (name, table, version)
    compared = set()
    for (table, version), rows in by_version.items():
        path = seen.lake / table
        try:
            files = open_table(path).snapshot(version).files
        except VersionVacuumed:
            continue
        if all((path / file).exists() for file in files):
            assert rows_of(read_table(spark, path, version).toArrow()) == rows, (table, version)
            compared.add(table)
    assert compared == set(TABLES)
