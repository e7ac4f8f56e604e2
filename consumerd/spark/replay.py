# SPDX-License-Identifier: Apache-2.0
"""The job ``replay``: sends records of bronze, or of the quarantine, into a topic.

They are chosen by a range of offsets, a window of time, or the cause of their quarantine. Nothing is sent without a
target that is named. Records of a partition are sent in the order of their incarnations and offsets by one task, which
keeps their order if the target has them in one partition, too. The same offsets are other records in each incarnation,
so a range of them is of the newest one, unless another is named. They are sent at least once: a task that is tried
again repeats records. Kafka gives them new offsets and, if the target's brokers do so, new timestamps.

Records of the quarantine are marked as replayed after the brokers have acknowledged all of them, in one commit. Marked
ones are left out by later runs. A run that dies between sending and marking has sent records that are not marked: the
next run sends them again.
"""

from __future__ import annotations

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
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import Table as DeltaTable
from consumerd.spark.table.transaction import open_table
from consumerd.telemetry.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SENT: Final = ("key", "value", "headers")


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Send what ``pipeline.replay`` chooses. See ``job.Run``."""
    started = time.monotonic()
    replay = settings.pipeline.replay
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
        # after the choice of an incarnation: a second run must not go on to an older one
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
                # held until they are marked: compaction and vacuum may remove the files meanwhile
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
    """Return the rows that the settings choose, of bronze or of the quarantine."""
    column = F.col
    chosen = frame.where(column("topic") == F.lit(replay.topic))
    if replay.partition is not None:
        chosen = chosen.where(column("partition") == replay.partition)
    if replay.start_offset is not None:
        chosen = chosen.where(column("offset") >= replay.start_offset)
    if replay.end_offset is not None:
        chosen = chosen.where(column("offset") < replay.end_offset)
    # 0.8's records have no time of their own
    moment = F.coalesce(column("timestamp"), column("landed"))
    if replay.start_time is not None:
        chosen = chosen.where(moment >= F.lit(replay.start_time))
    if replay.end_time is not None:
        chosen = chosen.where(moment < F.lit(replay.end_time))
    if replay.reason is not None:
        chosen = chosen.where(column("cause") == replay.reason)
    return chosen


def choose_incarnation(chosen: DataFrame, replay: ReplaySection) -> tuple[DataFrame, str | None]:
    """Return the rows of the chosen incarnation, and its name if several were found."""
    if replay.incarnation == "all":
        return chosen, None
    if replay.incarnation is not None:
        return chosen.where(F.col("incarnation") == replay.incarnation), None
    if replay.start_offset is None and replay.end_offset is None:
        return chosen, None
    found = [Incarnation.parse(row[0]) for row in chosen.select("incarnation").distinct().collect()]
    if not found:
        return chosen, None
    newest = str(max(found))
    return chosen.where(F.col("incarnation") == newest), newest if len(found) > 1 else None


def send(
    session: SparkSession, chosen: DataFrame, *, target: str, cluster: dict[str, str], keep_partition: bool = False
) -> None:
    """Write records to a topic, each partition's in the order of their offsets.

    ``cluster`` says where it is, as the data source's options do. Raises what the writer raises.
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
    mark = Mark(at=datetime.now(UTC), target=target)
    try:
        return mark_replayed(session, table, places, topic=topic, plan=f"replay:{uuid.uuid4().hex}", mark=mark)
    except (TableError, OSError) as error:
        raise TableError(
            f"{records} records of {topic} were sent to {target}, but they are not marked as replayed, and the next "
            f"run would send them again: {error}"
        ) from error


def _check(replay: ReplaySection) -> tuple[str, str]:
    """Return source and target topic. Raises ConfigError."""
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
    """Return the data source's options that say where the target's cluster is. Raises ConfigError."""
    replay = settings.pipeline.replay
    if replay.bootstrap_servers is not None:
        return {"kafka.bootstrap.servers": replay.bootstrap_servers}
    if replay.zookeeper is not None:
        return {"zookeeper": replay.zookeeper}
    if settings.cluster is not None:
        return {"zookeeper": settings.cluster.zookeeper}
    raise ConfigError(
        "pipeline.replay: there is no cluster to send to; set cluster.zookeeper, pipeline.replay.zookeeper or "
        "pipeline.replay.bootstrap_servers"
    )


def _incarnation_order() -> tuple[Column, Column]:
    """Return sort columns for incarnations, which are numbers in a text."""
    parts = F.split("incarnation", r"\.")
    return parts[0].cast("bigint"), F.coalesce(F.get(parts, F.lit(1)).cast("int"), F.lit(0))


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
