# SPDX-License-Identifier: Apache-2.0
"""The job ``erase``: removes records by key or predicate from tables and landed files.

What is erased is a set of identities (incarnation, broker, partition, offset, index) of one topic.

By key
    Bronze, the quarantine and the landed files are searched for the key's bytes; silver and ``latest`` for what the
    topic's declaration decodes them to. So rows are found that retention has removed from bronze only.

By predicate
    It is evaluated on bronze and the quarantine, or on silver and ``latest``. Null does not erase.

Order
    The table that is searched comes last, so that a run that died can be repeated: it finds what is left. For a
    predicate on silver that is landed files, bronze, quarantine, ``latest``, silver; else landed files, ``latest``,
    silver, quarantine, bronze.

Counts
    What was removed is counted in the tables' progress as the job ``retention`` does it, so that bronze is still silver
    and quarantine together. Coverage does not change: what was erased is not landed again.

Afterwards replaced files are vacuumed at once, and everything is searched again: what the tables name, what lies below
their folders besides, and the landed files. No match is the proof.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so

from consumerd.config.job import JobSettings, TableName
from consumerd.errors import ConfigError, ConsumerdError
from consumerd.landing.coverage import Coverage
from consumerd.landing.filesystem import FileSystem, OsFileSystem
from consumerd.landing.footers import read_all, read_ends
from consumerd.landing.ranges import EMPTY, RangeSet
from consumerd.landing.scan import read_roots, scan_landing
from consumerd.landing.values import Landing
from consumerd.spark import erase_landed, latest
from consumerd.spark.audit import write_whole
from consumerd.spark.decoding.loading import load_decoder
from consumerd.spark.erase_landed import LandedOne
from consumerd.spark.erase_request import ErasureRequest, read_request
from consumerd.spark.erase_tables import (
    JOB,
    UNREADABLE,
    Removal,
    count_wanted,
    files_of_topic,
    find_identities,
    remove_rows,
)
from consumerd.spark.identities import COLUMNS, SCHEMA, Identities
from consumerd.spark.job import PrintedTable as Shown
from consumerd.spark.job import Progress, Sessions, Summary
from consumerd.spark.silver_progress import expired_key
from consumerd.spark.table.commit import LOG_FOLDER, DataFile
from consumerd.spark.table.folder_values import escape_value
from consumerd.spark.table.locks import FileLock
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.transaction import Table, find_table, open_table
from consumerd.spark.table.vacuum import vacuum
from consumerd.spark.undecoded import find_undecoded
from consumerd.spark.wanted import SoughtRecords

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LANDED: Final = "landed files"
_LOCK: Final = ".erase.lock"
_DATA: Final = ".parquet"

NOT_REACHED: Final = (
    "the brokers' logs: they hold the records until retention or compaction removes them",
    "backups and snapshots of disks, of the landing folders and of the tables",
    "copies that readers have made: exports, caches, checkpoints and tables of their own",
    "other landing folders and tables than those of these settings",
    "records that the job replay has sent again: erase them from their topics, too (replayed_to in the quarantine)",
    "notes of purged records, beside the quarantine: offsets; no keys and no values",
    "files that daemons were writing when the proof was made, and files that readers still hold open",
    "the table stats: its counts, sizes and distinct keys of each hour still count the records, and name none",
    "logs of tables: smallest and largest offsets and times of replaced files, for keep_log_ms; no keys and no values",
    "the daemons' own quarantine folder, and the logs of daemons and jobs",
    "blocks of the disk that are free again but not overwritten",
)
"""Places that keep what is erased, or may."""


class NotReady(ConsumerdError):
    """Another job has to run first."""


@dataclass(slots=True, kw_only=True)
class ErasedTable:
    """A table of the topic, and what was done to it.

    Attributes:
        keys: the wanted keys as its column ``key`` holds them; None if it is not searched by key.
    """

    name: TableName
    table: Table
    keys: pa.Array | None
    removal: Removal = field(default_factory=Removal)
    found: int = 0
    vacuumed: int = 0
    searched: int = 0
    left: int = 0


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Erase what ``pipeline.erase`` says. See ``job.Run``."""
    return erase(spark, settings, progress)


