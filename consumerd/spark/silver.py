# SPDX-License-Identifier: Apache-2.0
"""The job ``silver``: decodes bronze into a table per topic, and the quarantine.

A run decodes the records that were appended to bronze since the last run, in steps of about ``commit_bytes``
(``silver_plan``). Each task writes good records for the topic's table, and bad ones for the quarantine. Two commits
follow, with the same plan name, which names the versions of bronze that the step is between:

1. the quarantine, even without bad records;
2. the topic's table.

Both note in their progress up to which version of bronze they are complete. Nothing is committed unless the counts say
bronze = silver + quarantine.

Example: silver has decoded bronze up to version 10. Versions 11 and 12 have appended 150 records of the topic. The run
decodes 140, and 10 have a bad value. It commits 10 rows to the quarantine and 140 rows to silver, each with progress
12.

A run that dies between the two commits
    The quarantine's progress says 12, silver's 10. The next run makes the same plan, from 10 to 12, decodes again,
    finds the plan's name in the quarantine's log, and commits silver only.

Two runs at the same time
    Both make the same plan. The run whose quarantine commit comes second gets a conflict, and plans again.

A rebuild replaces all rows in one commit, so that readers never see a mix of old and new rows. It decodes in Spark jobs
of about ``commit_bytes``; if it dies, it starts again.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so
from pyspark.sql.pandas.types import from_arrow_schema

from consumerd.config.job import QUARANTINE, JobSettings
from consumerd.errors import ConfigError
from consumerd.spark import latest
from consumerd.spark.decoding.loading import load_decoder
from consumerd.spark.decoding.records import RecordDecoder
from consumerd.spark.job import Progress, Sessions, Silent, Summary
from consumerd.spark.quarantine_marks import copy_marks
from consumerd.spark.quarantine_purged import REBUILDS_COLUMN, find_purged
from consumerd.spark.quarantine_rows import IDENTITY, add_marks
from consumerd.spark.silver_plan import (
    TopicPlan,
    TopicTables,
    are_missing,
    decoded_bronze,
    find_other_sources,
    plan_next,
)
from consumerd.spark.silver_progress import EXPIRED, REBUILDS, encode_position, expired_key, purged_key, rows_behind
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
)
from consumerd.spark.table.commit import DataFile, Operation, TableCommit, cut_files, encode_file, files_of, rows_of
from consumerd.spark.table.errors import TableConflict, TableError, VersionVacuumed
from consumerd.spark.table.files import parse_written
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, to_utc
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.task_rows import FileToRead, divide_by_size, read_batches
from consumerd.spark.table.transaction import Table, Transaction, create_table, open_table, retry_conflicts
from consumerd.spark.tasks import find_task, max_tasks, run_shares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "silver"
"""Name of the job in the tables' commits."""
_WRITTEN: Final = "quarantined boolean, file string"
"""Schema of the rows that tasks return: a staged file, as JSON.

``quarantined`` says for which of the two tables.
"""
COMMIT_BYTES: Final = 2 << 30
"""Default of the approximate bytes of bronze's files that one commit decodes."""
_SILENT: Final = Silent()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTopic:
    """Result of decoding one topic in a run of the job ``silver``.

    Attributes:
        read: number of bronze's records that were decoded or quarantined: ``decoded`` + ``quarantined``.
        version: newest version of the topic's table; None if nothing was committed.
    """

    topic: str
    read: int = 0
    decoded: int = 0
    quarantined: int = 0
    version: int | None = None


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Decode the records that are new in the table ``bronze`` into the topics' tables.

    Returns the summary. Raises ConsumerdError, OSError, and Spark's exceptions.
    """
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
    """Return a topic's tables: bronze, its decoded table, quarantine.

    The last two are created if they do not exist. Raises ConsumerdError, OSError.
    """
    columns = from_arrow_schema(silver_schema(decoder)).json()
    quarantined = from_arrow_schema(QUARANTINE_SCHEMA).json()
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
    """Decode the records of a topic that bronze has and silver does not.

    Args:
        commit_bytes: approximate bytes of bronze's files per commit; in a rebuild, per Spark job.
        rebuild: decode all records again, and replace the topic's table and its part of the quarantine.

    Raises TableError if the decoder's columns do not fit the table, if bronze is another table than before, or if
    counts differ; TableConflict if other jobs keep decoding the same records; VersionVacuumed, ConsumerdError, OSError,
    and Spark's exceptions if a task fails.
    """
    done = DecodedTopic(topic=tables.topic)

    def decode_part() -> tuple[TopicPlan, TableCommit] | None:
        plan = plan_next(tables, commit_bytes=commit_bytes, rebuild=rebuild)
        if plan is None:
            return None
        progress.step(f"decoding {plan.rows} records of {tables.topic}, up to version {plan.until} of bronze")
        return plan, _execute(spark, tables, decoder, plan, commit_bytes)

    while (decoded := retry_conflicts(decode_part)) is not None:
        plan, commit = decoded
        done = DecodedTopic(
            topic=tables.topic,
            read=done.read + plan.rows,
            decoded=done.decoded + commit.rows,
            quarantined=done.quarantined + plan.rows - commit.rows,
            version=commit.version,
        )
        rebuild = False
    # again, since a run without new records has not compared the columns
    _check_columns(tables, tables.silver.snapshot(), decoder)
    return done


def _check_columns(tables: TopicTables, silver: Snapshot, decoder: RecordDecoder) -> None:
    """Raise TableError if the settings drop or change a column of the topic's table."""
    misfit = find_misfit(tables.silver.schema(silver), from_arrow_schema(silver_schema(decoder)))
    if misfit is not None:
        raise TableError(f"{tables.silver.path}: by its settings, {misfit}; decode it anew with silver --rebuild")


