# SPDX-License-Identifier: Apache-2.0
"""Replay with an offset map: restores a topic into another cluster, exactly once.

The target gets what a mirror (sink ``kafka``) had written there: records in the order of their offsets, and in the same
transactions the source position and the map of offsets, under the same keys. So a run that has died is run again, a
mirror of the same group goes on where the replay has ended, and ``consumerd migrate translate`` translates positions.

Steps
    1. The table's log says which offsets bronze has taken, and of which cluster.
    2. The driver creates what is missing in the target, and reads the stored positions.
    3. Spark sorts each log's rows from its position on; tasks write them (``replay_tasks``).

What bronze lacks (compacted records, aborted transactions, rows that ``retention`` or ``erase`` has removed) is a hole
in the map: a position in it is translated to the next record.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import ReplaySection
from consumerd.errors import ConfigError, NotFound, RetriableSinkError
from consumerd.mirror.positions import DEFAULT_GROUP, open_mirror_positions
from consumerd.mirror.records import SourceLog, StoredPosition
from consumerd.mirror.target_topics import PLACE
from consumerd.sinks.kafka.failures import TARGET_ERRORS, explain_failure
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.kafka.sink import KafkaSink
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.spark.job import PrintedTable, Progress, Sessions, Summary
from consumerd.spark.replay_plan import PlannedLog, ReplayedTopics, apply_positions, plan_logs
from consumerd.spark.replay_rows import LogName
from consumerd.spark.replay_tasks import RESULT, SINK_NAME, ReplayTarget, replay_rows, retry_target
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import open_table
from consumerd.spark.tasks import max_tasks
from consumerd.telemetry.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")


class ReplayedLog(NamedTuple):
    """Part of a log that a run has written.

    Attributes:
        first: offset from which it has written.
        position: stored position at its end.
        records: number of records.
    """

    first: int
    position: int
    records: int


def run_mapped(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Restore the topic ``pipeline.replay.topic`` with its offset map; return the summary.

    Raises ConfigError, RetriableSinkError if the target does not answer, TableError, and Spark's exceptions.
    """
    started = time.monotonic()
    replay = settings.pipeline.replay
    if replay.topic is None:
        raise ConfigError("pipeline.replay.topic: missing; name the topic to restore, with --topic TOPIC")
    options = read_options(settings)
    table = open_table(settings.location("bronze"))
    snapshot = table.snapshot()
    if snapshot.covered.cluster is None:
        raise ConfigError(
            f"{table.path}: its log does not say of which cluster the records are, which an offset map has to name: an "
            "earlier release has written it. Run consumerd-spark bronze with this release on a newly landed file first"
        )
    target = ReplayTarget(options=options, group=find_group(settings), cluster=snapshot.covered.cluster)
    planned = plan_logs(snapshot.covered, replay.topic, incarnation=replay.incarnation, partition=replay.partition)
    if not replay.dry_run:
        progress.step(f"preparing {options.bootstrap}")
        prepare_target(target, planned)
    logs = apply_positions(planned, read_positions(target, replay.topic))
    open_logs = [log for log in logs if not log.is_done]
    written: Mapping[LogName, ReplayedLog] = {}
    counts: Mapping[LogName, int] = {}
    if open_logs:
        session = spark()
        rows = choose_rows(session, read_table(session, table.path, snapshot.version), replay.topic, open_logs)
        if replay.dry_run:
            progress.step(f"counting records of {replay.topic} in version {snapshot.version} of {table.path}")
            counts = {LogName(*row[:3]): row[3] for row in rows.groupBy(*LogName._fields).count().collect()}
        else:
            progress.step(f"restoring {replay.topic} from version {snapshot.version} of {table.path}")
            written = write_rows(session, rows, target, logs)
    sent = sum(one.records for one in written.values())
    numbers = {
        "source": str(table.path),
        "version": snapshot.version,
        "topic": replay.topic,
        "target": options.name_topic(replay.topic),
        "group": target.group,
        "cluster": target.cluster,
        "records": sent + sum(counts.values()),
        "sent": sent,
    }
    return Summary(
        numbers={**numbers, "elapsed_s": round(time.monotonic() - started, 3)},
        findings=tuple(_find_passed(logs)),
        notes=tuple(_make_notes(replay, logs)),
        tables=(
            PrintedTable(
                title=f"{replay.topic} to {options.name_topic(replay.topic)}",
                heads=("partition", "incarnation", "landed from", "to", "replayed from", "to", "records"),
                rows=tuple(_describe(log, counts.get(log.name), written.get(log.name)) for log in logs),
            ),
        ),
    )


