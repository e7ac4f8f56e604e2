# SPDX-License-Identifier: Apache-2.0
"""The job ``silver``: decodes bronze into a table per topic and the quarantine.

A run decodes the records that were appended to bronze since the last run, in steps of about ``commit_bytes``
(``silver_plan``). Each task writes good records for the topic's table and bad ones for the quarantine. Two commits
follow, both with the name of the step's plan, which says from which version of bronze to which:

1. the quarantine, even without bad records;
2. the topic's table.

If a run dies between them, the next run makes the same plan and finds the quarantine's commit. Of two concurrent runs,
the one whose quarantine commit comes second is refused. Nothing is committed unless the counts say bronze = silver +
quarantine.

A rebuild replaces all rows in one commit, so that no reader sees a table that is rebuilt in part. It decodes in Spark
jobs of the same size; one that dies is begun again.
"""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so

from consumerd.config.job import QUARANTINE, JobSettings
from consumerd.errors import ConfigError
from consumerd.spark import latest
from consumerd.spark.decoding.loading import load_decoder
from consumerd.spark.decoding.records import RecordDecoder
from consumerd.spark.job import Progress, Sessions, Silent, Summary
from consumerd.spark.quarantine_marks import carry_over
from consumerd.spark.quarantine_purged import REBUILDS_COLUMN, find_purged
from consumerd.spark.quarantine_rows import IDENTITY, add_marks
from consumerd.spark.silver_plan import (
    TopicPlan,
    TopicTables,
    cut_files,
    decoded_bronze,
    find_other_sources,
    is_moved,
    plan_next,
)
from consumerd.spark.silver_progress import EXPIRED, REBUILDS, expired_key, purged_key, rows_behind, write_place
from consumerd.spark.silver_tables import (
    BAD_RECORD,
    BOUNDS,
    QUARANTINE_FOLDERS,
    QUARANTINE_SCHEMA,
    READ,
    SILVER,
    SILVER_FOLDERS,
    find_misfit,
    silver_schema,
    to_spark,
)
from consumerd.spark.table.commit import DataFile, Operation, TableCommit, encode_file, files_of, rows_of
from consumerd.spark.table.errors import TableConflict, TableError, VersionVacuumed
from consumerd.spark.table.files import parse_written
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, to_utc
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.task_rows import FileToRead, divide_files, read_batches
from consumerd.spark.table.transaction import Table, Transaction, create_table, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "silver"
_WRITTEN: Final = "quarantined boolean, file string"
COMMIT_BYTES: Final = 2 << 30
"""Default of the bytes of bronze's files that a commit decodes, about."""
_SILENT: Final = Silent()
_TRIES: Final = 3
_TASKS_A_CORE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTopic:
    """Result of a run for one topic."""

    topic: str
    read: int = 0
    decoded: int = 0
    quarantined: int = 0
    version: int | None = None


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Decode what is new in bronze. See ``job.Run``."""
    started = time.monotonic()
    topics = settings.pipeline.silver.topics
    wanted = settings.landing_topics()
    chosen = sorted(topic for topic in topics if wanted is None or topic in wanted)
    if not chosen:
        declared = f"declared {'is' if len(topics) == 1 else 'are'} {', '.join(sorted(topics))}"
        there = f"none of the topics asked for; {declared}" if topics else "no topic is declared"
        raise ConfigError(f"pipeline.silver.topics: {there}, so there is nothing to decode")
    decoders = {topic: load_decoder(topic, topics[topic]) for topic in chosen}
    bronze = open_table(settings.location("bronze"))
    done: list[DecodedTopic] = []
    findings: list[str] = []
    for number, topic in enumerate(chosen):
        tables = open_tables(
            topic,
            decoders[topic],
            bronze=bronze,
            silver=settings.location("silver", topic),
            quarantine=settings.location("quarantine"),
        )
        done.append(
            decode_new(
                spark,
                tables,
                decoders[topic],
                commit_bytes=settings.pipeline.silver.commit_bytes,
                rebuild=settings.pipeline.silver.rebuild,
                progress=progress,
            )
        )
        findings += check_counts(tables)
        if topics[topic].latest:
            progress.step(f"finding the latest values of {topic}")
            latest.refresh(spark, tables.silver, settings.location("latest", topic), topic=topic)
        progress.done(number + 1, len(chosen), "topics")
    return _summarize(done, findings, time.monotonic() - started)


def open_tables(
    topic: str, decoder: RecordDecoder, *, bronze: Table, silver: str | Path, quarantine: str | Path
) -> TopicTables:
    """Return a topic's tables; create those that do not exist. Raises ConsumerdError, OSError."""
    columns = to_spark(silver_schema(decoder)).json()
    quarantined = to_spark(QUARANTINE_SCHEMA).json()
    return TopicTables(
        topic=topic,
        bronze=bronze,
        silver=create_table(silver, name=f"{SILVER} of {topic}", schema=columns, partition_by=SILVER_FOLDERS),
        quarantine=create_table(quarantine, name=QUARANTINE, schema=quarantined, partition_by=QUARANTINE_FOLDERS),
    )


