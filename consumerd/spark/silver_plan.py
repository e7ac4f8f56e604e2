# SPDX-License-Identifier: Apache-2.0
"""Plans of the job ``silver``: the files of bronze that a topic's next commit decodes.

A commit takes files of about ``commit_bytes``. It takes as many whole versions of bronze as fit, from the last commit
on. If the first version alone is larger, it is decoded in parts: several commits, each with some of its files, in the
order of their paths. The first run of a topic does so with all files of bronze's newest version. The tables' progress
says how much is decoded (``silver_progress.SilverPosition``).

Example: ``commit_bytes`` is 2 GiB, and everything up to version 10 of bronze is decoded. Version 11 has appended 1 GiB,
version 12 0.8 GiB, version 13 five files of 1 GiB each. The first commit takes versions 11 and 12. Three more take two,
two and one file of version 13.

Invariants:

* A plan's name and files depend only on where it begins and ends. If a run dies between its two commits, the
  quarantine's progress says where the plan ends, so the next run makes the same plan, even with another
  ``commit_bytes``.
* A part, or a version before bronze's newest one, is decoded from exactly the files that bronze's log names. If vacuum
  has removed one of them, or the log no longer goes back that far, all records up to bronze's newest version that are
  not decoded yet are found by comparing identities, in one commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from consumerd.config.job import JobSettings
from consumerd.spark.silver_progress import (
    BEGINNING,
    REBUILDS,
    SilverPosition,
    bronze_source,
    is_source,
    read_position,
    rebuilds_key,
    removed_rows,
)
from consumerd.spark.table.commit import DataFile, Operation, TableCommit, cut_files, files_of, rows_of
from consumerd.spark.table.errors import TableError, VersionVacuumed
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table, find_table

_MAX_VERSIONS_WITHOUT_COMMIT: Final = 50
"""Limit of bronze's versions without a record of the topic.

