# SPDX-License-Identifier: Apache-2.0
"""Plans of the job ``silver``: the files that a topic's next commit decodes.

A commit takes files of about ``commit_bytes``. Of versions that were appended since the last commit it takes as many as
fit. If the first one alone is larger, it is decoded in parts, file by file in the order of their paths. So is the first
run, over the files of bronze's newest version. The progress says how far it has come (``silver_progress.Place``).

Invariants:

* A plan's name and its files follow from where it begins and ends. If a run dies between its two commits, the
  quarantine's progress says where the plan ends. So a later run makes the same plan, also with another ``commit_bytes``.
* A part, and a version before bronze's newest one, is decoded from files that are there. If compaction and vacuum have
  moved one of them, or bronze's log does not name them any more, all that is left up to bronze's newest version is found
  by comparing identities, in one commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.spark.silver_progress import (
    BEGINNING,
    REBUILDS,
    SilverPosition,
    bronze_source,
    is_source,
    read_place,
    rebuilds_key,
    removed_rows,
)
from consumerd.spark.table.commit import DataFile, Operation, TableCommit, files_of, rows_of
from consumerd.spark.table.errors import TableError, VersionVacuumed
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table

_STALE_VERSIONS: Final = 50
"""Versions of bronze without a record of the topic after which an empty commit notes the progress.

