# SPDX-License-Identifier: Apache-2.0
"""Counts of the quarantine by topic and cause, and its purge. Needs no Spark.

A purge rewrites files without the chosen rows, and drops files that have no others. Each commit deals with at most
``FILES_AT_ONCE`` files. A purge that was interrupted is run again and goes on with the rest.

Purged rows are counted in the quarantine's progress. By that number silver's check of counts holds while bronze still
has them. ``quarantine_purged`` keeps their identities.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd.spark.quarantine_purged import JOB, note_purged
from consumerd.spark.quarantine_rows import IDENTITY, REPLAYED, Choice, read_columns
from consumerd.spark.silver_progress import purged_key, rebuilds_key
from consumerd.spark.table.commit import DataFile, Operation
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.folder_values import unescape_value
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.rewriting import write_part
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table, Transaction
from consumerd.telemetry.wording import format_time

FILES_AT_ONCE: Final = 32
"""Files per commit of a purge."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """Records of one topic and cause.

    Attributes:
        rows: how many, of which ``replayed`` have been replayed.
        first_ms: first time of landing in ms, ``last_ms`` the last; None if no row has one.
        example: reason of the newest.
    """

    topic: str
    cause: str
    rows: int
    replayed: int
    first_ms: int | None
    last_ms: int | None
    example: str | None

    def joined(self, other: Quarantined) -> Quarantined:
        """Return these and others of the same topic and cause."""
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

    def told(self) -> dict[str, object]:
        """Return what is printed."""
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
    """Result of a purge: removed rows by topic, and files that were rewritten or dropped."""

    rows: Counter[str]
    rewritten: int = 0
    dropped: int = 0


# -- counts


def count(table: Table, snapshot: Snapshot, choice: Choice) -> list[Quarantined]:
    """Return the chosen rows of a version by topic and cause, the most frequent first.

    Raises VersionVacuumed, OSError, ArrowException.
    """
    found: dict[tuple[str, str], Quarantined] = {}
    for topic, file in _files(table, snapshot, choice):
        for one in _count_file(table, file, topic, choice):
            known = found.get((topic, one.cause))
            found[topic, one.cause] = one if known is None else known.joined(one)
    return sorted(found.values(), key=lambda one: (-one.rows, one.topic, one.cause))


def _files(table: Table, snapshot: Snapshot, choice: Choice) -> Iterator[tuple[str, DataFile]]:
    at = table.record.partition_by.index("topic")
    for file in snapshot.files.values():
        topic = str(unescape_value(file.values[at]))
        if choice.topic in (None, topic):
            yield topic, file


def _count_file(table: Table, file: DataFile, topic: str, choice: Choice) -> Iterator[Quarantined]:
    """Yield each row group's rows by cause; the example is the first of them."""
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
    """Remove the chosen rows.

    Beside other jobs: what they add meanwhile stays, unless they put it into the same files. After a conflict the rest
    is planned anew, a few times.

    Args:
        now_ms: wall clock in ms since the epoch, for the note of the purge.

    Raises TableConflict if other jobs keep changing the same files, TableError, OSError, ArrowException. Commits made
    before then stay.
    """
    done = Purged(rows=Counter())
    conflicts = 0
    while True:
        planned = list(_find_affected(table, table.snapshot(), choice))
        try:
            for first in range(0, len(planned), FILES_AT_ONCE):
                done = _add(done, _purge(table, planned[first : first + FILES_AT_ONCE], choice, now_ms))
        except TableConflict:
            conflicts += 1
            if conflicts == _TRIES:
                raise
        else:
            return done


def _find_affected(table: Table, snapshot: Snapshot, choice: Choice) -> Iterator[tuple[str, DataFile]]:
    """Yield topics and files with chosen rows."""
    for topic, file in _files(table, snapshot, choice):
        if any(pc.any(choice.find(rows)).as_py() for rows in read_columns(table, file, ("cause", "landed", REPLAYED))):
            yield topic, file


def _purge(table: Table, planned: Sequence[tuple[str, DataFile]], choice: Choice, now_ms: int) -> Purged:
    """Commit the files without their chosen rows."""
    identities: defaultdict[str, list[pa.Table]] = defaultdict(list)
    rewritten = 0
    plan = f"{JOB}:{uuid.uuid4().hex}"
    with table.begin(plan=plan, job=JOB, operation=Operation.DELETE, now_ms=lambda: now_ms) as transaction:
        for number, (topic, file) in enumerate(planned):
            if file.path not in transaction.base.files:
                raise TableConflict(
                    f"{table.path / file.path} was replaced by another job while this one made its plan"
                )
            left = _rewrite(transaction, file, choice, number, identities[topic])
            transaction.remove([file.path])
            transaction.add(left)
            rewritten += bool(left)
        progress = transaction.base.progress
        note_purged(
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
    """Write a file's other rows in order; note identities of the chosen ones.

    Args:
        identities: list that the identities are appended to.
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
        for rows, chosen in _read_chosen(table, file, choice):
            identities.append(rows.select(IDENTITY).filter(chosen))
            yield from rows.filter(pc.invert(chosen)).combine_chunks().to_batches()

    return write_part(writer, file.values, others())


def _read_chosen(table: Table, file: DataFile, choice: Choice) -> Iterator[tuple[pa.Table, pa.ChunkedArray]]:
    """Yield a file's rows, row group by row group, and which of them are chosen."""
    columns: Iterable[pa.Table] = read_columns(table, file, ("cause", "landed", REPLAYED))
    with pq.ParquetFile(table.path / file.path) as parquet:
        for number, asked in enumerate(columns):
            rows = parquet.read_row_group(number, use_threads=False)
            yield rows, choice.find(asked)


def _add(done: Purged, part: Purged) -> Purged:
    return Purged(
        rows=done.rows + part.rows,
        rewritten=done.rewritten + part.rewritten,
        dropped=done.dropped + part.dropped,
    )
