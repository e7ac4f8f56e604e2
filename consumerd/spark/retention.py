# SPDX-License-Identifier: Apache-2.0
"""The job ``retention``: removes old landed files and old rows of tables. Needs no Spark.

Landed files
    A file is removed if it is old enough, bronze covers it, and all earlier files of its chain are removed. The newest
    file of a chain always stays, because a daemon reads from it where the chain ends.

    Example: a chain has files with offsets 0-499, 500-999 and 1000-1499; bronze covers 0-999, and all are old. The
    first two are removed. If bronze covered only 500-1499, nothing would be.

Rows
    Tables have a folder for each day, so whole files are removed: those of days before ``bronze_ms`` (``silver_ms``,
    ``quarantine_ms``) ago, in UTC. Rows of bronze that silver has not decoded stay. The number of removed rows is kept
    in the tables' progress, so that silver's check (bronze = silver + quarantine) still holds. Coverage does not
    change, so removed rows are not copied from landed files again.

Removed files of tables stay on disk for ``pipeline.compact.keep_ms``, for readers of older versions.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from consumerd.config.job import JobSettings, TableName
from consumerd.errors import ConfigError
from consumerd.landing.chain import META_FOLDER, parse_meta_name
from consumerd.landing.coverage import Coverage
from consumerd.landing.metadata import keeps_metadata_beside
from consumerd.landing.ranges import EMPTY, RangeSet
from consumerd.landing.scan import scan_landing
from consumerd.landing.values import LandedChain, LandedFile, Landing
from consumerd.spark.job import PrintedTable, Progress, Sessions, Summary
from consumerd.spark.silver_plan import find_undecoded
from consumerd.spark.silver_progress import expired_key
from consumerd.spark.table.commit import DataFile, Operation
from consumerd.spark.table.folder_values import NULL_VALUE, unescape_value
from consumerd.spark.table.transaction import Table, find_table, retry_conflicts

JOB: Final = "retention"
"""Name of the job in the tables' commits."""
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Files of one table, or of one topic's landed files, that were removed.

    In a dry run, the files that a run would remove.

    Attributes:
        place: name of the table, or of the topic with its landed files.
        files: number of files.
        size: bytes of all files.
        rows: rows of all files; None for landed files.
    """

    place: str
    files: int
    size: int
    rows: int | None = None


def run(_spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Remove landed files and rows of tables that are older than the settings allow.

    Returns the summary. Raises ConfigError, TableError, OSError.
    """
    retention, now_ms = settings.pipeline.retention, time.time_ns() // 1_000_000
    wanted: dict[TableName, int | None] = {
        "bronze": retention.bronze_ms,
        "silver": retention.silver_ms,
        "quarantine": retention.quarantine_ms,
    }
    if retention.landing_ms is None and not any(wanted.values()):
        raise ConfigError("pipeline.retention: nothing is set there, so there is nothing to remove")
    done: list[Removed] = []
    notes: list[str] = []
    if retention.landing_ms is not None:
        progress.step("removing landed files")
        done += remove_landed(settings, now_ms - retention.landing_ms, dry_run=retention.dry_run)
    for kind, keep_ms in wanted.items():  # bronze first: rows removed there are never decoded
        if keep_ms is not None:
            progress.step(f"removing old rows of {kind}")
            cutoff = datetime.fromtimestamp((now_ms - keep_ms) / 1000, UTC).date()
            done += _remove_rows(settings, kind, cutoff, notes, dry_run=retention.dry_run)
    if retention.dry_run:
        notes.append("nothing was removed (--dry-run)")
    elif not any(one.files for one in done):
        notes.append("nothing is old enough")
    rows = tuple((one.place, one.files, one.rows, one.size) for one in done)
    title = "To be removed" if retention.dry_run else "Removed"
    return Summary(
        numbers={
            "landed_files": sum(one.files for one in done if one.rows is None),
            "landed_bytes": sum(one.size for one in done if one.rows is None),
            "table_files": sum(one.files for one in done if one.rows is not None),
            "rows": sum(one.rows or 0 for one in done),
            "table_bytes": sum(one.size for one in done if one.rows is not None),
        },
        details={"dry_run": retention.dry_run},
        tables=(PrintedTable(title=title, heads=("place", "files", "rows", "bytes"), rows=rows),),
        notes=tuple(notes),
    )


# -- landed files


