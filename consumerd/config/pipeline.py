"""The section ``pipeline``: settings of the jobs of ``consumerd-spark``.

Models only. ``config.job`` adds the other sections that a job reads, and finds the tables' paths. The daemon checks the
section, and reads nothing of it.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from consumerd.config.pipeline_topics import SilverTopics
from consumerd.config.section import Bytes, Milliseconds, Section

Count = Annotated[int, Field(ge=1)]
Compression = Literal["zstd", "snappy", "none"]


class Landing(Section):
    """The landed files that jobs read."""

    roots: tuple[Path, ...] = Field(default=(), description="Landing folders; none: the path of each file sink.")
    topics: tuple[str, ...] = Field(default=(), description="Only these topics; none: all that have been landed.")


class Audit(Section):
    """Options of the job ``audit``."""

    footers: bool = Field(default=True, description="Open every file; false: names, and each chain's last file.")
    proof: bool = Field(default=False, description="Read all landed data, too, and hold them against the names.")
    positions: bool = Field(default=True, description="Hold the chains against the group's committed positions.")
    html: Path | None = Field(default=None, description="Write a page with plots.")
    json_file: Path | None = Field(default=None, description="Write all that was found, as JSON.")


class Bronze(Section):
    """The table that holds each record once."""

    path: str | None = Field(default=None, description="The table's folder; none: `bronze` below pipeline.path.")
    compression: Compression = "zstd"
    compression_level: int = Field(default=1, ge=-7, le=22)
    commit_bytes: Bytes = Field(default=2 << 30, description="A commit takes over this much of landed data, about.")


class Silver(Section):
    """Decoded tables, one per topic, and the quarantine."""

    path: str | None = Field(default=None, description="Below it a table a topic; none: `silver` below pipeline.path.")
    quarantine: str | None = Field(
        default=None, description="The table of bad and late records; none: `quarantine` below path."
    )
    latest: str | None = Field(
        default=None, description="Below it a table a topic; none: `latest` below pipeline.path."
    )
    commit_bytes: Bytes = Field(default=2 << 30, description="A commit decodes this much of bronze's files, about.")
    rebuild: bool = Field(default=False, description="Decode all of bronze anew, in place of what was decoded before.")
    topics: SilverTopics = Field(default={}, description="How each topic is decoded.")


class Compact(Section):
    """Compaction of small files, and removal of replaced files and old commits."""

    target_bytes: Bytes = Field(default=256 << 20, description="How large files are made, about.")
    min_files: int = Field(default=4, ge=2, description="Partitions with fewer small files are left alone.")
    keep_ms: Milliseconds = Field(
        default=86_400_000, description="Replaced files stay this long for readers of older versions."
    )
    keep_log_ms: Milliseconds = Field(
        default=604_800_000, description="Commits stay this long in a table's log, and as long as files do."
    )


class Retention(Section):
    """Age at which the job ``retention`` removes landed files and rows; null keeps them for ever."""

    landing_ms: Milliseconds | None = Field(
        default=None, description="Landed files that bronze has, and that are not the newest of their chain."
    )
    bronze_ms: Milliseconds | None = Field(default=None, description="Rows of bronze, by whole days (UTC).")
    silver_ms: Milliseconds | None = Field(default=None, description="Rows of the topics' tables; not below bronze_ms.")
    quarantine_ms: Milliseconds | None = Field(default=None, description="Rows of the quarantine; not below bronze_ms.")
    dry_run: bool = Field(default=False, description="Say what would be removed, and remove nothing.")

    @model_validator(mode="after")
    def _bronze_goes_first(self) -> Self:
        for name, keep_ms in (("silver_ms", self.silver_ms), ("quarantine_ms", self.quarantine_ms)):
            if keep_ms is not None and (self.bronze_ms is None or keep_ms < self.bronze_ms):
                raise ValueError(
                    f"{name} must not be below bronze_ms: rows that bronze still has would be decoded again"
                )
        return self


class Stats(Section):
    """The table of statistics by topic and hour."""

    path: str | None = Field(default=None, description="The table's folder; none: `stats` below pipeline.path.")
    distinct_error: float = Field(
        default=0.05, gt=0, lt=0.4, description="Relative error of the number of distinct keys."
    )


class Replay(Section):
    """Records that the job ``replay`` sends to a topic. Nothing is sent without a target."""

    source: Literal["bronze", "quarantine"] = "bronze"
    topic: str | None = Field(default=None, description="The topic whose records are sent.")
    partition: int | None = Field(default=None, ge=0)
    start_offset: int | None = Field(default=None, ge=0)
    end_offset: int | None = Field(default=None, ge=0, description="The first offset that is not sent any more.")
    incarnation: str | None = Field(
        default=None,
        pattern=r"^(all|[0-9]{1,19}(\.[0-9]{1,9})?)$",
        description="Whose offsets they are, as bronze has it, or all. None: with offsets the newest, else all.",
    )
    start_time: AwareDatetime | None = None
    end_time: AwareDatetime | None = Field(default=None, description="The first moment that is not sent any more.")
    reason: str | None = Field(default=None, description="Of the quarantine, only records with this reason.")
    again: bool = Field(default=False, description="Of the quarantine, also records that were replayed before.")
    target: str | None = Field(default=None, description="The topic that they are sent to.")
    zookeeper: str | None = Field(default=None, description="The target's cluster; none: cluster.zookeeper.")
    bootstrap_servers: str | None = Field(default=None, description="The target's cluster by its brokers, instead.")
    keep_partition: bool = Field(
        default=False, description="Send to the partition of the same number, instead of by key."
    )
    dry_run: bool = False

    @model_validator(mode="after")
    def _ranges_fit(self) -> Self:
        if self.start_offset is not None and self.end_offset is not None and self.start_offset >= self.end_offset:
            raise ValueError("start_offset must be below end_offset")
        if (self.start_offset is not None or self.end_offset is not None) and self.partition is None:
            raise ValueError("offsets are those of a partition: give partition, too")
        start, end = self.start_time, self.end_time
        if isinstance(start, datetime) and isinstance(end, datetime) and start >= end:
            raise ValueError("start_time must be before end_time")
        if self.reason is not None and self.source != "quarantine":
            raise ValueError("reason goes with source: quarantine")
        if self.again and self.source != "quarantine":
            raise ValueError("again goes with source: quarantine; records of bronze have no mark")
        if self.zookeeper is not None and self.bootstrap_servers is not None:
            raise ValueError("give either zookeeper or bootstrap_servers")
        return self


class Erase(Section):
    """Records that the job ``erase`` removes.

    Exactly one of key, key_hex, keys_file and where says which.
    """

    topic: str | None = Field(default=None, description="The topic whose records are erased.")
    key: str | None = Field(default=None, description="Records with this key, as text (UTF-8).")
    key_hex: str | None = Field(
        default=None, pattern=r"^([0-9a-fA-F]{2})*$", description="Records with this key, as hexadecimal digits."
    )
    keys_file: Path | None = Field(default=None, description="Records with one of these keys, one a line.")
    keys_are_hex: bool = Field(default=False, description="Lines of keys_file are hexadecimal digits, not text.")
    where: str | None = Field(default=None, description="Records for which this predicate of Spark SQL is true.")
    where_in: Literal["bronze", "silver"] | None = Field(
        default=None,
        description="The table with the predicate's columns; none: silver if the topic is declared there, else bronze.",
    )
    max_records: int = Field(default=5_000_000, ge=1, description="A run that would erase more is refused.")
    report: Path | None = Field(default=None, description="Write what was done, and the proof, as JSON.")
    dry_run: bool = Field(default=False, description="Say what would be erased, and change nothing.")

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        choices = {"key": self.key, "key_hex": self.key_hex, "keys_file": self.keys_file, "where": self.where}
        given = [name for name, value in choices.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"give one of key, key_hex, keys_file and where, not {' and '.join(given)}")
        if self.where_in is not None and self.where is None:
            raise ValueError("where_in goes with where")
        if self.keys_are_hex and self.keys_file is None:
            raise ValueError("keys_are_hex goes with keys_file")
        return self


class Session(Section):
    """The Spark session that a job starts where none is given to it (by ``spark-submit``)."""

    master: str | None = Field(default=None, description="None: what spark-submit says, else local[*].")
    driver_memory: str = Field(default="1g", pattern=r"^[1-9][0-9]*[kmgt]$")
    settings: dict[str, str] = Field(default={}, description="Spark's own settings by their names.")


class JobMetrics(Section):
    """Metrics that each job writes at its end."""

    folder: Path | None = Field(
        default=None, description="Write consumerd_<group>_<job>.prom here, for node_exporter's textfile collector."
    )
    push_gateway: str | None = Field(
        default=None, pattern=r"^https?://\S+$", description="Push to this Pushgateway, such as http://host:9091."
    )


class Pipeline(Section):
    """Everything that the jobs go by."""

    path: str | None = Field(default=None, description="The folder of all tables that have no path of their own.")
    landing: Landing = Landing()
    audit: Audit = Audit()
    bronze: Bronze = Bronze()
    silver: Silver = Silver()
    compact: Compact = Compact()
    stats: Stats = Stats()
    replay: Replay = Replay()
    retention: Retention = Retention()
    erase: Erase = Erase()
    metrics: JobMetrics = JobMetrics()
    spark: Session = Session()