def check_counts(tables: TopicTables) -> list[str]:
    """Return a finding if the numbers of rows contradict bronze = silver + quarantine.

    Rows that ``retention``, ``erase`` or a purge has removed are added back. The list is empty if the numbers fit.
    """
    silver = tables.silver.snapshot()
    position = tables.decoded(silver)
    try:
        then = decoded_bronze(tables, position)
    except VersionVacuumed:
        return []  # the log no longer has this version: its count is unknown
    quarantine = tables.quarantine.snapshot()
    bronze, quarantined = (rows_of(files_of(one.files.values(), tables.topic)) for one in (then, quarantine))
    if rows_behind(tables.topic, tables.source, then, silver, quarantine) == 0:
        return []
    expected = bronze + tables.removed(then, silver, quarantine)
    finding = (
        f"topic {tables.topic}: bronze has {bronze} records at version {position.newest} ({expected} by what "
        f"retention, erase and purges have removed), but there are {silver.rows} decoded ones and {quarantined} in "
        "quarantine; decode the topic anew with silver --rebuild"
    )
    return [finding]


def _execute(
    spark: Sessions, tables: TopicTables, decoder: RecordDecoder, plan: TopicPlan, commit_bytes: int
) -> TableCommit:
    """Execute a plan: decode, check the counts, and commit the quarantine and the topic's table."""
    schema = from_arrow_schema(silver_schema(decoder))
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
        # A table that starts with this commit never had the rows that retention has removed from bronze so far. They
        # are counted as removed from it, too, so that the difference is 0.
        begins = plan.operation is Operation.REPLACE or tables.source not in silver.base.progress
        expired = tables.bronze.snapshot(plan.until).progress.get(expired_key(tables.topic), 0)
        good, bad, are_compared = _decode_in_jobs(spark, tables, decoder, plan, (silver, quarantine), commit_bytes)
        if plan.operation is Operation.REPLACE:
            bad = copy_marks(spark, quarantine, tables.topic, bad)
        done = quarantine.find_done()
        # A comparison leaves out rows that an earlier run of the same plan has committed to the quarantine. They are
        # counted from that commit.
        quarantined = done.rows if done is not None and are_compared else rows_of(bad)
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
                **encode_position(plan.end, quarantine.base.progress, tables.quarantine_source, tables.topic),
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
                **encode_position(plan.end, silver.base.progress, tables.source),
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
    """Decode a plan as :func:`_decode` does, a rebuild in several Spark jobs.

    Args:
        job_bytes: approximate bytes of bronze's files per Spark job.
    """
    if plan.operation is not Operation.REPLACE:
        return _decode(sessions, tables, decoder, plan, transactions)
    decoded = [
        _decode(sessions, tables, decoder, replace(plan, files=part), transactions)
        for part in cut_files(plan.files, job_bytes)
    ]
    good = [file for part in decoded for file in part[0]]
    bad = [file for part in decoded for file in part[1]]
    return good, bad, False


def _decode(
    sessions: Sessions,
    tables: TopicTables,
    decoder: RecordDecoder,
    plan: TopicPlan,
    transactions: tuple[Transaction, Transaction],
) -> tuple[list[DataFile], list[DataFile], bool]:
    """Decode a plan's files in Spark's tasks.

    Usually all rows of the files are new. Identities are compared instead, and all rows up to the plan's end are read,
    if vacuum has removed a file of the plan, or if bronze's log no longer says which rows are new.

    Returns the files of good records, those of bad ones, and True if identities were compared.

    Raises TableConflict if vacuum has removed files of a part, of a rebuild, or of a version before bronze's newest
    one. In the first two cases a comparison would find more rows than the plan has; in the third, the version's other
    files may be missing, too. The next plan compares with bronze's newest version; a rebuild starts again.
    """
    if not plan.files:
        return [], [], False
    are_compared = plan.known is not None or are_missing(tables, plan.files)
    is_fixed = plan.is_part or plan.operation is Operation.REPLACE
    if are_compared and plan.known is None and (is_fixed or plan.until < tables.bronze.snapshot().version):
        raise TableConflict(
            f"{tables.bronze.path}: vacuum has removed files that this run was about to decode; run it again, or let "
            "replaced files stay for longer (pipeline.compact.keep_ms)"
        )
    write = _decode_by_comparison if are_compared else _decode_files
    return *write(sessions(), tables, decoder, plan, transactions), are_compared