def remove_landed(settings: JobSettings, until_ms: int, *, dry_run: bool = False) -> Iterator[Removed]:
    """Remove landed files that were written before a time; yield the result of each topic.

    Args:
        until_ms: wall clock, in ms since the epoch.

    Raises ConfigError, OSError.
    """
    bronze = find_table(settings.folder("bronze"))
    covered = Coverage() if bronze is None else bronze.snapshot().covered
    landing = scan_landing(settings.landing_roots(), topics=settings.landing_topics())
    if covered.cluster not in (None, landing.cluster):
        raise ConfigError(
            f"bronze holds records of cluster {covered.cluster}, and {landing.roots[0].path} is of {landing.cluster}: "
            "nothing was removed"
        )
    counts: defaultdict[str, list[int]] = defaultdict(list)
    for chain, file in find_removable(landing, covered, until_ms):
        counts[chain.partition.topic].append(Path(file.path).stat().st_size)
        if not dry_run:
            _remove_file(chain, file)
    for topic, sizes in sorted(counts.items()):
        yield Removed(place=f"landed files of {topic}", files=len(sizes), size=sum(sizes))


def find_removable(landing: Landing, covered: Coverage, until_ms: int) -> Iterator[tuple[LandedChain, LandedFile]]:
    """Yield the landed files that may be removed, oldest first within each chain.

    Raises OSError.

    Args:
        covered: offsets that the table ``bronze`` has taken.
        until_ms: wall clock, in ms since the epoch; files written later stay.
    """
    for chain in landing.chains:
        taken = covered.taken.get(chain.ref, EMPTY)
        for file in chain.files[:-1]:
            span = file.span
            assert span is not None  # the name of the next file says where this one ends
            if RangeSet.of([span]) - taken or Path(file.path).stat().st_mtime_ns >= until_ms * _NS_PER_MS:
                break
            yield chain, file


def _remove_file(chain: LandedChain, file: LandedFile) -> None:
    """Remove a landed file, then its metadata: metadata without a file are harmless."""
    Path(file.path).unlink()
    if keeps_metadata_beside(chain.record.extension):
        folder = Path(chain.folder, META_FOLDER)
        for path in folder.iterdir():
            if parse_meta_name(path.name) == file.position:
                with suppress(FileNotFoundError):
                    path.unlink()


# -- rows of tables


def _remove_rows(
    settings: JobSettings, kind: TableName, cutoff: date, notes: list[str], *, dry_run: bool
) -> Iterator[Removed]:
    for name, folder in settings.tables([kind]).items():
        table = find_table(folder)
        if table is None:
            continue
        kept = _undecoded(settings, table, notes) if kind == "bronze" else frozenset[str]()
        yield remove_days(table, cutoff, name=name, kept=kept, dry_run=dry_run)


def remove_days(table: Table, cutoff: date, *, name: str, kept: Collection[str] = (), dry_run: bool = False) -> Removed:
    """Remove a table's files of days before ``cutoff``.

    Args:
        name: name of the table in the result.
        kept: paths of files that stay.

    Raises TableConflict if other jobs keep removing the same files, TableError, OSError.
    """
    return retry_conflicts(lambda: _try_to_remove(table, cutoff, name, kept, dry_run=dry_run))


def _try_to_remove(table: Table, cutoff: date, name: str, kept: Collection[str], *, dry_run: bool) -> Removed:
    place = table.record.partition_by.index("day")
    with table.begin(plan=f"{JOB}:{uuid.uuid4().hex}", job=JOB, operation=Operation.DELETE) as transaction:
        old = [
            file
            for file in transaction.base.files.values()
            if file.path not in kept and file.values[place] != NULL_VALUE and file.values[place] < cutoff.isoformat()
        ]
        removed = Removed(
            place=name, files=len(old), size=sum(file.size for file in old), rows=sum(file.rows for file in old)
        )
        if old and not dry_run:
            transaction.remove(file.path for file in old)
            progress = transaction.base.progress
            counts = _count(table, old)
            transaction.commit(progress={key: progress.get(key, 0) + count for key, count in counts.items()})
        return removed


def _count(table: Table, files: Collection[DataFile]) -> Mapping[str, int]:
    """Return the number of rows in files, by the progress key that counts removed rows."""
    by_topic = table.record.partition_by[0] == "topic"
    counts: defaultdict[str, int] = defaultdict(int)
    for file in files:
        counts[expired_key(unescape_value(file.values[0]) if by_topic else None)] += file.rows
    return counts


def _undecoded(settings: JobSettings, bronze: Table, notes: list[str]) -> frozenset[str]:
    """Return the paths of bronze's files that silver has not decoded yet."""
    kept: set[str] = set()
    for topic in settings.pipeline.silver.topics:
        waiting = find_undecoded(settings, bronze, topic)
        if waiting:
            notes.append(f"{topic}: {len(waiting)} files of bronze stay until silver has decoded them")
        kept |= waiting
    return frozenset(kept)
