# SPDX-License-Identifier: Apache-2.0
"""Small tables for tests that need no Spark: rows are put into files by the writer that tasks use."""

from __future__ import annotations

import errno
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from consumerd.landing.coverage import NOTHING, Coverage
from consumerd.landing.filesystem import FileSystem
from consumerd.spark.table.commit import Operation, TableCommit
from consumerd.spark.table.locks import FileLock, LockMaker
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.transaction import Table, Transaction, create_table
from tests.support.waiting import wait_until

SCHEMA: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("offset", "long"), ("value", "string"), ("topic", "string"), ("day", "date"))
        ],
    }
)
"""Spark's JSON of the columns that :func:`make_rows` gives."""


def make_table(path: Path, files: FileSystem | None = None, make_lock: LockMaker = FileLock) -> Table:
    """Return the table at a path, made if there is none."""
    return create_table(
        path, name="rows", schema=SCHEMA, partition_by=("topic", "day"), files=files, make_lock=make_lock
    )


class LockForEverybody:
    """The lock of a file system that grants it to everybody who asks."""

    def __init__(self, path: Path) -> None: ...

    def try_exclusive(self) -> bool:
        """See Lock."""
        return True

    def share(self) -> None:
        """See Lock."""

    def close(self) -> None:
        """See Lock."""


class NoLock(LockForEverybody):
    """The lock of a file system that has none."""

    def try_exclusive(self) -> bool:
        """See Lock."""
        raise OSError(errno.ENOLCK, "no locks available")


def make_rows(offsets: Iterable[int], *, topic: str = "orders", day: str = "2026-11-22") -> pa.RecordBatch:
    """Return rows of one topic and day, whose values tell their offsets."""
    known = list(offsets)
    columns = [known, [f"{topic}:{offset}" for offset in known], [topic] * len(known)]
    days = pa.array([day] * len(known), pa.string()).cast(pa.date32())
    return pa.RecordBatch.from_arrays([*map(pa.array, columns), days], names=["offset", "value", "topic", "day"])


def stage(transaction: Transaction, batches: Sequence[pa.RecordBatch], *, task: int = 0) -> None:
    """Write rows as a task would, and have them committed."""
    writer = PartitionedWriter(
        transaction.staging,
        prefix=f"{transaction.attempt}-{task:05d}",
        partition_by=transaction.table.record.partition_by,
        settings=FileSettings(bounds=("offset",)),
        files=transaction.table.log.files,
    )
    for batch in batches:
        writer.append(batch)
    transaction.add(writer.finish())


def append(
    table: Table,
    *batches: pa.RecordBatch,
    plan: str | None = None,
    covered: Coverage = NOTHING,
    progress: Mapping[str, int] | None = None,
    now_ms: int = 0,
) -> TableCommit:
    """Commit rows, of a plan that is named by them where it is not given."""
    name = plan or hashlib.sha256(repr([batch.to_pydict() for batch in batches]).encode()).hexdigest()
    with table.begin(plan=name, job="test", operation=Operation.APPEND, now_ms=lambda: now_ms) as transaction:
        stage(transaction, batches)
        return transaction.commit(covered=covered, progress=progress)


def read_offsets(table: Table, version: int | None = None) -> list[int]:
    """Return the offsets of a version's rows, sorted; a row that is there twice is there twice."""
    offsets: list[int] = []
    for path in table.snapshot(version).files:
        offsets += pq.read_table(table.path / path, columns=["offset"], partitioning=None)["offset"].to_pylist()
    return sorted(offsets)


def plain_offsets(table: Table) -> list[int]:
    """Return the offsets that one sees who goes by folders instead of the log."""
    offsets: list[int] = []
    for path in table.path.glob("topic=*/day=*/[!._]*.parquet"):
        offsets += pq.read_table(path, columns=["offset"], partitioning=None)["offset"].to_pylist()
    return sorted(offsets)


def wait_past(tables: Iterable[Table]) -> None:
    """Wait until the clock has passed the tables' newest commits, which may be of this very millisecond.

    Vacuum removes files that left a table before now.
    """
    newest_ms = max(table.snapshot().time_ms for table in tables)
    wait_until(
        lambda: time.time_ns() // 1_000_000 > newest_ms + 1, "the clock has passed the commits", interval_s=0.001
    )