def decode_new(
    spark: Sessions,
    tables: TopicTables,
    decoder: RecordDecoder,
    *,
    commit_bytes: int = COMMIT_BYTES,
    rebuild: bool = False,
    progress: Progress = _SILENT,
) -> DecodedTopic:
    """Decode the records of a topic that bronze has and silver has not.

    Args:
        commit_bytes: bytes of bronze's files that one commit, and one Spark job of a rebuild, decodes, about.
        rebuild: decode all records again, and replace the topic's table and its part of the quarantine.

    Raises TableError if the decoder's columns do not fit the table, if bronze is another table than before, or if
    counts differ; TableConflict if other jobs keep doing the same; VersionVacuumed, ConsumerdError, OSError, and
    Spark's exceptions if a task fails.
    """
    done = DecodedTopic(topic=tables.topic)
    conflicts = 0
    while (plan := plan_next(tables, commit_bytes=commit_bytes, rebuild=rebuild)) is not None:
        progress.step(f"decoding {plan.rows} records of {tables.topic}, up to version {plan.until} of bronze")
        try:
            commit = _carry_out(spark, tables, decoder, plan, commit_bytes)
        except TableConflict:
            conflicts += 1
            if conflicts == _TRIES:
                raise
            continue
        done = DecodedTopic(
            topic=tables.topic,
            read=done.read + plan.rows,
            decoded=done.decoded + commit.rows,
            quarantined=done.quarantined + plan.rows - commit.rows,
            version=commit.version,
        )
        rebuild, conflicts = False, 0
    # a run that has found nothing new has not looked at the columns
    _check_columns(tables, tables.silver.snapshot(), decoder)
    return done


def _check_columns(tables: TopicTables, silver: Snapshot, decoder: RecordDecoder) -> None:
    """Raise TableError if the topic's table has columns that the settings take away or change."""
    misfit = find_misfit(tables.silver.schema(silver), to_spark(silver_schema(decoder)))
    if misfit is not None:
        raise TableError(f"{tables.silver.path}: by its settings, {misfit}; decode it anew with silver --rebuild")


def check_counts(tables: TopicTables) -> list[str]:
    """Return findings if the logs' counts contradict bronze = silver + quarantine."""
    silver = tables.silver.snapshot()
    place = tables.decoded(silver)
    try:
        then = decoded_bronze(tables, place)
    except VersionVacuumed:
        return []  # nobody knows any more
    quarantine = tables.quarantine.snapshot()
    bronze, quarantined = (rows_of(files_of(one.files.values(), tables.topic)) for one in (then, quarantine))
    if rows_behind(tables.topic, tables.source, then, silver, quarantine) == 0:
        return []
    expected = bronze + tables.removed(then, silver, quarantine)
    told = (
        f"topic {tables.topic}: bronze has {bronze} records at version {place.newest} ({expected} by what retention, "
        f"erase and purges have removed), but there are {silver.rows} decoded ones and {quarantined} in quarantine; "
        "decode the topic anew with silver --rebuild"
    )
    return [told]


