"""The job ``silver``: bronze decoded, a table a topic; what cannot be decoded, and what is late, in quarantine.

A run decodes what has been appended to bronze since the last one, in one commit a topic. Rows are decoded once: a task writes the
good ones for the topic's table and the bad ones for the quarantine. The quarantine is committed first, be there bad ones or
none, then the topic's table; both commits bear the name of one plan, which says from which version of bronze to which. A run that
dies between them is followed by one with the same plan, which finds the quarantine done; and of two runs at the same time the one
whose quarantine comes second is refused. Decoding anew that died between them is begun once more. Nothing is
committed unless bronze = silver + quarantine, by the counts of the files.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so

from consumerd.config.job import JobSettings
from consumerd.errors import ConfigError
from consumerd.spark import latest
from consumerd.spark.decoding.loading import load_decoder
from consumerd.spark.decoding.records import RecordDecoder
from consumerd.spark.job import Progress, Sessions, Summary
from consumerd.spark.silver_tables import (
    BOUNDS,
    IDENTITY,
    QUARANTINE,
    QUARANTINE_FOLDERS,
    QUARANTINE_SCHEMA,
    READ,
    SILVER,
    SILVER_FOLDERS,
    find_misfit,
    silver_schema,
    to_spark,
)
from consumerd.spark.table.commit import Commit, DataFile, Operation, encode_file
from consumerd.spark.table.errors import TableConflict, TableError, VersionVacuumed
from consumerd.spark.table.files import parse_written
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, escape_value, to_utc
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table, Transaction, create_table, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "silver"
_WRITTEN: Final = "quarantined boolean, file string"
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTables:
    """Where a topic's records come from, and where they go."""

    topic: str
    bronze: Table
    silver: Table
    quarantine: Table

    @property
    def source(self) -> str:
        """How the topic's table names bronze in its progress."""
        return f"bronze:{self.bronze.record.id}"

    @property
    def quarantine_source(self) -> str:
        """How the quarantine names bronze in its progress, which is one of each topic."""
        return f"{self.source}:{self.topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What a commit is to decode: the rows that were appended to bronze behind version ``after``, up to ``until``."""

    name: str
    operation: Operation
    after: int
    until: int
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """How many records that is."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTopic:
    """What a run has done with a topic."""

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
        raise ConfigError("pipeline.silver.topics: no topic is named, so there is nothing to decode")
    decoders = {topic: load_decoder(topic, topics[topic]) for topic in chosen}
    bronze = open_table(settings.bronze_to_read())
    rebuild = settings.pipeline.silver.rebuild
    done: list[DecodedTopic] = []
    findings: list[str] = []
    for number, topic in enumerate(chosen):
        progress.step(f"decoding {topic}")
        tables = open_tables(
            topic,
            decoders[topic],
            bronze=bronze,
            silver=settings.location("silver", topic),
            quarantine=settings.location("quarantine"),
        )
        done.append(decode_new(spark, tables, decoders[topic], rebuild=rebuild))
        findings += check_counts(tables)
        if topics[topic].latest:
            progress.step(f"finding the latest values of {topic}")
            latest.refresh(spark, tables.silver, settings.location("latest", topic), topic=topic)
        progress.done(number + 1, len(chosen), "topics")
    return _summarize(done, findings, time.monotonic() - started)


def open_tables(
    topic: str, decoder: RecordDecoder, *, bronze: Table, silver: str | Path, quarantine: str | Path
) -> TopicTables:
    """Return a topic's tables, which are made if there are none. Raises ConsumerdError, OSError."""
    columns = to_spark(silver_schema(decoder)).json()
    quarantined = to_spark(QUARANTINE_SCHEMA).json()
    return TopicTables(
        topic=topic,
        bronze=bronze,
        silver=create_table(silver, name=f"{SILVER} of {topic}", schema=columns, partition_by=SILVER_FOLDERS),
        quarantine=create_table(quarantine, name=QUARANTINE, schema=quarantined, partition_by=QUARANTINE_FOLDERS),
    )


def decode_new(spark: Sessions, tables: TopicTables, decoder: RecordDecoder, *, rebuild: bool = False) -> DecodedTopic:
    """Decode what bronze has of a topic and its table has not; all of it, in place of what was decoded, with ``rebuild``.

    Raises TableError where the table's columns are not those of the decoder any more, where bronze is another table than
    before, or where counts differ; TableConflict where other jobs do the same all the time; VersionVacuumed,
    ConsumerdError, OSError, and what Spark raises where a task fails.
    """
    done = DecodedTopic(topic=tables.topic)
    conflicts = 0
    while (plan := _plan(tables, rebuild=rebuild)) is not None:
        try:
            commit = _carry_out(spark, tables, decoder, plan)
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
        rebuild = False
    return done


