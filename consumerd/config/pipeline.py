# SPDX-License-Identifier: Apache-2.0
"""The settings section ``pipeline``, for the jobs of ``consumerd-spark``.

``config.job`` adds the other sections that jobs read, and finds the tables' paths. The daemon validates this section,
and does not use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, field_validator, model_validator

from consumerd.config.pipeline_topics import SilverTopics
from consumerd.config.section import (
    Bytes,
    FilePath,
    Folder,
    Milliseconds,
    Section,
    SettingFault,
    TopicName,
    WholeNumber,
    in_our_words,
    refuse,
)
from consumerd.model import Incarnation
from consumerd.sinks.option_types import read_place
from consumerd.zk.connect_string import parse_connect_string

Compression = Literal["zstd", "snappy", "none"]


def _check_scheme(value: str) -> str:
    """Refuse URLs of object stores: tables need links and fsync."""
    scheme, separator, _ = value.partition("://")
    if separator and scheme != "file":
        raise ValueError(f"{value!r}: expected a folder of a mounted file system, not a URL")
    return value


Place = Annotated[str, BeforeValidator(read_place), AfterValidator(_check_scheme)]
"""Path of a folder, or its ``file:`` URL."""


class LandingSection(Section):
    """Settings of the files that sinks have landed, and that jobs read."""

    roots: tuple[Folder, ...] = Field(default=(), description="Landing folders; none: the path of each file sink.")
    topics: tuple[TopicName, ...] = Field(default=(), description="Only these topics; none: all that have been landed.")

    @model_validator(mode="after")
    def _entries_differ(self) -> Self:
        refuse(
            SettingFault(((name, index),), f"{entry} is given twice: give each once")
            for name, entries in (("roots", self.roots), ("topics", self.topics))
            for index, entry in enumerate(entries)
            if entry in entries[:index]
        )
        return self


class Audit(Section):
    """Settings of the job ``audit``, which checks landed files for gaps and duplicates."""

    footers: bool = Field(default=True, description="Open every file; false: names, and each chain's last file.")
    proof: bool = Field(default=False, description="Read all landed data, too, and hold them against the names.")
    positions: bool = Field(default=True, description="Hold the chains against the group's committed positions.")
    html: FilePath | None = Field(default=None, description="Write a page with plots.")
    json_file: FilePath | None = Field(default=None, description="Write all that was found, as JSON.")


class Bronze(Section):
    """Settings of the bronze table, which holds each landed record once."""

    path: Place | None = Field(default=None, description="The table's folder; none: `bronze` below pipeline.path.")
    compression: Compression = "zstd"
    compression_level: WholeNumber = Field(default=1, ge=-7, le=22)
    commit_bytes: Bytes = Field(default=2 << 30, description="A commit takes over this much of landed data, about.")

    @model_validator(mode="after")
    def _level_is_used(self) -> Self:
        if self.compression != "zstd" and "compression_level" in self.model_fields_set:
            message = f"compression {self.compression} has no levels: remove it, or write compression: zstd"
            refuse([SettingFault(("compression_level",), message)])
        return self


class Silver(Section):
    """Settings of the silver tables: decoded records, one table per topic.

    Bad and late records go to a quarantine table.
    """

    path: Place | None = Field(
        default=None, description="Below it a table a topic; none: `silver` below pipeline.path."
    )
    quarantine: Place | None = Field(
        default=None, description="The table of bad and late records; none: `quarantine` below path."
    )
    latest: Place | None = Field(
        default=None, description="Below it a table a topic; none: `latest` below pipeline.path."
    )
    commit_bytes: Bytes = Field(default=2 << 30, description="A commit decodes this much of bronze's files, about.")
    rebuild: bool = Field(default=False, description="Decode all of bronze anew, in place of what was decoded before.")
    topics: SilverTopics = Field(default={}, description="How each topic is decoded.")


class Compact(Section):
    """Settings of the compaction of tables: small files are joined, replaced files removed."""

    target_bytes: Bytes = Field(default=256 << 20, description="How large files are made, about.")
    min_files: WholeNumber = Field(default=4, ge=2, description="Partitions with fewer small files are left alone.")
    keep_ms: Milliseconds = Field(
        default=86_400_000, description="Replaced files stay this long for readers of older versions."
    )
    keep_log_ms: Milliseconds = Field(
        default=604_800_000, description="Commits stay this long in a table's log, and as long as files do."
    )


class Retention(Section):
    """Ages at which the job ``retention`` removes landed files and table rows; null means never."""

    landing_ms: Milliseconds | None = Field(
        default=None, description="Landed files that bronze has, and that are not the newest of their chain."
    )
    bronze_ms: Milliseconds | None = Field(default=None, description="Rows of bronze, by whole days (UTC).")
    silver_ms: Milliseconds | None = Field(default=None, description="Rows of the topics' tables; not below bronze_ms.")
    quarantine_ms: Milliseconds | None = Field(default=None, description="Rows of the quarantine; not below bronze_ms.")
    dry_run: bool = Field(default=False, description="Say what would be removed, and remove nothing.")

    @model_validator(mode="after")
    def _bronze_goes_first(self) -> Self:
        refuse(
            SettingFault(
                (name, "bronze_ms"),
                f"{name} must not be below bronze_ms"
                + (" (which keeps rows for ever)" if self.bronze_ms is None else f" ({self.bronze_ms})")
                + ": rows that bronze still has would be decoded again",
            )
            for name, keep_ms in (("silver_ms", self.silver_ms), ("quarantine_ms", self.quarantine_ms))
            if keep_ms is not None and (self.bronze_ms is None or keep_ms < self.bronze_ms)
        )
        return self


class Stats(Section):
    """Settings of the table of statistics by topic and hour."""

    path: Place | None = Field(default=None, description="The table's folder; none: `stats` below pipeline.path.")
    distinct_error: float = Field(
        default=0.05, gt=0, lt=0.4, description="Relative error of the number of distinct keys."
    )


def _check_incarnation(value: str) -> str:
    if value != "all":
        try:
            Incarnation.parse(value)
        except ValueError as error:
            raise ValueError(
                f"expected all, or an incarnation as bronze has it, such as 7 or 7.1, got {value!r}"
            ) from error
    return value


def _check_hexadecimal(value: str) -> str:
    if not re.fullmatch(r"([0-9a-fA-F]{2})*", value):
        raise ValueError("expected pairs of hexadecimal digits, such as 00ff")
    return value


class ReplaySection(Section):
    """Settings of the job ``replay``: the records that it sends to a topic.

    Nothing is sent without a target.
    """

    source: Literal["bronze", "quarantine"] = "bronze"
    topic: TopicName | None = Field(default=None, description="The topic whose records are sent.")
    partition: WholeNumber | None = Field(default=None, ge=0)
    start_offset: WholeNumber | None = Field(default=None, ge=0)
    end_offset: WholeNumber | None = Field(
        default=None, ge=0, description="The first offset that is not sent any more."
    )
    incarnation: Annotated[str, AfterValidator(_check_incarnation)] | None = Field(
        default=None,
        description="Whose offsets they are, as bronze has it, or all. None: with offsets the newest, else all.",
    )
    start_time: AwareDatetime | None = None
    end_time: AwareDatetime | None = Field(default=None, description="The first moment that is not sent any more.")
    reason: str | None = Field(default=None, description="Of the quarantine, only records with this reason.")
    again: bool = Field(default=False, description="Of the quarantine, also records that were replayed before.")
    target: TopicName | None = Field(default=None, description="The topic that they are sent to.")
    zookeeper: Annotated[str, in_our_words(parse_connect_string)] | None = Field(
        default=None, description="The target's cluster; none: cluster.zookeeper."
    )
    bootstrap_servers: str | None = Field(default=None, description="The target's cluster by its brokers, instead.")
    keep_partition: bool = Field(
        default=False, description="Send to the partition of the same number, instead of by key."
    )
    map: bool = Field(
        default=False,
        description="Restore the topic into another cluster: each record once, with positions and a map of offsets.",
    )
    group: str | None = Field(
        default=None,
        min_length=1,
        description="With map: the mirror's group; none: with sink group.id, else its default.",
    )
    positions_topic: TopicName | None = Field(
        default=None, description="With map: the topic in the target with positions and maps; none: the mirror's."
    )
    sink: str | None = Field(
        default=None, description="With map: the sink of type kafka whose settings say how the target is reached."
    )
    dry_run: bool = False

    @model_validator(mode="after")
    def _ranges_fit(self) -> Self:
        refuse(self._find_faults())
        return self

    def _find_faults(self) -> Iterator[SettingFault]:
        first, end = self.start_offset, self.end_offset
        if first is not None and end is not None and first >= end:
            yield SettingFault(
                ("start_offset", "end_offset"), f"start_offset must be below end_offset ({end}), got {first}"
            )
        if (first is not None or end is not None) and self.partition is None:
            yield SettingFault(
                ("start_offset" if first is not None else "end_offset",),
                "offsets are those of a partition: give partition, too",
            )
        start_time, end_time = self.start_time, self.end_time
        if isinstance(start_time, datetime) and isinstance(end_time, datetime) and start_time >= end_time:
            yield SettingFault(("start_time", "end_time"), "start_time must be before end_time")
        if self.reason is not None and self.source != "quarantine":
            yield SettingFault(("reason",), "reason goes with source: quarantine")
        if self.again and self.source != "quarantine":
            yield SettingFault(("again",), "again goes with source: quarantine; records of bronze have no mark")
        if self.zookeeper is not None and self.bootstrap_servers is not None:
            yield SettingFault(("zookeeper", "bootstrap_servers"), "give either zookeeper or bootstrap_servers")
        yield from self._find_map_faults()

    def _find_map_faults(self) -> Iterator[SettingFault]:
        given = [name for name in ("group", "positions_topic", "sink") if getattr(self, name) is not None]
        if not self.map:
            yield from (SettingFault((name,), f"{name} goes with map: true") for name in given)
            return
        if self.source != "bronze":
            yield SettingFault(("source",), "a map is of bronze: records of the quarantine are only a part of a topic")
        for name in ("start_offset", "end_offset", "start_time", "end_time"):
            if getattr(self, name) is not None:
                yield SettingFault(
                    (name,), f"{name} does not go with map: all records are restored, from the stored position on"
                )
        if self.zookeeper is not None:
            yield SettingFault(("zookeeper",), "zookeeper does not go with map: give bootstrap_servers, or sink")
        if self.keep_partition:
            yield SettingFault(("keep_partition",), "keep_partition does not go with map, which always does so")


class Erase(Section):
    """Settings of the job ``erase``: the records that it removes.

    Exactly one of key, key_hex, keys_file and where selects them.
    """

    topic: str | None = Field(default=None, description="The topic whose records are erased.")
    key: str | None = Field(default=None, description="Records with this key, as text (UTF-8).")
    key_hex: Annotated[str, AfterValidator(_check_hexadecimal)] | None = Field(
        default=None, description="Records with this key, as hexadecimal digits."
    )
    keys_file: FilePath | None = Field(default=None, description="Records with one of these keys, one a line.")
    keys_are_hex: bool = Field(default=False, description="Lines of keys_file are hexadecimal digits, not text.")
    where: str | None = Field(default=None, description="Records for which this predicate of Spark SQL is true.")
    where_in: Literal["bronze", "silver"] | None = Field(
        default=None,
        description="The table with the predicate's columns; none: silver if the topic is declared there, else bronze.",
    )
    max_records: WholeNumber = Field(default=5_000_000, ge=1, description="A run that would erase more is refused.")
    report: FilePath | None = Field(default=None, description="Write what was done, and the proof, as JSON.")
    dry_run: bool = Field(default=False, description="Say what would be erased, and change nothing.")

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        choices = {"key": self.key, "key_hex": self.key_hex, "keys_file": self.keys_file, "where": self.where}
        given = [name for name, value in choices.items() if value is not None]
        found = []
        if len(given) > 1:
            found.append(
                SettingFault(tuple(given), f"give one of key, key_hex, keys_file and where, not {' and '.join(given)}")
            )
        if self.where_in is not None and self.where is None:
            found.append(SettingFault(("where_in",), "where_in goes with where"))
        if self.keys_are_hex and self.keys_file is None:
            found.append(SettingFault(("keys_are_hex",), "keys_are_hex goes with keys_file"))
        refuse(found)
        return self


_MEMORY: Final = re.compile(r"[1-9][0-9]*[kmgt]b?")


def _check_memory(value: str) -> str:
    """Check an amount of memory in Java's notation."""
    if not _MEMORY.fullmatch(value.lower()):
        raise ValueError(f"expected an amount of memory as Java writes it, such as 512m or 2g, got {value!r}")
    return value.lower().removesuffix("b")