def erase(spark: Sessions, settings: JobSettings, progress: Progress, *, files: FileSystem | None = None) -> Summary:
    """Erase what ``pipeline.erase`` says.

    Args:
        files: the file system of the landed files.

    Raises ConfigError, NotReady, TableConflict if other jobs keep changing the same files, ConsumerdError, OSError, and
    what Spark raises.
    """
    topics, options = settings.pipeline.silver.topics, settings.pipeline.erase
    request = read_request(options, declared=options.topic in topics)
    bronze = open_table(settings.folder("bronze"))
    _check_decoded(settings, bronze, request.topic)
    roots = read_roots(settings.landing_roots())
    with _alone([] if options.dry_run else [root.path for root in roots]):
        return _Erasure(spark(), settings, request, progress, files or OsFileSystem(), bronze).perform()


class _Erasure:
    """One run of the job."""

    def __init__(
        self,
        session: SparkSession,
        settings: JobSettings,
        request: ErasureRequest,
        progress: Progress,
        files: FileSystem,
        bronze: Table,
    ) -> None:
        self._began = time.monotonic()
        self._session = session
        self._settings = settings
        self._request = request
        self._progress = progress
        self._files = files
        self._dry_run = settings.pipeline.erase.dry_run
        self._notes: list[str] = []
        self._findings: list[str] = []
        self._landed = ErasedTable(name="bronze", table=bronze, keys=None)  # only its counts are of the landed files
        self._refresh_latest()
        self._places = self._find_places(bronze)

    def perform(self) -> Summary:
        """Choose, remove, vacuum, and prove."""
        self._progress.step("searching the landed files" if self._request.keys else "evaluating the predicate")
        landed = self._list_landed()
        identities = self._choose(landed)
        if self._dry_run:
            self._count(identities, landed)
        else:
            self._remove(identities, landed)
            self._vacuum()
            self._prove(identities)
        self._look_for_unlanded()
        return self._summarize(identities)

    # -- what there is

    def _refresh_latest(self) -> None:
        """Bring ``latest`` up to silver's version.

        Its next refresh would otherwise read files that are vacuumed here.
        """
        topic = self._request.topic
        declared = self._settings.pipeline.silver.topics.get(topic)
        silver = _find(self._settings, "silver", topic)
        if declared is not None and declared.latest and silver is not None and not self._dry_run:
            self._progress.step(f"finding the latest values of {topic}")
            place = self._settings.location("latest", topic)
            latest.refresh(lambda: self._session, silver, place, topic=topic)

    def _find_places(self, bronze: Table) -> list[ErasedTable]:
        """Return the topic's tables in the order in which they are rewritten."""
        topic = self._request.topic
        raw = self._request.key_array if self._request.keys else None
        decoded = self._decode_keys()
        tables: dict[TableName, tuple[Table | None, pa.Array | None]] = {
            "bronze": (bronze, raw),
            "quarantine": (_find(self._settings, "quarantine", None), raw),
            "latest": (_find(self._settings, "latest", topic), decoded),
            "silver": (_find(self._settings, "silver", topic), decoded),
        }
        by_silver = self._request.source == "silver"
        order: tuple[TableName, ...]
        order = (
            ("bronze", "quarantine", "latest", "silver") if by_silver else ("latest", "silver", "quarantine", "bronze")
        )
        found = ((name, *tables[name]) for name in order)
        return [ErasedTable(name=name, table=table, keys=keys) for name, table, keys in found if table is not None]

    def _decode_keys(self) -> pa.Array | None:
        """Return the keys as silver has them; None if it has none of them."""
        declared = self._settings.pipeline.silver.topics.get(self._request.topic)
        if declared is None or not self._request.keys:
            return None
        values = load_decoder(self._request.topic, declared).key.decode(self._request.key_array).values.drop_null()
        return values if len(values) else None

    def _list_landed(self) -> list[LandedOne]:
        """Return the topic's landed files. Raises ConfigError for another cluster's."""
        landing = self._scan()
        covered = self._covered()
        if covered.cluster not in (None, landing.cluster):
            raise ConfigError(
                f"bronze holds records of cluster {covered.cluster}, and {landing.roots[0].path} is of "
                f"{landing.cluster}: nothing was erased"
            )
        landed, damage = erase_landed.list_files(landing)
        if damage and self._request.where is not None:
            # by key it is searched again by the next run; a predicate finds nothing any more then
            raise NotReady(f"{damage[0]}; nothing was changed: restore or remove the file, then run the job again")
        self._findings += [f"not searched: {one}" for one in damage]
        return landed

    def _scan(self) -> Landing:
        return read_all(scan_landing(self._settings.landing_roots(), topics={self._request.topic}))

    def _covered(self) -> Coverage:
        return self._landed.table.snapshot().covered

    # -- choosing

    def _choose(self, landed: Sequence[LandedOne]) -> Identities:
        """Return the identities to erase.

        Raises ConfigError if there are too many, or the predicate is wrong.
        """
        limit = self._settings.pipeline.erase.max_records
        rows: list[pa.Table] = []
        for place in self._places:
            if place.keys is not None:
                self._progress.step(f"searching {place.name}")
                paths = [place.table.path / file.path for file in self._files_of(place)]
                rows.append(find_identities(self._session, paths, SoughtRecords(keys=place.keys), limit=limit + 1))
        if self._request.keys:
            found = erase_landed.search(
                self._session, landed, SoughtRecords(keys=self._request.key_array), limit=limit + 1 + len(landed)
            )
            self._findings += [f"not searched: {one}" for one in found.damage]
            rows.append(found.rows)
        else:
            rows += self._evaluate(limit + 1)
        identities = Identities.of(pa.concat_tables([SCHEMA.empty_table(), *rows]))
        if len(identities) > limit or any(len(part) > limit for part in rows):
            raise ConfigError(
                f"pipeline.erase.max_records: more than {limit} records would be erased; nothing was changed. Erase "
                "fewer keys, or a part of the predicate, at a time, or raise the limit (12 bytes of memory a record, "
                "in each task)"
            )
        return identities

    def _files_of(self, place: ErasedTable) -> Sequence[DataFile]:
        return files_of_topic(place.table, place.table.snapshot(), self._request.topic)

    def _evaluate(self, limit: int) -> Iterator[pa.Table]:
        """Yield the identities of rows for which the predicate is true.

        It is evaluated on each table that has its columns.
        """
        first, second = ("silver", "latest") if self._request.source == "silver" else ("bronze", "quarantine")
        by_name = {place.name: place for place in self._places}
        if first not in by_name:
            raise ConfigError(
                f"pipeline.erase.where: there is no table {first} of {self._request.topic} to evaluate it on; run the "
                f"job {first} first, or give --in {'bronze' if first == 'silver' else 'silver'}"
            )
        for name in (first, second):
            if name not in by_name:
                continue
            try:
                yield self._matching(by_name[name], limit)
            except (AnalysisException, ParseException) as error:
                message = str(error).partition("\n")[0]
                if name == first:
                    raise ConfigError(f"pipeline.erase.where: {message}") from error
                self._notes.append(f"the predicate was not evaluated on {name}, which lacks a column of it")
        if first == "silver" and "quarantine" in by_name:
            self._notes.append(
                "bad and late records in quarantine are not decoded, so the predicate does not find them"
            )

    def _matching(self, place: ErasedTable, limit: int) -> pa.Table:
        assert self._request.where is not None
        snapshot = place.table.snapshot()
        files = files_of_topic(place.table, snapshot, self._request.topic)
        frame = read_files(self._session, place.table, files, place.table.schema(snapshot))
        chosen = frame.where(F.expr(self._request.where)).select(*(f"`{name}`" for name in COLUMNS))
        return chosen.limit(limit).toArrow().cast(SCHEMA)

    # -- removing

    def _remove(self, identities: Identities, landed: Sequence[LandedOne]) -> None:
        if not identities:
            return
        self._progress.step("rewriting landed files")
        removed = erase_landed.remove(self._files, landed, identities)
        self._landed.removal = Removal(rows=removed.rows, files=removed.files)
        silver = next((place.table for place in self._places if place.name == "silver"), None)
        for place in self._places:
            self._progress.step(f"rewriting {place.name}")
            if place.name == "latest":
                place.removal = latest.remove(self._session, place.table, silver, self._request.topic, identities)
                continue
            of_topic = place.table.record.partition_by[:1] == ("topic",)
            place.removal = remove_rows(
                self._session,
                place.table,
                self._request.topic,
                identities,
                counted_by=expired_key(self._request.topic if of_topic else None),
                settings=self._file_settings(place.name),
            )

    def _file_settings(self, name: TableName) -> FileSettings:
        bronze = self._settings.pipeline.bronze
        if name != "bronze":
            return FileSettings()
        return FileSettings(compression=bronze.compression, level=bronze.compression_level)

    def _vacuum(self) -> None:
        """Remove replaced files, also where this run found nothing: an earlier one may have died."""
        self._refresh_latest()
        compact = self._settings.pipeline.compact
        for place in self._places:
            self._progress.step(f"removing what was replaced in {place.name}")
            # commits of this very millisecond, or of a clock that is ahead, count as past
            now_ms = max(place.table.snapshot().time_ms, time.time_ns() // 1_000_000) + 1
            done = vacuum(
                place.table,
                keep_ms=0,
                keep_log_ms=compact.keep_log_ms,
                keep_abandoned_ms=compact.keep_ms,
                now_ms=now_ms,
            )
            place.vacuumed = done.replaced + done.abandoned

    # -- proving

    def _count(self, identities: Identities, landed: Sequence[LandedOne]) -> None:
        """Count what would be removed."""
        wanted = SoughtRecords(identities=identities)
        for place in self._places:
            paths = [place.table.path / file.path for file in self._files_of(place) if identities.may_be_in(file)]
            counts = count_wanted(self._session, paths, wanted)
            place.removal = Removal(rows=sum(counts.values()), files=len(counts))
        found = erase_landed.search(self._session, landed, wanted, limit=2**31 - 1)
        self._landed.removal = Removal(rows=len(found.rows))

    def _prove(self, identities: Identities) -> None:
        """Search everything again."""
        for place in self._places:
            self._progress.step(f"searching {place.name} again")
            paths = list(_find_data(place.table, self._request.topic))
            counts = count_wanted(self._session, paths, SoughtRecords(identities=identities, keys=place.keys))
            place.searched = len(paths)
            self._report_matches(place, counts)
        if self._request.where is not None:
            left = [len(part) for part in self._evaluate(self._settings.pipeline.erase.max_records + 1)]
            if any(left):
                self._findings.append(
                    f"the predicate still finds {sum(left)} records, which came meanwhile: run the job again"
                )
        self._progress.step("searching the landed files again")
        landed, damage = erase_landed.list_files(self._scan())
        keys = self._request.key_array if self._request.keys else None
        found = erase_landed.search(
            self._session, landed, SoughtRecords(identities=identities, keys=keys), limit=len(identities) + 1000
        )
        self._landed.searched, self._landed.left = len(landed), len(found.rows)
        self._findings += [f"not searched: {one}" for one in (*damage, *found.damage)]
        if len(found.rows):
            self._findings.append(
                f"{len(found.rows)} matches are left in landed files, of records that came meanwhile: run bronze, "
                "silver and this job again"
            )

    def _report_matches(self, place: ErasedTable, counts: Mapping[str, int]) -> None:
        for path, count in sorted(counts.items()):
            if count == UNREADABLE:
                self._findings.append(f"not searched: {path} is being written, is damaged, or has no such columns")
            else:
                place.left += count
                self._findings.append(f"{count} matches are left in {path}: run the job again")

    def _look_for_unlanded(self) -> None:
        """Report landed offsets that bronze does not have yet: a predicate has not seen them."""
        covered = self._covered()
        landing = scan_landing(self._settings.landing_roots(), topics={self._request.topic})
        waiting = [
            file
            for chain in read_ends(landing).chains
            for file in chain.files
            if file.span is not None and RangeSet.of([file.span]) - covered.taken.get(chain.ref, EMPTY)
        ]
        if waiting:
            self._findings.append(
                f"{len(waiting)} landed files of {self._request.topic} are not in bronze yet, such as "
                f"{waiting[0].path}: run bronze, silver and this job again"
            )

    # -- telling

    def _summarize(self, identities: Identities) -> Summary:
        options = self._settings.pipeline.erase
        everything: dict[str, ErasedTable] = {_LANDED: self._landed, **{place.name: place for place in self._places}}
        if not identities:
            self._notes.append(f"no record of {self._request.topic} matches")
        if self._dry_run:
            self._notes.append("a dry run: nothing was changed")
        findings = tuple(dict.fromkeys(self._findings))
        rows = tuple(
            (name, one.removal.rows, one.removal.files, one.removal.restored, one.vacuumed, one.searched, one.left)
            for name, one in everything.items()
        )
        heads = ("place", "records", "files", "restored", "vacuumed", "searched", "left")
        summary = Summary(
            numbers={
                "topic": self._request.topic,
                "identities": len(identities),
                "erased": 0 if self._dry_run else sum(one.removal.rows for one in everything.values()),
                "files_rewritten": 0 if self._dry_run else sum(one.removal.files for one in everything.values()),
                "files_vacuumed": sum(one.vacuumed for one in everything.values()),
                "files_searched": sum(one.searched for one in everything.values()),
                "matches_left": sum(one.left for one in everything.values()),
                "elapsed_s": round(time.monotonic() - self._began, 3),
            },
            details={
                "dry_run": self._dry_run,
                "asked": self._request.describe(),
                "places": {
                    name: {
                        **asdict(one.removal),
                        "vacuumed": one.vacuumed,
                        "searched": one.searched,
                        "left": one.left,
                    }
                    for name, one in everything.items()
                },
                "not_reached": list(NOT_REACHED),
            },
            findings=findings,
            notes=(*dict.fromkeys(self._notes), *(f"not reached: {one}" for one in NOT_REACHED)),
            tables=(Shown(title="To be erased" if self._dry_run else "Erased", heads=heads, rows=rows),),
        )
        if options.report is not None:
            _write_report(options.report, summary)
        return summary


def _write_report(path: Path, summary: Summary) -> None:
    report = {**summary.numbers, **summary.details, "findings": summary.findings, "notes": summary.notes}
    try:
        write_whole(path, json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"pipeline.erase.report: {path}: {error.strerror or error}") from error


def _find(settings: JobSettings, name: TableName, topic: str | None) -> Table | None:
    """Return a table; None if there is none, or no place for one."""
    try:
        folder = settings.folder(name, topic)
    except ConfigError:
        return None
    return find_table(folder)


def _check_decoded(settings: JobSettings, bronze: Table, topic: str) -> None:
    """Raise NotReady if silver is behind.

    It would decode what is erased here, or miss it in its counts.
    """
    if topic in settings.pipeline.silver.topics:
        waiting = find_undecoded(settings, bronze, topic)
        if waiting:
            raise NotReady(
                f"{len(waiting)} files of bronze with records of {topic} are not decoded yet; nothing was changed: run "
                "the job silver first, then this one again"
            )


def _find_data(table: Table, topic: str) -> Iterator[Path]:
    """Yield all data files below a table's folder that may hold the topic's records.

    Staged and abandoned files are among them.
    """
    of_topic = f"topic={escape_value(topic)}"
    for path in table.log.files.walk(table.path):
        folders = [part for part in path.parts if part.startswith("topic=")]
        if path.suffix == _DATA and path.parts[0] != LOG_FOLDER and (not folders or of_topic in folders):
            yield table.path / path


@contextmanager
def _alone(roots: Sequence[Path]) -> Iterator[None]:
    """Hold a lock in each landing folder: two runs would undo each other's files.

    Raises NotReady if one is held.
    """
    locks = []
    try:
        for root in roots:
            lock = FileLock(root / _LOCK)
            locks.append(lock)
            with suppress(OSError):  # a file system without locks
                if not lock.try_exclusive():
                    raise NotReady(f"{root}: another run of the job {JOB} is at work there; wait until it has ended")
        yield
    finally:
        for lock in locks:
            lock.close()