def check_counts(tables: TopicTables) -> list[str]:
    """Hold bronze against silver and quarantine, as of the version that was decoded last, by what their logs count."""
    silver = tables.silver.snapshot()
    version = silver.progress.get(tables.source, 0)
    bronze = _count(tables.bronze.snapshot(version).files.values(), tables.topic)
    quarantined = _count(tables.quarantine.snapshot().files.values(), tables.topic)
    if bronze == silver.rows + quarantined:
        return []
    told = (
        f"topic {tables.topic}: bronze has {bronze} records at version {version}, but there are {silver.rows} decoded ones and "
        f"{quarantined} in quarantine; decode the topic anew with pipeline.silver.rebuild"
    )
    return [told]


def _plan(tables: TopicTables, *, rebuild: bool) -> TopicPlan | None:
    """Return what is to be decoded next, None where there is nothing."""
    quarantine = tables.quarantine.snapshot()
    snapshot = tables.silver.snapshot()
    newest = tables.bronze.snapshot().version
    if rebuild or _is_half_rebuilt(tables, snapshot, quarantine):
        return TopicPlan(
            name=f"{_rebuilding(tables.topic)}{uuid.uuid4().hex}",
            operation=Operation.REPLACE,
            after=0,
            until=newest,
            files=_of_topic(tables.bronze.snapshot(newest).files.values(), tables.topic),
        )
    others = [name for name in snapshot.progress if name != tables.source]
    after = snapshot.progress.get(tables.source, 0)
    if others or after > newest:
        raise TableError(
            f"{tables.silver.path} was decoded from another table than {tables.bronze.path}; decode it anew with "
            "pipeline.silver.rebuild"
        )
    quarantined = quarantine.progress.get(tables.quarantine_source, 0)
    until = quarantined if quarantined > after else newest
    files = _appended(tables, after, until)
    if not files:
        return None
    return TopicPlan(
        name=f"silver:{tables.topic}:{tables.bronze.record.id}:{after}-{until}:{snapshot.last_replace}",
        operation=Operation.APPEND,
        after=after,
        until=until,
        files=files,
    )


def _rebuilding(topic: str) -> str:
    return f"silver:{topic}:rebuild:"


def _is_half_rebuilt(tables: TopicTables, silver: Snapshot, quarantine: Snapshot) -> bool:
    """Tell whether a run that was to decode everything anew has come as far as the quarantine: it holds bad records of all
    versions then, and the topic's table good ones of the old settings.
    """
    began = _rebuilding(tables.topic)
    newest = max(
        ((version, name) for name, version in quarantine.plans.items() if name.startswith(began)), default=None
    )
    return newest is not None and newest[1] not in silver.plans


def _appended(tables: TopicTables, after: int, until: int) -> tuple[DataFile, ...]:
    if after == 0:
        return _of_topic(tables.bronze.snapshot(until).files.values(), tables.topic)
    found: list[DataFile] = []
    for commit in tables.bronze.log.read_after(after, until):
        if commit.operation is Operation.REPLACE:
            raise TableError(
                f"{tables.bronze.path}: version {commit.version} has changed rows; decode {tables.topic} anew with "
                "pipeline.silver.rebuild"
            )
        if commit.operation is Operation.APPEND:
            found += _of_topic(commit.added, tables.topic)
    return tuple(found)


def _carry_out(spark: Sessions, tables: TopicTables, decoder: RecordDecoder, plan: TopicPlan) -> Commit:
    schema = to_spark(silver_schema(decoder))
    with ExitStack() as stack:
        silver, quarantine = (
            stack.enter_context(table.begin(plan=plan.name, job=JOB, operation=plan.operation))
            for table in (tables.silver, tables.quarantine)
        )
        _check_bases(tables, plan, silver, quarantine)
        old = tables.silver.schema(silver.base)
        misfit = find_misfit(old, schema)
        if misfit is not None and plan.operation is not Operation.REPLACE:
            raise TableError(
                f"{tables.silver.path}: by its settings, {misfit}; decode it anew with pipeline.silver.rebuild"
            )
        if plan.operation is Operation.REPLACE:
            silver.remove(silver.base.files)
            quarantine.remove(file.path for file in _of_topic(quarantine.base.files.values(), tables.topic))
        good, bad, moved = _decode(spark(), tables, decoder, plan, (silver, quarantine))
        done = quarantine.find_done()
        # what has moved was read without the records that an earlier run of the plan has put into quarantine
        quarantined = done.rows if done is not None and moved else _rows(bad)
        counts = {"read": plan.rows, "decoded": _rows(good), "quarantined": quarantined}
        if counts["read"] != counts["decoded"] + counts["quarantined"]:
            raise TableError(
                f"{tables.bronze.path}: versions {plan.after} to {plan.until} have {counts['read']} records of "
                f"{tables.topic}, but {counts['decoded']} were decoded and {counts['quarantined']} were not; nothing was committed"
            )
        if done is None:
            quarantine.add(bad)
            done = quarantine.commit(progress={tables.quarantine_source: plan.until}, counts=counts)
        if done.rows != quarantined:
            raise TableError(
                f"{tables.quarantine.path}: version {done.version} has {done.rows} bad records of {tables.topic}, and now there "
                f"are {quarantined}: its settings have changed between two runs; decode it anew with pipeline.silver.rebuild"
            )
        silver.add(good)
        columns = schema.json()
        return silver.commit(
            progress={tables.source: plan.until}, counts=counts, schema=None if columns == old else columns
        )