Without it, bronze's log could expire beyond the last progress, and all rows would have to be compared.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTables:
    """The three tables of a topic."""

    topic: str
    bronze: Table
    silver: Table
    quarantine: Table

    @property
    def source(self) -> str:
        """Key of bronze in the progress of the topic's table."""
        return bronze_source(self.bronze.record.id)

    @property
    def quarantine_source(self) -> str:
        """Key of bronze and this topic in the quarantine's progress."""
        return f"{self.source}:{self.topic}"

    @property
    def quarantine_rebuilds(self) -> str:
        """Key of this topic's rebuilds in the quarantine's progress."""
        return rebuilds_key(self.topic)

    def decoded(self, silver: Snapshot) -> SilverPosition:
        """Return how far the topic's table has come."""
        return read_place(silver.progress, self.source)

    def quarantined(self, quarantine: Snapshot) -> SilverPosition:
        """Return how far the quarantine has come with this topic."""
        return read_place(quarantine.progress, self.quarantine_source, self.topic)

    def removed(self, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
        """Count the decoded rows removed from bronze, minus those removed from silver and the quarantine."""
        return removed_rows(self.topic, self.source, bronze, silver, quarantine)

    def is_half_rebuilt(self, silver: Snapshot, quarantine: Snapshot) -> bool:
        """Tell whether a rebuild died between its two commits.

        The quarantine then has the bad records of all versions, and the topic's table still has the old rows.
        """
        return quarantine.progress.get(self.quarantine_rebuilds, 0) > silver.progress.get(REBUILDS, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """The rows of bronze that one commit decodes.

    Attributes:
        name: the same for both commits, and for a later run with the same work.
        operation: APPEND, or REPLACE for a rebuild.
        begin: how far the topic is decoded before the commit.
        end: how far it is decoded after it.
        files: the topic's files in between; all its files if ``known`` is a number.
        known: number of rows in ``files`` that are decoded already, where logs do not say which; None otherwise.
        quarantined: how far the quarantine had come when the plan was made.
    """

    name: str
    operation: Operation
    begin: SilverPosition
    end: SilverPosition
    files: tuple[DataFile, ...]
    known: int | None = None
    quarantined: SilverPosition = BEGINNING

    @property
    def until(self) -> int:
        """Version of bronze that has all the plan's rows."""
        return self.end.newest

    @property
    def is_part(self) -> bool:
        """True if others of the files between two versions are decoded by other commits."""
        return bool(self.begin.files or self.end.files) and self.known is None

    @property
    def rows(self) -> int:
        """Number of records to decode."""
        return rows_of(self.files) - (self.known or 0)


def plan_next(tables: TopicTables, *, commit_bytes: int, rebuild: bool = False) -> TopicPlan | None:
    """Return the next plan, None if there is nothing to decode.

    Raises TableError if bronze is another table than before, or if its rows have changed; VersionVacuumed, OSError.
    """
    quarantine, silver, bronze = (one.snapshot() for one in (tables.quarantine, tables.silver, tables.bronze))
    if rebuild or tables.is_half_rebuilt(silver, quarantine):
        return TopicPlan(
            name=f"silver:{tables.topic}:rebuild:{uuid.uuid4().hex}",
            operation=Operation.REPLACE,
            begin=BEGINNING,
            end=SilverPosition(version=bronze.version),
            files=_in_order(files_of(bronze.files.values(), tables.topic)),
        )
    begin, quarantined = tables.decoded(silver), tables.quarantined(quarantine)
    _check_bronze(tables, begin, silver, bronze)
    is_ahead = quarantined > begin
    try:
        if is_ahead:
            end, files = _go_to(tables, begin, quarantined)
        else:
            end, files = _find_end(tables, begin, bronze.version, commit_bytes)
    except VersionVacuumed:
        return _compare(tables, begin, bronze, silver, quarantine)
    plan = TopicPlan(
        name=_name(tables, silver, begin, end),
        operation=Operation.APPEND,
        begin=begin,
        end=end,
        files=files,
        quarantined=quarantined,
    )
    # The quarantine is ahead in two cases: a run of this plan died after its first commit (then the quarantine has the
    # plan), or the topic's table was restored to an earlier version.
    was_restored = is_ahead and plan.name not in quarantine.plans
    # Only the newest version is sure to have all its files, so rows that have moved are looked for there.
    is_fixed = plan.is_part or plan.until < bronze.version
    if was_restored or (is_fixed and is_moved(tables, plan.files)):
        return _compare(tables, begin, bronze, silver, quarantine)
    is_due = begin.until > 0 or end.version - begin.version >= _STALE_VERSIONS
    return plan if files or is_due else None


def is_moved(tables: TopicTables, files: Iterable[DataFile]) -> bool:
    """Tell whether one of bronze's files has been removed, as vacuum does after a compaction."""
    return any(not (tables.bronze.path / file.path).exists() for file in files)


def cut_files(files: Sequence[DataFile], limit_bytes: int) -> Iterator[tuple[DataFile, ...]]:
    """Yield consecutive files in parts of at most ``limit_bytes``. Pure.

    A larger file is a part by itself.
    """
    begin = size = 0
    for number, file in enumerate(files):
        if number > begin and size + file.size > limit_bytes:
            yield tuple(files[begin:number])
            begin, size = number, 0
        size += file.size
    if files:
        yield tuple(files[begin:])


def decoded_bronze(tables: TopicTables, place: SilverPosition) -> Snapshot:
    """Return bronze with only the topic's rows that are decoded at a place.

    Raises VersionVacuumed.
    """
    if not place.until:
        return tables.bronze.snapshot(place.version)
    decoded = {file.path: file for file in _appended(tables, place.version, place.until)[: place.files]}
    if place.version == 0:
        return replace(tables.bronze.snapshot(place.until), files=decoded)
    base = tables.bronze.snapshot(place.version)
    return replace(base, files={**base.files, **decoded})


def find_other_sources(silver: Snapshot, source: str) -> list[str]:
    """Return keys of the progress of other bronze tables that the topic's table was decoded from."""
    return [key for key, place in silver.progress.items() if place and is_source(key) and key != source]


def _check_bronze(tables: TopicTables, begin: SilverPosition, silver: Snapshot, bronze: Snapshot) -> None:
    """Raise TableError if bronze is another table, or has changed decoded rows."""
    others = find_other_sources(silver, tables.source)
    if others or begin.newest > bronze.version:
        raise TableError(
            f"{tables.silver.path} was decoded from another table than {tables.bronze.path}; decode it anew with "
            "silver --rebuild"
        )
    if begin.newest and bronze.last_replace > begin.newest:
        raise TableError(
            f"{tables.bronze.path}: version {bronze.last_replace} has changed rows; decode {tables.topic} anew with "
            "silver --rebuild"
        )


def _go_to(
    tables: TopicTables, begin: SilverPosition, end: SilverPosition
) -> tuple[SilverPosition, tuple[DataFile, ...]]:
    """Return an end that is given, and the files up to it."""
    files = _appended(tables, begin.version, end.newest)
    return end, files[begin.files : end.files if end.until else len(files)]


def _find_end(
    tables: TopicTables, begin: SilverPosition, newest: int, commit_bytes: int
) -> tuple[SilverPosition, tuple[DataFile, ...]]:
    """Return where a commit of about ``commit_bytes`` ends, and its files."""
    if begin.until:
        until = begin.until
        files = _appended(tables, begin.version, until)
    elif begin.version == 0:
        until = newest
        files = _appended(tables, 0, until)
    else:
        until, files = _fitting_versions(tables, begin.version, newest, commit_bytes)
    parts = list(cut_files(files[begin.files :], commit_bytes))
    if len(parts) <= 1:
        return SilverPosition(version=until), parts[0] if parts else ()
    return SilverPosition(version=begin.version, until=until, files=begin.files + len(parts[0])), parts[0]


def _fitting_versions(
    tables: TopicTables, after: int, newest: int, commit_bytes: int
) -> tuple[int, tuple[DataFile, ...]]:
    """Return the last version up to which the topic's files fit, and these files.

    It goes up to the first version with files at least.
    """
    files: list[DataFile] = []
    size, until = 0, after
    for commit in tables.bronze.log.read_after(after, newest):
        new = _appended_by(commit, tables.topic)
        more = sum(file.size for file in new)
        if files and new and size + more > commit_bytes:
            break
        files += new
        size, until = size + more, commit.version
    return until, _in_order(files)


def _appended(tables: TopicTables, after: int, until: int) -> tuple[DataFile, ...]:
    """Return the topic's files that were appended between two versions. Raises VersionVacuumed.

    From version 0 they are those of the later version: what was compacted or restored before has no history to follow.
    """
    if after == 0:
        return _in_order(files_of(tables.bronze.snapshot(until).files.values(), tables.topic))
    commits = tables.bronze.log.read_after(after, until)
    return _in_order([file for commit in commits for file in _appended_by(commit, tables.topic)])


def _appended_by(commit: TableCommit, topic: str) -> tuple[DataFile, ...]:
    return files_of(commit.added, topic) if commit.operation is Operation.APPEND else ()


def _in_order(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """Return files by path: a checkpoint's order is not that of commits."""
    return tuple(sorted(files, key=lambda file: file.path))


def _compare(
    tables: TopicTables, begin: SilverPosition, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot
) -> TopicPlan:
    """Return a plan that finds new rows by comparing identities.

    It takes all of bronze, since logs do not name the files with new rows. Purged rows count as known:
    ``quarantine_purged`` has their identities.
    """
    end = SilverPosition(version=bronze.version)
    files = files_of(bronze.files.values(), tables.topic)
    name = f"{_name(tables, silver, begin, end)}:compared"
    known = silver.rows + rows_of(files_of(quarantine.files.values(), tables.topic))
    known -= tables.removed(bronze, silver, quarantine)
    if name in quarantine.plans:  # an earlier run of this plan came as far as that
        known -= tables.quarantine.log.read(quarantine.plans[name]).rows
    return TopicPlan(
        name=name,
        operation=Operation.APPEND,
        begin=begin,
        end=end,
        files=files,
        known=known,
        quarantined=tables.quarantined(quarantine),
    )


def _name(tables: TopicTables, silver: Snapshot, begin: SilverPosition, end: SilverPosition) -> str:
    """Return the name of the plan between two places.

    A restore of the topic's table changes it: the same work is then to be done again.
    """
    first = f"{begin.version}.{begin.files}" if begin.files else f"{begin.version}"
    last = f"{end.until}.{end.files}" if end.files else f"{end.version}"
    return f"silver:{tables.topic}:{tables.bronze.record.id}:{first}-{last}:{silver.last_replace}"
