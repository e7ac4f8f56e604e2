# SPDX-License-Identifier: Apache-2.0
"""The job ``erase``: removes records by key or predicate from tables and landed files.

It chooses a set of identities (incarnation, broker, partition, offset, index) of one topic, removes these rows
everywhere, and then searches again as proof.

By key
    Bronze, the quarantine and the landed files are searched for the key's bytes; silver and ``latest`` for the decoded
    key. So a row of silver is found even if retention has removed it from bronze.

By predicate
    It is evaluated on bronze and the quarantine, or on silver and ``latest``. A row for which it is null stays.

Order
    The table that is searched is rewritten last. A run that dies has therefore left the rows in it, and the next run
    finds them again. For a predicate on silver the order is landed files, bronze, quarantine, ``latest``, silver;
    otherwise landed files, ``latest``, silver, quarantine, bronze.

Counts
    Removed rows are counted in each table's progress, as those of the job ``retention``, so that silver's check (bronze
    = silver + quarantine) still holds. Coverage does not change: erased records are not copied from landed files again.

Example: the key ``ann`` is at offsets 10 and 20 of partition 0; silver has decoded 10, and 20 is in the quarantine. The
run removes both from the landed file, which then records the gaps [10, 11) and [20, 21) with the reason ``erased``; the
row of ``ann`` from ``latest``; 10 from silver; 20 from the quarantine; both from bronze. Bronze counts two removed
rows, silver and the quarantine one each.

At the end, replaced files are vacuumed at once, and everything is searched again: files of the tables' newest versions,
all other files below their folders, and the landed files. The proof is that nothing matches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.logger import PySparkLogger
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
from consumerd.spark.erase_landed import SearchedFile
from consumerd.spark.erase_request import ErasureRequest, read_request
from consumerd.spark.erase_tables import (
    JOB,
    UNREADABLE,
    Removal,
    SoughtRecords,
    count_wanted,
    files_of_topic,
    find_identities,
    remove_rows,
)
from consumerd.spark.identities import COLUMNS, SCHEMA, Identities
from consumerd.spark.job import PrintedTable, Progress, Sessions, Summary
from consumerd.spark.silver_plan import find_undecoded
from consumerd.spark.silver_progress import expired_key
from consumerd.spark.table.commit import LOG_FOLDER, DataFile
from consumerd.spark.table.folder_values import escape_value
from consumerd.spark.table.locks import FileLock
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.transaction import Table, find_table, open_table
from consumerd.spark.table.vacuum import vacuum

_LANDED: Final = "landed files"
"""Name of the landed files in the report, beside the names of tables."""
_LOCK_FILE: Final = ".erase.lock"
"""File in each landing folder that a run holds a lock on."""
_DATA_SUFFIX: Final = ".parquet"

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
"""Where erased records stay, or may stay, because this job cannot remove them; every report lists it."""


class NotReady(ConsumerdError):
    """Raised if another job has to run before the job ``erase``."""


@dataclass(slots=True, kw_only=True)
class ErasedTable:
    """A table from which the job ``erase`` removes a topic's records, and its numbers.

    Attributes:
        keys: the keys to erase, as values of the table's column ``key``; None if the table is not searched by key.
        removal: rows and files that were removed or replaced.
        vacuumed: number of files removed by vacuum.
        searched: number of files that were searched again, as proof, after the removal.
        left: number of matches that this second search has found.
    """

    name: TableName
    table: Table
    keys: pa.Array | None
    removal: Removal = field(default_factory=Removal)
    vacuumed: int = 0
    searched: int = 0
    left: int = 0


def run(spark: Sessions, settings: JobSettings, progress: Progress, *, files: FileSystem | None = None) -> Summary:
    """Erase the records that ``pipeline.erase`` chooses from tables and landed files.

    Returns the summary.

    Args:
        files: file system of the landed files; tests pass a faulty one.

    Raises ConfigError, NotReady, TableConflict if other jobs keep changing the same files, ConsumerdError, OSError, and
    Spark's exceptions.
    """
    topics, options = settings.pipeline.silver.topics, settings.pipeline.erase
    request = read_request(options, declared=options.topic in topics)
    bronze = open_table(settings.folder("bronze"))
    _check_decoded(settings, bronze, request.topic)
    roots = read_roots(settings.landing_roots())
    with _lock_roots([] if options.dry_run else [root.path for root in roots]):
        return _Erasure(spark, settings, request, progress, files or OsFileSystem(), bronze).perform()


class _Erasure:
    """One run of the job.

    It starts Spark when there is something to search: until then a mistake costs no JVM.
    """

    def __init__(
        self,
        spark: Sessions,
        settings: JobSettings,
        request: ErasureRequest,
        progress: Progress,
        files: FileSystem,
        bronze: Table,
    ) -> None:
        self._began = time.monotonic()
        self._spark = spark
        self._settings = settings
        self._request = request
        self._progress = progress
        self._files = files
        self._dry_run = settings.pipeline.erase.dry_run
        self._notes: list[str] = []
        self._findings: list[str] = []
        self._landed = ErasedTable(name="bronze", table=bronze, keys=None)  # holds the numbers of the landed files
        self._refresh_latest()
        self._places = self._find_places(bronze)

    def perform(self) -> Summary:
        """Choose records, remove them, vacuum, and prove that none is left."""
        self._progress.step("searching the landed files" if self._request.keys else "evaluating the predicate")
        landed = self._list_landed()
        if not landed and not self._findings and not self._has_topic():
            # a misspelt topic must not give a proof that its records are gone
            self._findings.append(f"nothing has landed of topic {self._request.topic}: is its name spelt right?")
            return self._summarize(Identities.of(SCHEMA.empty_table()))
        identities = self._choose(landed)
        if self._dry_run:
            self._count(identities, landed)
        else:
            self._remove(identities, landed)
            self._vacuum()
            self._prove(identities)
        self._report_uncopied()
        return self._summarize(identities)

    # -- tables and files

    def _refresh_latest(self) -> None:
        """Bring ``latest`` up to silver's version.

        Its next refresh would otherwise need files of silver that this job vacuums.
        """
        topic = self._request.topic
        declared = self._settings.pipeline.silver.topics.get(topic)
        silver = _find(self._settings, "silver", topic)
        if declared is not None and declared.latest and silver is not None and not self._dry_run:
            self._progress.step(f"finding the latest values of {topic}")
            place = self._settings.location("latest", topic)
            latest.refresh(self._spark, silver, place, topic=topic)

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
        order: tuple[TableName, ...] = (
            ("bronze", "quarantine", "latest", "silver") if by_silver else ("latest", "silver", "quarantine", "bronze")
        )
        found = ((name, *tables[name]) for name in order)
        return [ErasedTable(name=name, table=table, keys=keys) for name, table, keys in found if table is not None]

    def _decode_keys(self) -> pa.Array | None:
        """Return the keys as values of silver's column; None if no key can be decoded."""
        declared = self._settings.pipeline.silver.topics.get(self._request.topic)
        if declared is None or not self._request.keys:
            return None
        values = load_decoder(self._request.topic, declared).key.decode(self._request.key_array).values.drop_null()
        return values if len(values) else None

    def _list_landed(self) -> list[SearchedFile]:
        """Return the topic's landed files. Raises ConfigError if they are of another cluster."""
        landing = self._scan()
        covered = self._covered()
        if covered.cluster not in (None, landing.cluster):
            raise ConfigError(
                f"bronze holds records of cluster {covered.cluster}, and {landing.roots[0].path} is of "
                f"{landing.cluster}: nothing was erased"
            )
        landed, damage = erase_landed.list_files(landing)
        if damage and self._request.where is not None:
            # By key, a later run finds the records in this file. A predicate finds them in a table only, and no longer
            # after this run has removed them there.
            raise NotReady(f"{damage[0]}; nothing was changed: restore or remove the file, then run the job again")
        self._findings += [f"not searched: {one}" for one in damage]
        return landed

    def _has_topic(self) -> bool:
        """Return True if a table has data files of the topic, in any version."""
        return any(path for place in self._places for path in _find_data(place.table, self._request.topic))

    def _scan(self) -> Landing:
        return read_all(scan_landing(self._settings.landing_roots(), topics={self._request.topic}))

    def _covered(self) -> Coverage:
        return self._landed.table.snapshot().covered

    # -- choosing

    def _choose(self, landed: Sequence[SearchedFile]) -> Identities:
        """Return the identities to erase.

        Raises ConfigError if there are too many, or the predicate is not valid.
        """
        limit = self._settings.pipeline.erase.max_records
        rows: list[pa.Table] = []
        for place in self._places:
            if place.keys is not None:
                self._progress.step(f"searching {place.name}")
                paths = [place.table.path / file.path for file in self._files_of(place)]
                rows.append(find_identities(self._spark(), paths, SoughtRecords(keys=place.keys), limit=limit + 1))
        if self._request.keys:
            found = erase_landed.search(
                self._spark(), landed, SoughtRecords(keys=self._request.key_array), limit=limit + 1 + len(landed)
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
        """Yield the identities of rows for which the predicate is true, table by table."""
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
                with _without_stack_traces():
                    found = self._matching(by_name[name], limit)
                yield found
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
        """Return the identities in one table for which the predicate is true, at most ``limit``."""
        assert self._request.where is not None
        snapshot = place.table.snapshot()
        files = files_of_topic(place.table, snapshot, self._request.topic)
        frame = read_files(self._spark(), place.table, files, place.table.schema(snapshot))
        chosen = frame.where(F.expr(self._request.where)).select(*(f"`{name}`" for name in COLUMNS))
        return chosen.limit(limit).toArrow().cast(SCHEMA)

    # -- removing

    def _remove(self, identities: Identities, landed: Sequence[SearchedFile]) -> None:
        if not identities:
            return
        self._progress.step("rewriting landed files")
        self._landed.removal = erase_landed.remove(self._files, landed, identities)
        silver = next((place.table for place in self._places if place.name == "silver"), None)
        for place in self._places:
            self._progress.step(f"rewriting {place.name}")
            if place.name == "latest":
                place.removal = latest.remove(self._spark(), place.table, silver, self._request.topic, identities)
                continue
            of_topic = place.table.record.partition_by[:1] == ("topic",)
            place.removal = remove_rows(
                self._spark(),
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
        """Remove replaced files at once.

        Also if this run has removed nothing: an earlier run may have died before its vacuum.
        """
        self._refresh_latest()
        compact = self._settings.pipeline.compact
        for place in self._places:
            self._progress.step(f"removing what was replaced in {place.name}")
            # one ms after the newest commit at least, so that files which it replaced are removed even if clocks differ
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

    def _count(self, identities: Identities, landed: Sequence[SearchedFile]) -> None:
        """Count the records that a run would remove, for a dry run."""
        wanted = SoughtRecords(identities=identities)
        for place in self._places:
            paths = [place.table.path / file.path for file in self._files_of(place) if identities.may_be_in(file)]
            counts = count_wanted(self._spark(), paths, wanted)
            place.removal = Removal(rows=sum(counts.values()), files=len(counts))
        found = erase_landed.search(self._spark(), landed, wanted, limit=2**31 - 1)
        self._landed.removal = Removal(rows=len(found.rows))

    def _prove(self, identities: Identities) -> None:
        """Search everything again, and report matches."""
        for place in self._places:
            self._progress.step(f"searching {place.name} again")
            paths = list(_find_data(place.table, self._request.topic))
            counts = count_wanted(self._spark(), paths, SoughtRecords(identities=identities, keys=place.keys))
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
            self._spark(), landed, SoughtRecords(identities=identities, keys=keys), limit=len(identities) + 1000
        )
        self._landed.searched, self._landed.left = len(landed), len(found.rows)
        self._findings += [f"not searched: {one}" for one in (*damage, *found.damage)]
        if len(found.rows):
            self._findings.append(
                f"{len(found.rows)} matches are left in landed files, of records that came meanwhile: run bronze, "
                "silver and this job again"
            )

    def _report_matches(self, place: ErasedTable, counts: Mapping[str, int]) -> None:
        """Add findings: files that still have matches, and files that could not be searched."""
        for path, count in sorted(counts.items()):
            if count == UNREADABLE:
                self._findings.append(f"not searched: {path} is being written, is damaged, or has no such columns")
            else:
                place.left += count
                self._findings.append(f"{count} matches are left in {path}: run the job again")

    def _report_uncopied(self) -> None:
        """Report landed files that bronze has not copied yet.

        A predicate has not been evaluated on their records.
        """
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
            tables=(PrintedTable(title="To be erased" if self._dry_run else "Erased", heads=heads, rows=rows),),
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
    """Return a table; None if it does not exist or has no folder."""
    try:
        folder = settings.folder(name, topic)
    except ConfigError:
        return None
    return find_table(folder)


def _check_decoded(settings: JobSettings, bronze: Table, topic: str) -> None:
    """Raise NotReady if silver has not decoded all of bronze.

    It would otherwise decode rows after this job has searched for them, or find fewer than it counts on.
    """
    if topic in settings.pipeline.silver.topics:
        waiting = find_undecoded(settings, bronze, topic)
        if waiting:
            raise NotReady(
                f"{len(waiting)} files of bronze with records of {topic} are not decoded yet; nothing was changed: run "
                "the job silver first, then this one again"
            )


def _find_data(table: Table, topic: str) -> Iterator[Path]:
    """Yield all data files below a table's folder that may have the topic's records.

    Staged files, and files of other versions, are among them.
    """
    of_topic = f"topic={escape_value(topic)}"
    for path in table.log.files.walk(table.path):
        folders = [part for part in path.parts if part.startswith("topic=")]
        if path.suffix == _DATA_SUFFIX and path.parts[0] != LOG_FOLDER and (not folders or of_topic in folders):
            yield table.path / path


@contextmanager
def _lock_roots(roots: Sequence[Path]) -> Iterator[None]:
    """Hold a lock in each landing folder: two runs would undo each other's files.

    Raises NotReady if another run has a lock.
    """
    with ExitStack() as locks:
        for root in roots:
            lock = locks.enter_context(closing(FileLock(root / _LOCK_FILE)))
            with suppress(OSError):  # the file system has no locks
                if not lock.try_exclusive():
                    raise NotReady(f"{root}: another run of the job {JOB} is at work there; wait until it has ended")
        yield


@contextmanager
def _without_stack_traces() -> Iterator[None]:
    """Suppress pyspark's stack traces of a predicate that is reported here."""
    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