def _check_bases(tables: TopicTables, plan: TopicPlan, silver: Transaction, quarantine: Transaction) -> None:
    """Raise TableConflict where another run has come between this one's plan and its beginning."""
    if plan.operation is Operation.REPLACE:
        return
    decoded = silver.base.progress.get(tables.source, 0)
    quarantined = quarantine.base.progress.get(tables.quarantine_source, 0)
    if (
        decoded != plan.after
        or (quarantined > plan.after and plan.name not in quarantine.base.plans)
        or _is_half_rebuilt(tables, silver.base, quarantine.base)
    ):
        raise TableConflict(
            f"{tables.silver.path}: another run has decoded {tables.topic} up to version {max(decoded, quarantined)} of "
            f"{tables.bronze.path} while this one made its plan; nothing of this run is visible, run it again (and where that "
            "does not help, decode it anew with pipeline.silver.rebuild)"
        )


def _decode(
    spark: SparkSession,
    tables: TopicTables,
    decoder: RecordDecoder,
    plan: TopicPlan,
    transactions: tuple[Transaction, Transaction],
) -> tuple[list[DataFile], list[DataFile], bool]:
    """Have tasks decode and write; return the files of good and of bad records, and whether compaction has moved the plan's."""
    if not plan.files:
        return [], [], False
    frame, moved = _read_planned(spark, tables, plan, transactions)
    write = _make_task(decoder, *transactions)
    rows = frame.select(*(f"`{name}`" for name in READ)).mapInArrow(write, _WRITTEN).collect()
    good, bad = (
        [parse_written(row["file"]) for row in rows if row["quarantined"] is quarantined]
        for quarantined in (False, True)
    )
    return good, bad, moved


def _read_planned(
    spark: SparkSession, tables: TopicTables, plan: TopicPlan, transactions: tuple[Transaction, Transaction]
) -> tuple[DataFrame, bool]:
    """Return a plan's rows; where compaction and vacuum have taken their files, what of bronze is in neither table yet, and True."""
    snapshot = tables.bronze.snapshot(plan.until)
    schema = tables.bronze.schema(snapshot)
    try:
        return read_files(spark, tables.bronze, plan.files, schema), False
    except VersionVacuumed:
        pass
    try:
        everything = read_files(spark, tables.bronze, _of_topic(snapshot.files.values(), tables.topic), schema)
    except VersionVacuumed as error:
        raise VersionVacuumed(f"{error}; or decode {tables.topic} anew with pipeline.silver.rebuild") from error
    silver, quarantine = (one.base.files.values() for one in transactions)
    done = [
        read_files(spark, table, files, table.schema(base)).select(*IDENTITY)
        for table, files, base in (
            (tables.silver, silver, transactions[0].base),
            (tables.quarantine, _of_topic(quarantine, tables.topic), transactions[1].base),
        )
    ]
    known = done[0].unionByName(done[1]).alias("known")
    same = [everything[name].eqNullSafe(F.col(f"known.{name}")) for name in IDENTITY]
    return everything.join(known, same, "left_anti"), True


def _make_task(
    decoder: RecordDecoder, silver: Transaction, quarantine: Transaction
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task does, for ``mapInArrow``: decode batches, write both kinds, return the files as ``_WRITTEN``."""
    columns = silver_schema(decoder).names, QUARANTINE_SCHEMA.names
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
            for batch in batches:
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


def _returned(good: Sequence[DataFile], bad: Sequence[DataFile]) -> pa.RecordBatch:
    flags = pa.array([False] * len(good) + [True] * len(bad), pa.bool_())
    texts = pa.array([json.dumps(encode_file(file)) for file in (*good, *bad)], pa.string())
    return pa.RecordBatch.from_arrays([flags, texts], names=["quarantined", "file"])


def _of_topic(files: Iterable[DataFile], topic: str) -> tuple[DataFile, ...]:
    folder = escape_value(topic)
    return tuple(file for file in files if file.values[:1] == (folder,))


def _count(files: Iterable[DataFile], topic: str) -> int:
    return _rows(_of_topic(files, topic))


def _rows(files: Iterable[DataFile]) -> int:
    return sum(file.rows for file in files)


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