def _write_as_spark(value: object) -> object:
    """Turn a number or boolean of YAML into the text that Spark reads."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


class SessionSection(Section):
    """Settings of the Spark session, for a job that is not started by ``spark-submit``."""

    master: str | None = Field(default=None, description="None: what spark-submit says, else local[*].")
    driver_memory: Annotated[str, AfterValidator(_check_memory)] = "1g"
    settings: dict[str, Annotated[str, BeforeValidator(_write_as_spark)]] = Field(
        default={}, description="Spark's own settings by their names."
    )

    @field_validator("settings")
    @classmethod
    def _names_are_sparks(cls, settings: dict[str, str]) -> dict[str, str]:
        refuse(
            SettingFault(((name,),), f"Spark reads only names that begin with spark.: did you mean spark.{name}?")
            for name in settings
            if not name.startswith("spark.")
        )
        return settings


def _check_gateway(value: str) -> str:
    if not re.fullmatch(r"https?://\S+", value):
        raise ValueError("expected the URL of a Pushgateway, such as http://pushgateway:9091")
    return value


class JobMetrics(Section):
    """Settings of the metrics that each job writes at its end."""

    folder: Folder | None = Field(
        default=None, description="Write consumerd_<group>_<job>.prom here, for node_exporter's textfile collector."
    )
    push_gateway: Annotated[str, AfterValidator(_check_gateway)] | None = Field(
        default=None, description="Push to this Pushgateway, such as http://host:9091."
    )


class Pipeline(Section):
    """Settings of all pipeline jobs."""

    path: Place | None = Field(default=None, description="The folder of all tables that have no path of their own.")
    landing: LandingSection = LandingSection()
    audit: Audit = Audit()
    bronze: Bronze = Bronze()
    silver: Silver = Silver()
    compact: Compact = Compact()
    stats: Stats = Stats()
    replay: ReplaySection = ReplaySection()
    retention: Retention = Retention()
    erase: Erase = Erase()
    metrics: JobMetrics = JobMetrics()
    spark: SessionSection = SessionSection()

    @model_validator(mode="after")
    def _tables_have_their_own_places(self) -> Self:
        places = {
            "bronze.path": self.bronze.path,
            "silver.path": self.silver.path,
            "silver.quarantine": self.silver.quarantine,
            "silver.latest": self.silver.latest,
            "stats.path": self.stats.path,
        }
        given = [(key, place.rstrip("/")) for key, place in places.items() if place is not None]
        refuse(
            SettingFault((key, earlier), f"{place} is pipeline.{earlier}, too: give each table a folder of its own")
            for at, (key, place) in enumerate(given)
            for earlier, other in given[:at]
            if place == other
        )
        return self