# -- settings


def read_options(settings: JobSettings) -> KafkaOptions:
    """Return the settings of the sink that writes into the target. Raises ConfigError."""
    replay = settings.pipeline.replay
    given: dict[str, object] = {}
    if replay.sink is not None:
        sink = settings.sinks.get(replay.sink)
        if sink is None or sink.type != "kafka":
            names = sorted(name for name, one in settings.sinks.items() if one.type == "kafka")
            raise ConfigError(
                f"pipeline.replay.sink: there is no sink {replay.sink} of type kafka in the settings"
                f"{'; there is ' + ', '.join(names) if names else ''}"
            )
        given = dict(sink.options)
    if replay.bootstrap_servers is not None:
        given["bootstrap"] = replay.bootstrap_servers
    if "bootstrap" not in given:
        raise ConfigError(
            "pipeline.replay: there is no cluster to restore into; name its brokers with --bootstrap-servers, or a "
            "sink of type kafka in the settings file with --sink"
        )
    if replay.positions_topic is not None:
        given["positions_topic"] = replay.positions_topic
    if replay.target is not None:
        given["topic"] = _make_template(replay.topic or "", replay.target)
    options = KafkaOptions.parse(given, "pipeline.replay" if replay.sink is None else f"sinks.{replay.sink}")
    if options.delivery != "exactly-once":
        raise ConfigError(
            f"sinks.{replay.sink}.delivery: {options.delivery} stores no map of offsets: use exactly-once, or replay "
            "without --map"
        )
    if options.partitioner != "same":
        raise ConfigError(
            f"sinks.{replay.sink}.partitioner: {options.partitioner} stores no map of offsets: use same, or replay "
            "without --map"
        )
    return options


def find_group(settings: JobSettings) -> str:
    """Return the group under which positions are stored.

    A daemon with this settings file and its sink would mirror as a member of the file's group.
    """
    replay = settings.pipeline.replay
    if replay.group is not None:
        return replay.group
    return DEFAULT_GROUP if replay.sink is None or settings.group is None else settings.group.id


def _make_template(topic: str, target: str) -> str:
    """Return the sink's template that gives a topic this name in the target. Raises ConfigError."""
    if topic not in target:
        raise ConfigError(
            f"pipeline.replay.target: with a map, expected a name with {topic} in it, such as old.{topic}, got "
            f"{target}: a mirror, which goes on afterwards, names its topics so"
        )
    return target.replace(topic, PLACE, 1)


# -- the target


def prepare_target(target: ReplayTarget, logs: Sequence[PlannedLog]) -> None:
    """Create the positions topic and the target's topic, if they are missing, and check them.

    Raises ConfigError, RetriableSinkError.
    """
    context = replace(target.make_context(), source_topics=ReplayedTopics(target.cluster, logs))
    mirror = KafkaSink(context, target.options).target

    async def find_partitions() -> None:
        await mirror.prepare()
        for partition in dict.fromkeys(log.partition for log in logs):
            await mirror.find_partition(partition)

    async def prepare() -> None:
        try:
            await retry_target(find_partitions)
        finally:
            await mirror.close()

    _run(prepare())