def _carry_out(
    spark: Sessions, tables: TopicTables, decoder: RecordDecoder, plan: TopicPlan, commit_bytes: int
) -> TableCommit:
    schema = to_spark(silver_schema(decoder))
    with ExitStack() as stack:
        silver, quarantine = (
            stack.enter_context(table.begin(plan=plan.name, job=JOB, operation=plan.operation))
            for table in (tables.silver, tables.quarantine)
        )
        _check_bases(tables, plan, silver, quarantine)
        if plan.operation is not Operation.REPLACE:
            _check_columns(tables, silver.base, decoder)
        rebuilds = quarantine.base.progress.get(tables.quarantine_rebuilds, 0)
        if plan.operation is Operation.REPLACE:
            rebuilds += 1
            silver.remove(silver.base.files)
            quarantine.remove(file.path for file in files_of(quarantine.base.files.values(), tables.topic))
        # a table that begins with this commit never had what retention has removed from bronze before
        begins = plan.operation is Operation.REPLACE or tables.source not in silver.base.progress
        expired = tables.bronze.snapshot(plan.until).progress.get(expired_key(tables.topic), 0)
        good, bad, moved = _decode_in_jobs(spark, tables, decoder, plan, (silver, quarantine), commit_bytes)
        if plan.operation is Operation.REPLACE:
            bad = carry_over(spark, quarantine, tables.topic, bad)
        done = quarantine.find_done()
        # what has moved was read without the records that an earlier run of the plan has put into quarantine
        quarantined = done.rows if done is not None and moved else rows_of(bad)
        counts = {"read": plan.rows, "decoded": rows_of(good), "quarantined": quarantined}
        if counts["read"] != counts["decoded"] + counts["quarantined"]:
            raise TableError(
                f"{tables.bronze.path}: versions {plan.begin.version} to {plan.until} have {counts['read']} records of "
                f"{tables.topic}, but {counts['decoded']} were decoded and {counts['quarantined']} were not; nothing "
                "was committed"
            )
        if done is None:
            quarantine.add(bad)
            progress = {
                **write_place(plan.end, quarantine.base.progress, tables.quarantine_source, tables.topic),
                tables.quarantine_rebuilds: rebuilds,
                **({expired_key(tables.topic): 0} if begins else {}),
                # a rebuild decodes purged records again
                **({purged_key(tables.topic): 0} if plan.operation is Operation.REPLACE else {}),
            }
            marks = add_marks(tables.quarantine.schema(quarantine.base), QUARANTINE_FOLDERS)
            done = quarantine.commit(progress=progress, counts=counts, schema=marks)
        if done.rows != quarantined:
            raise TableError(
                f"{tables.quarantine.path}: version {done.version} has {done.rows} bad records of {tables.topic}, and "
                f"now there are {quarantined}: its settings have changed between two runs; decode it anew with "
                "silver --rebuild"
            )
        silver.add(good)
        columns = schema.json()
        return silver.commit(
            progress={
                **write_place(plan.end, silver.base.progress, tables.source),
                REBUILDS: rebuilds,
                **({EXPIRED: expired} if begins else {}),
                # a rebuild may be from another bronze table than before
                **dict.fromkeys(find_other_sources(silver.base, tables.source), 0),
            },
            counts=counts,
            schema=None if columns == tables.silver.schema(silver.base) else columns,
        )


def _check_bases(tables: TopicTables, plan: TopicPlan, silver: Transaction, quarantine: Transaction) -> None:
    """Raise TableConflict if another run has committed since this one made its plan."""
    if plan.operation is Operation.REPLACE:
        return
    decoded, quarantined = tables.decoded(silver.base), tables.quarantined(quarantine.base)
    if (
        decoded != plan.begin
        or (quarantined != plan.quarantined and plan.name not in quarantine.base.plans)
        or tables.is_half_rebuilt(silver.base, quarantine.base)
    ):
        raise TableConflict(
            f"{tables.silver.path}: another run has decoded {tables.topic} up to version "
            f"{max(decoded, quarantined).newest} of {tables.bronze.path} while this one made its plan; nothing of this "
            "run is visible, run it again (and if that does not help, decode it anew with silver --rebuild)"
        )