After that number of versions, an empty commit updates the progress. Otherwise bronze's log could expire beyond the
version in the progress, and all rows would have to be compared.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTables:
    """The three tables of a topic: bronze, its decoded table (silver), the quarantine."""

    topic: str
    bronze: Table
    silver: Table
    quarantine: Table

    @property
    def source(self) -> str:
        """Key under which the log of the topic's table has the topic's position in bronze.

        The position says how much of the table ``bronze`` is decoded.
        """
        return bronze_source(self.bronze.record.id)

    @property
    def quarantine_source(self) -> str:
        """Key under which the quarantine's log has this topic's position in bronze.

        The position says how much of the table ``bronze`` is decoded.
        """
        return f"{self.source}:{self.topic}"

    @property
    def quarantine_rebuilds(self) -> str:
        """Key under which the quarantine's log has this topic's number of rebuilds.

        A rebuild decodes all records of a topic again.
        """
        return rebuilds_key(self.topic)

    def decoded(self, silver: Snapshot) -> SilverPosition:
        """Return the position in bronze up to which the topic's table has decoded records."""
        return read_position(silver.progress, self.source)

    def quarantined(self, quarantine: Snapshot) -> SilverPosition:
        """Return the position in bronze up to which the quarantine has this topic's bad records."""
        return read_position(quarantine.progress, self.quarantine_source, self.topic)

    def removed(self, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
        """Return the rows removed from bronze minus those removed from silver and quarantine.

        Rows that were removed before they were decoded do not count. ``silver_progress.removed_rows`` has examples.
        """
        return removed_rows(self.topic, self.source, bronze, silver, quarantine)

    def is_half_rebuilt(self, silver: Snapshot, quarantine: Snapshot) -> bool:
        """Return True if a rebuild died between its two commits.

        The quarantine then has the bad records of all versions, and the topic's table still has its old rows.
        """
        return quarantine.progress.get(self.quarantine_rebuilds, 0) > silver.progress.get(REBUILDS, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """Rows of the table ``bronze`` that one commit of the job ``silver`` decodes.

    Two commits have the same plan: that of the quarantine and that of the topic's table.

    Attributes:
        name: unique for these rows; also a later run that decodes these rows uses this name.
        operation: APPEND, or REPLACE for a rebuild, which decodes all records again.
        begin: the topic's position in bronze before the commit.
        end: its position after it.
        files: the topic's files in between; all its files if ``known`` is a number.
        known: number of rows in ``files`` that are decoded already, to be recognized by their identities; None if
            identities need not be compared.
        quarantined: the quarantine's position when the plan was made.
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
        """Version of the table ``bronze`` that has all rows of the plan."""
        return self.end.newest

    @property
    def is_part(self) -> bool:
        """True if other commits decode other files of the same versions."""
        return bool(self.begin.files or self.end.files) and self.known is None

    @property
    def rows(self) -> int:
        """Number of records that the plan decodes."""
        return rows_of(self.files) - (self.known or 0)


def plan_next(tables: TopicTables, *, commit_bytes: int, rebuild: bool = False) -> TopicPlan | None:
    """Return the rows of bronze to decode next for a topic; None without any.

    Raises TableError if bronze is another table than before, or decoded rows of it were changed; VersionVacuumed,
    OSError.

    Args:
        commit_bytes: approximate bytes of bronze's files per commit.
        rebuild: decode all records again.
    """
    quarantine, silver, bronze = (one.snapshot() for one in (tables.quarantine, tables.silver, tables.bronze))
    if rebuild or tables.is_half_rebuilt(silver, quarantine):
        return TopicPlan(
            name=f"silver:{tables.topic}:rebuild:{uuid.uuid4().hex}",
            operation=Operation.REPLACE,
            begin=BEGINNING,
            end=SilverPosition(version=bronze.version),
            files=_sort_by_path(files_of(bronze.files.values(), tables.topic)),
        )
    begin, quarantined = tables.decoded(silver), tables.quarantined(quarantine)
    _check_bronze(tables, begin, silver, bronze)
    is_ahead = quarantined > begin
    try:
        if is_ahead:
            end, files = _end_at(tables, begin, quarantined)
        else:
            end, files = _find_end(tables, begin, bronze.version, commit_bytes)
    except VersionVacuumed:
        return _plan_comparison(tables, begin, bronze, silver, quarantine)
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
    if was_restored or (is_fixed and are_missing(tables, plan.files)):
        return _plan_comparison(tables, begin, bronze, silver, quarantine)
    is_due = begin.until > 0 or end.version - begin.version >= _MAX_VERSIONS_WITHOUT_COMMIT
    return plan if files or is_due else None


def are_missing(tables: TopicTables, files: Iterable[DataFile]) -> bool:
    """Return True if one of these files of bronze no longer exists.

    A file is deleted if a compaction has replaced it and a vacuum has followed.
    """
    return any(not (tables.bronze.path / file.path).exists() for file in files)


def decoded_bronze(tables: TopicTables, position: SilverPosition) -> Snapshot:
    """Return a snapshot of bronze with only those of the topic's files that are decoded.

    Args:
        position: the topic's position in bronze.

    Raises VersionVacuumed.
    """
    if not position.until:
        return tables.bronze.snapshot(position.version)
    decoded = {file.path: file for file in _appended(tables, position.version, position.until)[: position.files]}
    if position.version == 0:
        return replace(tables.bronze.snapshot(position.until), files=decoded)
    base = tables.bronze.snapshot(position.version)
    return replace(base, files={**base.files, **decoded})


def find_other_sources(silver: Snapshot, source: str) -> list[str]:
    """Return keys of other bronze tables from which the topic's table was decoded before.

    The keys are those of positions in the topic's table's log; ``source`` is the key of the present bronze table.
    """
    return [key for key, position in silver.progress.items() if position and is_source(key) and key != source]


def _check_bronze(tables: TopicTables, begin: SilverPosition, silver: Snapshot, bronze: Snapshot) -> None:
    """Raise TableError if bronze is another table, or decoded rows of it were changed."""
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


def _end_at(
    tables: TopicTables, begin: SilverPosition, end: SilverPosition
) -> tuple[SilverPosition, tuple[DataFile, ...]]:
    """Return a given end and the files up to it."""
    files = _appended(tables, begin.version, end.newest)
    return end, files[begin.files : end.files if end.until else len(files)]


def _find_end(
    tables: TopicTables, begin: SilverPosition, newest: int, commit_bytes: int
) -> tuple[SilverPosition, tuple[DataFile, ...]]:
    """Return the end of a commit of about ``commit_bytes``, and its files."""
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

    The first version with files is taken even if it does not fit.
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
    return until, _sort_by_path(files)


def _appended(tables: TopicTables, after: int, until: int) -> tuple[DataFile, ...]:
    """Return the topic's files that were appended between two versions. Raises VersionVacuumed.

    From version 0 on, these are all files of the later version, since compaction may have replaced the appended ones.
    """
    if after == 0:
        return _sort_by_path(files_of(tables.bronze.snapshot(until).files.values(), tables.topic))
    commits = tables.bronze.log.read_after(after, until)
    return _sort_by_path([file for commit in commits for file in _appended_by(commit, tables.topic)])


def _appended_by(commit: TableCommit, topic: str) -> tuple[DataFile, ...]:
    return files_of(commit.added, topic) if commit.operation is Operation.APPEND else ()


def _sort_by_path(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """Return files by path: snapshots from a checkpoint and from commits differ in order."""
    return tuple(sorted(files, key=lambda file: file.path))


def _plan_comparison(
    tables: TopicTables, begin: SilverPosition, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot
) -> TopicPlan:
    """Return a plan that finds undecoded rows by comparing identities.

    It takes all of bronze, since the log does not say which files have new rows. Purged rows count as decoded:
    ``quarantine_purged`` has their identities.
    """
    end = SilverPosition(version=bronze.version)
    files = files_of(bronze.files.values(), tables.topic)
    name = f"{_name(tables, silver, begin, end)}:compared"
    known = silver.rows + rows_of(files_of(quarantine.files.values(), tables.topic))
    known -= tables.removed(bronze, silver, quarantine)
    if name in quarantine.plans:  # an earlier run of this plan died after its first commit
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
    """Return the name of the plan between two positions.

    It contains the version in which the topic's table was last restored or rebuilt, since then the same rows are
    decoded again.
    """
    first = f"{begin.version}.{begin.files}" if begin.files else f"{begin.version}"
    last = f"{end.until}.{end.files}" if end.files else f"{end.version}"
    return f"silver:{tables.topic}:{tables.bronze.record.id}:{first}-{last}:{silver.last_replace}"


# -- for other jobs


def find_undecoded(settings: JobSettings, bronze: Table, topic: str) -> frozenset[str]:
    """Return the paths of a topic's files that silver has not decoded.

    Silver decodes the files that were appended after the version of bronze in its progress. If a compaction, or a job
    that removes rows, has replaced such a file, the new file is not decoded either.

    Example: silver's progress is version 10. Version 11 appended file A, version 12 compacted A with an older file B
    into C. C is not decoded: it has A's rows.

    Raises TableError, OSError.
    """
    snapshot = bronze.snapshot()
    silver = find_table(settings.folder("silver", topic))
    after = 0 if silver is None else silver.snapshot().progress.get(bronze_source(bronze.record.id), 0)
    if after > snapshot.version:
        after = 0  # bronze was restored to an older version: silver needs a rebuild
    try:
        waiting = _find_waiting(bronze.log.read_after(after), topic)
    except VersionVacuumed:
        waiting = {file.path for file in files_of(snapshot.files.values(), topic)}
    return frozenset(waiting & snapshot.files.keys())


def _find_waiting(commits: Iterable[TableCommit], topic: str) -> set[str]:
    """Return the paths of files with rows that these commits have appended."""
    waiting: set[str] = set()
    for commit in commits:
        added = {file.path for file in files_of(commit.added, topic)}
        if commit.operation in (Operation.APPEND, Operation.REPLACE) or not waiting.isdisjoint(commit.removed):
            waiting |= added
    return waiting