def read_positions(target: ReplayTarget, topic: str) -> Mapping[SourceLog, StoredPosition]:
    """Return the positions that the target has stored for a topic.

    There are none if the target has no positions topic.

    Raises ConfigError, RetriableSinkError.
    """
    mine = (target.cluster, target.group, topic)
    address = target.options.locate(SINK_NAME, target.group)

    async def read() -> Mapping[SourceLog, StoredPosition]:
        opened = open_mirror_positions(address, target.options.positions_topic, keeps=lambda log: log[:3] == mine)
        async with opened as positions:
            try:
                await positions.refresh()
            except NotFound:
                return {}
            except TARGET_ERRORS as error:
                text = explain_failure(error, "", target.options.positions_topic, "", address.principal)
                raise RetriableSinkError(f"{target.options.bootstrap}: {text}") from error
            found = {log: positions.find(log) for log in positions.list()}
            return {log: state.stored for log, state in found.items() if state is not None}

    return _run(read())


def _run(work: Coroutine[None, None, T]) -> T:
    # in a notebook, this thread has a running loop already
    with LoopThread(nullcontext(), name="consumerd replay") as loop:
        return loop.call(work)


# -- rows


def choose_rows(session: SparkSession, bronze: DataFrame, topic: str, logs: Sequence[PlannedLog]) -> DataFrame:
    """Return the rows of some logs from their positions on, as ``replay_rows`` describes them."""
    positions = session.createDataFrame(
        [(*log.name, log.position) for log in logs],
        "log_broker int, log_partition int, log_incarnation string, position bigint",
    )
    column = F.col
    is_wanted = (
        column("broker").eqNullSafe(column("log_broker"))
        & (column("partition") == column("log_partition"))
        & (column("incarnation") == column("log_incarnation"))
        & (column("offset") >= column("position"))
    )
    rows = bronze.where(column("topic") == F.lit(topic)).join(F.broadcast(positions), is_wanted)
    return rows.select(
        *LogName._fields,
        *("offset", "next_offset", "index"),
        F.unix_millis("timestamp").alias("timestamp"),
        *("timestamp_type", "key", "value", "headers"),
    )


def write_rows(
    session: SparkSession, rows: DataFrame, target: ReplayTarget, logs: Sequence[PlannedLog]
) -> Mapping[LogName, ReplayedLog]:
    """Write rows into the target, in Spark's tasks; return what was written of each log.

    Args:
        rows: result of :func:`choose_rows`.
        logs: all logs; those that are done are left out.
    """
    open_logs = [log for log in logs if not log.is_done]
    named = {log.name: log for log in open_logs}
    ends = session.createDataFrame(
        [(*log.name, log.end) for log in open_logs], "broker int, partition int, incarnation string, offset bigint"
    )
    truncation = F.coalesce(F.get(F.split("incarnation", r"\."), F.lit(1)).cast("int"), F.lit(0))
    partitions = len({log.partition for log in open_logs})
    ordered = (
        rows.unionByName(ends, allowMissingColumns=True)
        .repartition(min(partitions, max_tasks(session)), "broker", "partition")
        .sortWithinPartitions("broker", "partition", truncation, "offset", "index")
    )

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from replay_rows(target, named, batches)

    results = ordered.mapInArrow(write, RESULT).collect()
    return {LogName(*row[:3]): ReplayedLog(row["first"], row["position"], row["records"]) for row in results}


# -- the summary


def _describe(log: PlannedLog, count: int | None, written: ReplayedLog | None) -> tuple[object, ...]:
    head = (str(log.partition.partition), str(log.incarnation), log.start, log.end)
    if written is not None:
        return (*head, *written)
    return (*head, log.position, log.position, 0) if count is None else (*head, log.position, log.end, count)


def _find_passed(logs: Sequence[PlannedLog]) -> Iterator[str]:
    """Yield the logs that cannot be completed."""
    for log in logs:
        if log.passed:
            yield (
                f"{log.partition}: incarnation {log.incarnation} is left out: the target has gone on in a later one "
                "(a mirror has seen the log truncated), and nothing can be put before it. Records of it that the "
                "target lacks can be replayed without --map"
            )


def _make_notes(replay: ReplaySection, logs: Sequence[PlannedLog]) -> Iterator[str]:
    done = [log for log in logs if log.is_done and not log.passed]
    if done:
        yield (
            f"{counted(len(done), 'log')} of {len(logs)} left out: the target has stored a position at or behind the "
            "end"
        )
    if replay.dry_run:
        yield "a dry run: nothing was created and nothing was sent"