def _decode_in_jobs(
    sessions: Sessions,
    tables: TopicTables,
    decoder: RecordDecoder,
    plan: TopicPlan,
    transactions: tuple[Transaction, Transaction],
    job_bytes: int,
) -> tuple[list[DataFile], list[DataFile], bool]:
    """Decode a plan, as :func:`_decode` does.

    A rebuild is decoded in Spark jobs of about ``job_bytes`` of bronze's files each.
    """
    if plan.operation is not Operation.REPLACE:
        return _decode(sessions, tables, decoder, plan, transactions)
    good: list[DataFile] = []
    bad: list[DataFile] = []
    for part in cut_files(plan.files, job_bytes):
        decoded = _decode(sessions, tables, decoder, replace(plan, files=part), transactions)
        good += decoded[0]
        bad += decoded[1]
    return good, bad, False


def _decode(
    sessions: Sessions,
    tables: TopicTables,
    decoder: RecordDecoder,
    plan: TopicPlan,
    transactions: tuple[Transaction, Transaction],
) -> tuple[list[DataFile], list[DataFile], bool]:
    """Decode and write in Spark's tasks.

    Returns the files of good records, those of bad ones, and whether rows were compared.

    Identities are compared if compaction has moved the plan's rows, or if bronze's log does not name them any more.
    Raises TableConflict if rows of a part or a rebuild have moved, since a comparison would find others as well, or those
    of a version before bronze's newest one, since files of that are missing. The next plan compares, or begins again.
    """
    if not plan.files:
        return [], [], False
    moved = plan.known is not None or is_moved(tables, plan.files)
    is_fixed = plan.is_part or plan.operation is Operation.REPLACE
    if moved and plan.known is None and (is_fixed or plan.until < tables.bronze.snapshot().version):
        raise TableConflict(
            f"{tables.bronze.path}: vacuum has removed files that this run was about to decode; run it again, or let "
            "replaced files stay for longer (pipeline.compact.keep_ms)"
        )
    write = _decode_others if moved else _decode_files
    return *write(sessions(), tables, decoder, plan, transactions), moved


def _decode_files(
    spark: SparkSession,
    tables: TopicTables,
    decoder: RecordDecoder,
    plan: TopicPlan,
    transactions: tuple[Transaction, Transaction],
) -> tuple[list[DataFile], list[DataFile]]:
    """Decode all rows of the plan's files."""
    tasks = _TASKS_A_CORE * spark.sparkContext.defaultParallelism
    groups = divide_files([_to_read(tables, file) for file in plan.files], tasks)
    task = _make_task(decoder, *transactions, groups=groups)
    return _sort_written(spark.range(0, len(groups), 1, len(groups)).mapInArrow(task, _WRITTEN))


def _decode_others(
    spark: SparkSession,
    tables: TopicTables,
    decoder: RecordDecoder,
    plan: TopicPlan,
    transactions: tuple[Transaction, Transaction],
) -> tuple[list[DataFile], list[DataFile]]:
    """Decode all rows up to the plan's end that are in neither table yet."""
    left = _read_undecoded(spark, tables, plan, transactions).select(*(f"`{name}`" for name in READ.names))
    return _sort_written(left.mapInArrow(_make_task(decoder, *transactions), _WRITTEN))


def _sort_written(written: DataFrame) -> tuple[list[DataFile], list[DataFile]]:
    """Have the tasks run; return the files of good records and of bad ones."""
    rows = written.collect()
    good, bad = (
        [parse_written(row["file"]) for row in rows if row["quarantined"] is quarantined]
        for quarantined in (False, True)
    )
    return good, bad


def _to_read(tables: TopicTables, file: DataFile) -> FileToRead:
    return FileToRead(
        path=str(tables.bronze.path / file.path),
        size=file.size,
        constants={"topic": tables.topic, "day": date.fromisoformat(file.values[1])},
    )


