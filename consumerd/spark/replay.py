# SPDX-License-Identifier: Apache-2.0
"""The job ``replay``: sends records of bronze, or of the quarantine, to a topic.

Records are chosen by a range of offsets, a window of time, or the cause of their quarantine. Nothing is sent unless a
target topic is given.

With a map of offsets (``pipeline.replay.map``) it restores a topic exactly once instead: see ``replay_mapped``.

Delivery
    At least once: a task that Spark runs again repeats its records. Kafka assigns new offsets and, depending on the
    target's settings, new timestamps.

Order
    One task sends all records of a partition, by incarnation and offset. So a partition's order is kept if its records
    go to one partition of the target.

Incarnations
    After a topic was re-created, an offset names another record. A range of offsets is therefore of the newest
    incarnation, unless the settings name one.

    Example: bronze has offsets 0-499 of ``orders`` before its re-creation (incarnation 7) and 0-299 after it
    (incarnation 9). ``--start-offset 100 --end-offset 200`` sends 100 records of incarnation 9; with ``--incarnation
    all`` it sends 200.

Quarantine
    When the brokers have acknowledged all records, one commit marks them as replayed, and later runs leave them out. A
    run that dies before this commit has sent records without a mark; the next run sends them again.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so

from consumerd.config.job import QUARANTINE, JobSettings
from consumerd.config.pipeline import ReplaySection
from consumerd.errors import ConfigError
from consumerd.model import Incarnation
from consumerd.spark.job import PrintedTable, Progress, Sessions, Summary
from consumerd.spark.quarantine_marks import Mark, find_places, mark_replayed, with_marks
from consumerd.spark.quarantine_rows import REPLAYED
from consumerd.spark.replay_mapped import run_mapped
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import Table as DeltaTable
from consumerd.spark.table.transaction import open_table
from consumerd.telemetry.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SENT: Final = ("key", "value", "headers")
"""Columns of a record that are sent to the target topic."""


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Send the records that ``pipeline.replay`` chooses to a topic; return the summary.

    Raises ConfigError, TableError, and Spark's exceptions; with a map, RetriableSinkError if the target does not
    answer.
    """
    started = time.monotonic()
    replay = settings.pipeline.replay
    if replay.map:
        return run_mapped(spark, settings, progress)
    topic, target = _check(replay)
    cluster = {} if replay.dry_run else _cluster(settings)
    place = settings.location(replay.source)
    table = open_table(place)
    version = table.snapshot().version
    progress.step(f"choosing records of {topic} in version {version} of {table.path}")
    session = spark()
    rows = read_table(session, table.path, version)
    if replay.source == QUARANTINE:
        rows = with_marks(rows)
    chosen, incarnation = choose_incarnation(choose(rows, replay), replay)
    left_out = 0
    if replay.source == QUARANTINE and not replay.again:
        # Marked rows are left out after the incarnation is chosen. Otherwise a second run would find the newest one
        # empty, and send records of an older one.
        left_out = chosen.where(F.col(REPLAYED).isNotNull()).count()
        chosen = chosen.where(F.col(REPLAYED).isNull())
    partitions = _count(chosen)
    records = sum(row[4] for row in partitions)
    numbers = {
        "source": str(table.path),
        "version": version,
        "topic": topic,
        "target": target,
        "records": records,
        "bytes": sum(row[5] for row in partitions),
        "replayed_before": left_out,
        "sent": 0,
        "marked": 0,
    }
    if records and not replay.dry_run:
        with ExitStack() as kept:
            places = None
            if replay.source == QUARANTINE:
                # kept in Spark until they are marked: compaction and vacuum may remove the files meanwhile
                places = find_places(chosen).persist()
                kept.callback(places.unpersist)
                places.count()
            progress.step(f"sending {records} records to {target}")
            send(session, chosen, target=target, cluster=cluster, keep_partition=replay.keep_partition)
            numbers["sent"] = records
            if places is not None:
                progress.step(f"marking {records} records as replayed")
                numbers["marked"] = _mark(session, table, places, topic=topic, target=target, records=records)
    heads = ("partition", "incarnation", "first", "last", "records", "bytes")
    return Summary(
        numbers={**numbers, "elapsed_s": round(time.monotonic() - started, 3)},
        notes=_notes(replay, numbers, incarnation),
        tables=(PrintedTable(title=f"{topic} to {target}", heads=heads, rows=tuple(partitions)),),
    )


def choose(frame: DataFrame, replay: ReplaySection) -> DataFrame:
    """Return the rows of bronze or the quarantine that the settings choose."""
    column = F.col
    # records of Kafka 0.8 and 0.9 have no timestamp
    moment = F.coalesce(column("timestamp"), column("landed"))
    conditions = (
        (replay.partition, column("partition") == F.lit(replay.partition)),
        (replay.start_offset, column("offset") >= F.lit(replay.start_offset)),
        (replay.end_offset, column("offset") < F.lit(replay.end_offset)),
        (replay.start_time, moment >= F.lit(replay.start_time)),
        (replay.end_time, moment < F.lit(replay.end_time)),
        (replay.reason, column("cause") == F.lit(replay.reason)),
    )
    given = [condition for value, condition in conditions if value is not None]
    return functools.reduce(DataFrame.where, given, frame.where(column("topic") == F.lit(replay.topic)))