def _decode_files(
    spark: SparkSession,
    tables: TopicTables,
    decoder: RecordDecoder,
    plan: TopicPlan,
    transactions: tuple[Transaction, Transaction],
) -> tuple[list[DataFile], list[DataFile]]:
    """Decode all rows of the plan's files."""
    files = [_to_read(tables, file) for file in plan.files]
    groups = divide_by_size(files, [file.size for file in plan.files], max_tasks(spark))
    write = _make_task(decoder, *transactions)

    def decode(own: Sequence[FileToRead]) -> Iterator[pa.RecordBatch]:
        return write(batch for file in own for batch in read_batches(file, READ))

    return _sort_written(run_shares(spark, groups, decode, _WRITTEN))


def _decode_by_comparison(
    spark: SparkSession,
    tables: TopicTables,
    decoder: RecordDecoder,
    plan: TopicPlan,
    transactions: tuple[Transaction, Transaction],
) -> tuple[list[DataFile], list[DataFile]]:
    """Decode all rows up to the plan's end that neither table has yet."""
    left = _read_undecoded(spark, tables, plan, transactions).select(*(f"`{name}`" for name in READ.names))
    return _sort_written(left.mapInArrow(_make_task(decoder, *transactions), _WRITTEN))


def _sort_written(written: DataFrame) -> tuple[list[DataFile], list[DataFile]]:
    """Run the tasks; return the files of good records and those of bad ones."""
    rows = written.collect()
    good, bad = (
        [parse_written(row["file"]) for row in rows if row["quarantined"] is quarantined]
        for quarantined in (False, True)
    )
    return good, bad


def _to_read(tables: TopicTables, file: DataFile) -> FileToRead:
    return FileToRead(
        path=str(tables.bronze.path / file.path),
        constants={"topic": tables.topic, "day": date.fromisoformat(file.values[1])},
    )


def _read_undecoded(
    spark: SparkSession, tables: TopicTables, plan: TopicPlan, transactions: tuple[Transaction, Transaction]
) -> DataFrame:
    """Return the rows of bronze whose identities are not in silver, quarantine or purged records."""
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
    """Return the identities of records that were purged since the last rebuild, if any."""
    purged = find_purged(tables.quarantine)
    if purged is None:
        return []
    snapshot = purged.snapshot()
    frame = read_files(spark, purged, files_of(snapshot.files.values(), tables.topic), purged.schema(snapshot))
    rebuilds = quarantine.progress.get(tables.quarantine_rebuilds, 0)
    return [frame.where(F.col(REBUILDS_COLUMN) == rebuilds).select(*IDENTITY)]


def _make_task(
    decoder: RecordDecoder, silver: Transaction, quarantine: Transaction
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that decodes batches, writes files, and yields ``_WRITTEN``."""
    columns = silver_schema(decoder).names, BAD_RECORD.names
    folders = SILVER_FOLDERS, QUARANTINE_FOLDERS
    stagings = [(str(one.staging), one.attempt) for one in (silver, quarantine)]

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = find_task()
        writers = [
            PartitionedWriter(
                Path(staging),
                prefix=f"{attempt}-{task:05d}",
                partition_by=partition_by,
                settings=FileSettings(bounds=BOUNDS),
            )
            for (staging, attempt), partition_by in zip(stagings, folders, strict=True)
        ]
        with ExitStack() as stack:
            for writer in writers:
                stack.enter_context(closing(writer))
            for batch in batches:
                divided = decoder.divide(to_utc(batch))
                for writer, rows, names in zip(writers, (divided.good, divided.bad), columns, strict=True):
                    writer.append(rows.select(names))
            files = [writer.finish() for writer in writers]
        yield _make_result(*files)

    return write


def _make_result(good: Sequence[DataFile], bad: Sequence[DataFile]) -> pa.RecordBatch:
    flags = pa.array([False] * len(good) + [True] * len(bad), pa.bool_())
    texts = pa.array([json.dumps(encode_file(file)) for file in (*good, *bad)], pa.string())
    return pa.RecordBatch.from_arrays([flags, texts], names=["quarantined", "file"])


def _summarize(done: Sequence[DecodedTopic], findings: Sequence[str], seconds: float) -> Summary:
    read = sum(one.read for one in done)
    return Summary(
        numbers={
            "read": read,
            "decoded": sum(one.decoded for one in done),
            "quarantined": sum(one.quarantined for one in done),
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
        notes=() if read else ("bronze has nothing new of these topics",),
    )
