# SPDX-License-Identifier: Apache-2.0
"""Counts the quarantine's records by topic and cause, and purges it. Needs no Spark.

A purge removes chosen rows: it rewrites files without them, and drops files that have no others. A commit replaces at
most ``FILES_AT_ONCE`` files. If a purge is interrupted, its commits stay, and running it again removes the rest.

The number of purged rows is kept in the quarantine's progress, so that silver's check (bronze = silver + quarantine)
still holds. Their identities are kept by ``quarantine_purged``, so that they are not quarantined again.

Example: bronze has 100 records, silver 90, the quarantine 10. After a purge of 4, the check is 100 - 4 = 90 + 6.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.quarantine_purged import JOB, record_purged
from consumerd.spark.quarantine_rows import IDENTITY, REPLAYED, Choice, read_columns
from consumerd.spark.silver_progress import purged_key, rebuilds_key
from consumerd.spark.table.commit import DataFile, Operation
from consumerd.spark.table.folder_values import unescape_value
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.rewriting import write_part
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.task_rows import read_row_groups
from consumerd.spark.table.transaction import Table, Transaction, retry_conflicts
from consumerd.telemetry.wording import format_time

FILES_AT_ONCE: Final = 32
"""Limit of the files that one commit of a purge replaces."""
_MAX_ATTEMPTS: Final = 5
"""Attempts to plan and commit while other jobs change the same files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """Counts of quarantined records of one topic and cause.

    Attributes:
        rows: number of records.
        replayed: number of those that have been replayed.
        first_ms: earliest landing time in ms since the epoch; None if no row has one.
        last_ms: latest landing time in ms since the epoch.
        example: reason of the newest record.
    """

    topic: str
    cause: str
    rows: int
    replayed: int
    first_ms: int | None
    last_ms: int | None
    example: str | None

    def merge(self, other: Quarantined) -> Quarantined:
        """Return the sum of two counts of the same topic and cause."""
        firsts = [one.first_ms for one in (self, other) if one.first_ms is not None]
        lasts = [one.last_ms for one in (self, other) if one.last_ms is not None]
        newest = other if (other.last_ms or 0) >= (self.last_ms or 0) else self
        return replace(
            newest,
            rows=self.rows + other.rows,
            replayed=self.replayed + other.replayed,
            first_ms=min(firsts, default=None),
            last_ms=max(lasts, default=None),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the counts as a row of the command's output."""
        first, last = (None if one is None else format_time(one) for one in (self.first_ms, self.last_ms))
        return {
            "topic": self.topic,
            "cause": self.cause,
            "rows": self.rows,
            "replayed": self.replayed,
            "first_landed": first,
            "last_landed": last,
            "example": self.example,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """Result of a purge of the quarantine.

    ``rows`` has the number of removed rows by topic; ``rewritten`` and ``dropped`` are numbers of files.
    """

    rows: Counter[str] = field(default_factory=Counter)
    rewritten: int = 0
    dropped: int = 0

    def __add__(self, other: Purged) -> Purged:
        return Purged(
            rows=self.rows + other.rows,
            rewritten=self.rewritten + other.rewritten,
            dropped=self.dropped + other.dropped,
        )


# -- counts


def count(table: Table, snapshot: Snapshot, choice: Choice) -> list[Quarantined]:
    """Return counts of the quarantine's chosen rows by topic and cause, largest first.

    Raises VersionVacuumed, OSError, ArrowException.
    """
    found: dict[tuple[str, str], Quarantined] = {}
    for topic, file in _files(table, snapshot, choice):
        for one in _count_file(table, file, topic, choice):
            known = found.get((topic, one.cause))
            found[topic, one.cause] = one if known is None else known.merge(one)
    return sorted(found.values(), key=lambda one: (-one.rows, one.topic, one.cause))


def _files(table: Table, snapshot: Snapshot, choice: Choice) -> Iterator[tuple[str, DataFile]]:
    """Yield the files of the chosen topics, each with its topic."""
    at = table.record.partition_by.index("topic")
    for file in snapshot.files.values():
        topic = str(unescape_value(file.values[at]))
        if choice.topic in (None, topic):
            yield topic, file


def _count_file(table: Table, file: DataFile, topic: str, choice: Choice) -> Iterator[Quarantined]:
    """Yield counts of a file's chosen rows by cause, for each row group."""
    asked = [("cause", "count"), (REPLAYED, "count"), ("landed", "min"), ("landed", "max"), ("reason", "first")]
    for read in read_columns(table, file, ("cause", "reason", "landed", REPLAYED)):
        rows = read.filter(choice.find(read))
        landed = rows["landed"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        rows = rows.set_column(rows.column_names.index("landed"), "landed", landed)
        for one in rows.group_by("cause", use_threads=False).aggregate(asked).to_pylist():
            yield Quarantined(
                topic=topic,
                cause=str(one["cause"]),
                rows=one["cause_count"],
                replayed=one[f"{REPLAYED}_count"],
                first_ms=one["landed_min"],
                last_ms=one["landed_max"],
                example=one["reason_first"],
            )


# -- purge


def purge(table: Table, choice: Choice, *, now_ms: int) -> Purged:
    """Remove the chosen rows of the quarantine, in as many commits as needed.

    Rows that other jobs add meanwhile stay. If another job has replaced the same files, the rest is planned again.

    Args:
        now_ms: wall clock, in ms since the epoch, stored with the identities of purged records.

    Raises TableConflict if other jobs keep changing the same files, TableError, OSError, ArrowException. Commits that
    were made before an error stay.
    """
    done: list[Purged] = []

    def remove() -> None:
        planned = list(_find_affected(table, table.snapshot(), choice))
        for first in range(0, len(planned), FILES_AT_ONCE):
            part = _purge(table, planned[first : first + FILES_AT_ONCE], choice, now_ms)
            done.append(part)  # at once: a conflict in the next part ends the loop

    retry_conflicts(remove, most=_MAX_ATTEMPTS)
    return sum(done, Purged())


def _find_affected(table: Table, snapshot: Snapshot, choice: Choice) -> Iterator[tuple[str, DataFile]]:
    """Yield the files with chosen rows, each with its topic."""
    for topic, file in _files(table, snapshot, choice):
        if any(pc.any(choice.find(rows)).as_py() for rows in read_columns(table, file, ("cause", "landed", REPLAYED))):
            yield topic, file


def _purge(table: Table, planned: Sequence[tuple[str, DataFile]], choice: Choice, now_ms: int) -> Purged:
    """Replace some files, in one commit, by files without their chosen rows."""
    identities: defaultdict[str, list[pa.Table]] = defaultdict(list)
    rewritten = 0
    plan = f"{JOB}:{uuid.uuid4().hex}"
    with table.begin(plan=plan, job=JOB, operation=Operation.DELETE, now_ms=lambda: now_ms) as transaction:
        transaction.expect(file for _, file in planned)
        for number, (topic, file) in enumerate(planned):
            left = _rewrite(transaction, file, choice, number, identities[topic])
            transaction.remove([file.path])
            transaction.add(left)
            rewritten += bool(left)
        progress = transaction.base.progress
        # identities first: if this run dies here, the rows are still in the quarantine, and that is harmless
        record_purged(
            table,
            identities,
            rebuilds={topic: progress.get(rebuilds_key(topic), 0) for topic in identities},
            now_ms=now_ms,
        )
        rows = Counter({topic: sum(map(len, parts)) for topic, parts in identities.items()})
        transaction.commit(
            progress={purged_key(topic): progress.get(purged_key(topic), 0) + gone for topic, gone in rows.items()},
            counts={"purged": rows.total()},
        )
    return Purged(rows=rows, rewritten=rewritten, dropped=len(planned) - rewritten)


def _rewrite(
    transaction: Transaction, file: DataFile, choice: Choice, number: int, identities: list[pa.Table]
) -> list[DataFile]:
    """Write a file's other rows, in their order, to new files.

    Args:
        identities: the identities of the chosen rows are appended to it.
    """
    table = transaction.table
    writer = PartitionedWriter(
        transaction.staging,
        prefix=f"{transaction.attempt}-{number:05d}",
        partition_by=table.record.partition_by,
        settings=FileSettings(bounds=tuple(sorted(file.bounds))),
        files=table.log.files,
    )

    def others() -> Iterator[pa.RecordBatch]:
        asked = read_columns(table, file, ("cause", "landed", REPLAYED))
        for rows, chosen in zip(read_row_groups(table.path / file.path), map(choice.find, asked), strict=True):
            identities.append(rows.select(IDENTITY).filter(chosen))
            yield from rows.filter(pc.invert(chosen)).combine_chunks().to_batches()

    return write_part(writer, file.values, others())