def choose_incarnation(chosen: DataFrame, replay: ReplaySection) -> tuple[DataFrame, str | None]:
    """Return the rows of one incarnation of the topic, and the incarnation's name.

    An incarnation is one creation of the topic. With a range of offsets the rows are of the newest incarnation, unless
    the settings name another or all. The name is None unless the newest was chosen among several.
    """
    if replay.incarnation == "all":
        return chosen, None
    if replay.incarnation is not None:
        return chosen.where(F.col("incarnation") == replay.incarnation), None
    if replay.start_offset is None and replay.end_offset is None:
        return chosen, None
    found = [Incarnation.parse(row[0]) for row in chosen.select("incarnation").distinct().collect()]
    if not found:
        return chosen, None
    if len({one.topic_text for one in found}) > 1 and any(one.topic_id for one in found):
        raise ConfigError(
            f"the table has these offsets of several incarnations of {replay.topic}, and topic ids do not tell which "
            f"is the newest: name one with --incarnation, or all: {', '.join(map(str, sorted(found)))}"
        )
    newest = str(max(found))
    return chosen.where(F.col("incarnation") == newest), newest if len(found) > 1 else None


def send(
    session: SparkSession, chosen: DataFrame, *, target: str, cluster: dict[str, str], keep_partition: bool = False
) -> None:
    """Write records to a topic, in the order of their offsets within each source partition.

    Args:
        target: topic to write to.
        cluster: address of the cluster, as options of the data source ``consumerd``.
        keep_partition: write each record to the partition with the number of its source partition.

    Raises the exceptions of the data source's writer.
    """
    from consumerd.spark import register

    register(session)
    columns = (*_SENT, "partition") if keep_partition else _SENT
    ordered = chosen.repartition("broker", "partition").sortWithinPartitions(
        "broker", "partition", *_incarnation_order(), "offset", "index"
    )
    writer = ordered.select(*columns).write.format("consumerd").mode("append")
    writer.options(**{**cluster, "topic": target}).save()


def _mark(session: SparkSession, table: DeltaTable, places: DataFrame, *, topic: str, target: str, records: int) -> int:
    """Mark sent records in the quarantine; return their number. Raises TableError."""
    mark = Mark(at=datetime.now(UTC), target=target)
    try:
        return mark_replayed(session, table, places, topic=topic, plan=f"replay:{uuid.uuid4().hex}", mark=mark)
    except (TableError, OSError) as error:
        raise TableError(
            f"{records} records of {topic} were sent to {target}, but they are not marked as replayed, and the next "
            f"run would send them again: {error}"
        ) from error


def _check(replay: ReplaySection) -> tuple[str, str]:
    """Return source and target topic. Raises ConfigError if one is missing."""
    if replay.topic is None:
        raise ConfigError(
            "pipeline.replay.topic: missing; name the topic whose records are to be sent, with --topic TOPIC"
        )
    if replay.target is None:
        raise ConfigError(
            "pipeline.replay.target: missing; nothing is sent without a target: name the topic that the records go to, "
            "with --target TOPIC"
        )
    return replay.topic, replay.target


def _cluster(settings: JobSettings) -> dict[str, str]:
    """Return the target cluster's address as options of the data source. Raises ConfigError."""
    replay = settings.pipeline.replay
    if replay.bootstrap_servers is not None:
        return {"kafka.bootstrap.servers": replay.bootstrap_servers}
    if replay.zookeeper is not None:
        return {"zookeeper": replay.zookeeper}
    if settings.cluster is not None and settings.cluster.bootstrap is not None:
        return {"kafka.bootstrap.servers": settings.cluster.bootstrap}
    if settings.cluster is not None and settings.cluster.zookeeper is not None:
        return {"zookeeper": settings.cluster.zookeeper}
    raise ConfigError(
        "pipeline.replay: there is no cluster to send to; set cluster.zookeeper, pipeline.replay.zookeeper or "
        "pipeline.replay.bootstrap_servers"
    )


def _incarnation_order() -> tuple[Column, Column, Column]:
    """Return sort columns for incarnations: ``7.10`` comes after ``7.9``.

    Topic ids have no order; they are sorted as text.
    """
    parts = F.split("incarnation", r"\.")
    return parts[0].try_cast("bigint"), parts[0], F.coalesce(F.get(parts, F.lit(1)).cast("int"), F.lit(0))


def _count(chosen: DataFrame) -> list[tuple[int, str, int, int, int, int]]:
    """Return partition, incarnation, first and last offset, records and bytes."""
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    found = chosen.groupBy("partition", "incarnation").agg(F.min("offset"), F.max("offset"), F.count("*"), F.sum(size))
    ordered = found.orderBy("partition", *_incarnation_order())
    return [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in ordered.collect()]


def _notes(replay: ReplaySection, numbers: Mapping[str, object], newest: str | None) -> tuple[str, ...]:
    records, left_out, marked = (int(str(numbers[key])) for key in ("records", "replayed_before", "marked"))
    notes = []
    if not records and not left_out:
        return (f"nothing of topic {replay.topic} is chosen: no such topic in the table, or nothing in the range",)
    if left_out:
        notes.append(f"{counted(left_out, 'record')} left out, since replayed before (--again sends them, too)")
    if newest is not None:
        notes.append(
            f"the table has these offsets of several incarnations of {replay.topic}: chosen is {newest}, the newest; "
            "name another with --incarnation, or all"
        )
    if replay.dry_run:
        notes.append("a dry run: nothing was sent")
    elif replay.source == QUARANTINE and marked < records:
        notes.append(f"{counted(records - marked, 'record')} not marked: they are no longer in the quarantine")
    return tuple(notes)