def _read_undecoded(
    spark: SparkSession, tables: TopicTables, plan: TopicPlan, transactions: tuple[Transaction, Transaction]
) -> DataFrame:
    """Return the rows of bronze that are in neither table yet and were not purged, found by their identities."""
    snapshot = tables.bronze.snapshot(plan.until)
    schema = tables.bronze.schema(snapshot)
    try:
        everything = read_files(spark, tables.bronze, files_of(snapshot.files.values(), tables.topic), schema)
    except VersionVacuumed as error:
        raise VersionVacuumed(f"{error}; or decode {tables.topic} anew with silver --rebuild") from error
    silver, quarantine = (one.base.files.values() for one in transactions)
    done = [
        read_files(spark, table, files, table.schema(base)).select(*IDENTITY)
        for table, files, base in (
            (tables.silver, silver, transactions[0].base),
            (tables.quarantine, files_of(quarantine, tables.topic), transactions[1].base),
        )
    ]
    done += _read_purged(spark, tables, transactions[1].base)
    known = functools.reduce(DataFrame.unionByName, done).alias("known")
    same = [everything[name].eqNullSafe(F.col(f"known.{name}")) for name in IDENTITY]
    return everything.join(known, same, "left_anti")


def _read_purged(spark: SparkSession, tables: TopicTables, quarantine: Snapshot) -> list[DataFrame]:
    """Return the identities of records that were quarantined and purged since the last rebuild, if any."""
    purged = find_purged(tables.quarantine)
    if purged is None:
        return []
    snapshot = purged.snapshot()
    frame = read_files(spark, purged, files_of(snapshot.files.values(), tables.topic), purged.schema(snapshot))
    rebuilds = quarantine.progress.get(tables.quarantine_rebuilds, 0)
    return [frame.where(F.col(REBUILDS_COLUMN) == rebuilds).select(*IDENTITY)]


def _make_task(
    decoder: RecordDecoder,
    silver: Transaction,
    quarantine: Transaction,
    *,
    groups: Sequence[Sequence[FileToRead]] | None = None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that decodes and writes batches, and yields their files as ``_WRITTEN``.

    Args:
        groups: files by partition number, which the task reads itself; its input rows then have no meaning.
    """
    columns = silver_schema(decoder).names, BAD_RECORD.names
    folders = SILVER_FOLDERS, QUARANTINE_FOLDERS
    stagings = [(str(one.staging), one.attempt) for one in (silver, quarantine)]

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.taskAttemptId()
        writers = [
            PartitionedWriter(
                Path(staging),
                prefix=f"{attempt}-{task:05d}",
                partition_by=partition_by,
                settings=FileSettings(bounds=BOUNDS),
            )
            for (staging, attempt), partition_by in zip(stagings, folders, strict=True)
        ]
        try:
            for batch in batches if groups is None else _read_own(groups, batches):
                divided = decoder.divide(to_utc(batch))
                for writer, rows, names in zip(writers, (divided.good, divided.bad), columns, strict=True):
                    writer.append(rows.select(names))
            files = [writer.finish() for writer in writers]
        except BaseException:
            for writer in writers:
                writer.abort()
            raise
        yield _returned(*files)

    return write


def _read_own(groups: Sequence[Sequence[FileToRead]], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None  # this runs in tasks only
    for file in groups[context.partitionId()]:
        yield from read_batches(file, READ)


def _returned(good: Sequence[DataFile], bad: Sequence[DataFile]) -> pa.RecordBatch:
    flags = pa.array([False] * len(good) + [True] * len(bad), pa.bool_())
    texts = pa.array([json.dumps(encode_file(file)) for file in (*good, *bad)], pa.string())
    return pa.RecordBatch.from_arrays([flags, texts], names=["quarantined", "file"])


def _summarize(done: Sequence[DecodedTopic], findings: Sequence[str], seconds: float) -> Summary:
    total = Counter[str]()
    for one in done:
        total.update(read=one.read, decoded=one.decoded, quarantined=one.quarantined)
    return Summary(
        numbers={
            "read": total["read"],
            "decoded": total["decoded"],
            "quarantined": total["quarantined"],
            "topics": {
                one.topic: {
                    "read": one.read,
                    "decoded": one.decoded,
                    "quarantined": one.quarantined,
                    "version": one.version,
                }
                for one in done
            },
            "elapsed_s": round(seconds, 3),
        },
        findings=(
            *(f"topic {one.topic}: {one.quarantined} records are in quarantine" for one in done if one.quarantined),
            *findings,
        ),
        notes=() if total["read"] else ("bronze has nothing new of these topics",),
    )
