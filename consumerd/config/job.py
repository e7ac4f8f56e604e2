"""What a job of the pipeline needs of the settings file, and where by it the landing zone and the tables are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic_settings import BaseSettings, SettingsConfigDict

from consumerd.config.pipeline import Pipeline
from consumerd.config.pipeline_topics import SilverTopic
from consumerd.config.settings import Cluster, InspectionGroup, Log, SinkSettings
from consumerd.errors import ConfigError

TableName = Literal["bronze", "silver", "quarantine", "latest", "stats"]

_FILE_SINKS: Final = ("parquet", "jsonl")


class JobSettings(BaseSettings):
    """What a job needs of the settings; the rest of the daemon's file may stand beside it and is not looked at.

    ``cluster`` and ``group`` may be missing: ``audit`` then compares no positions, ``replay`` names its own target.
    """

    model_config = SettingsConfigDict(extra="ignore", frozen=True, env_prefix="CONSUMERD_", env_nested_delimiter="__")

    cluster: Cluster | None = None
    group: InspectionGroup | None = None
    sinks: dict[str, SinkSettings] = {}
    pipeline: Pipeline = Pipeline()
    log: Log = Log()

    def landing_roots(self) -> tuple[Path, ...]:
        """Return the folders of the landing zone, absolute. Raises ConfigError where none is named."""
        roots = self.pipeline.landing.roots or tuple(self._sink_paths())
        if not roots:
            raise ConfigError(
                "pipeline.landing.roots: missing, and there is no parquet or jsonl sink with a path; "
                "set either in the file, or give --landing FOLDER"
            )
        return tuple(root.absolute() for root in roots)

    def landing_topics(self) -> frozenset[str] | None:
        """Return the topics that count, None for all."""
        return frozenset(self.pipeline.landing.topics) or None

    def location(self, table: TableName, topic: str | None = None) -> str:
        """Return where a table is, as Spark takes it; of a topic's table (``silver``, ``latest``) with the topic.

        Raises ConfigError where no place is set.
        """
        given: Mapping[str, str | None] = {
            "bronze": self.pipeline.bronze.path,
            "silver": self.pipeline.silver.path,
            "quarantine": self.pipeline.silver.quarantine,
            "latest": self.pipeline.silver.latest,
            "stats": self.pipeline.stats.path,
        }
        place = given[table]
        if place is None:
            if self.pipeline.path is None:
                raise ConfigError(
                    f"pipeline.path: missing, and so the table {table} has no place; set it in the file, "
                    "or give --path FOLDER"
                )
            place = f"{self.pipeline.path.rstrip('/')}/{table}"
        return place if topic is None else f"{place.rstrip('/')}/{topic}"

    def bronze_to_read(self) -> str:
        """Return where bronze is, for jobs that go by its log. Raises ConfigError where it has no place, or is a Delta table."""
        if self.pipeline.bronze.format == "delta":
            raise ConfigError(
                "pipeline.bronze.format: delta: this job reads bronze of Parquet files only; "
                "read the Delta table with Spark itself, or keep bronze as parquet"
            )
        return self.location("bronze")

    def folder(self, table: TableName, topic: str | None = None) -> Path:
        """Return where a table is, as a folder of a mounted file system, absolute.

        Raises ConfigError where it is a URL of something else: the tables need links and fsync.
        """
        place = self.location(table, topic)
        if "://" in place or place.startswith("file:"):
            url = urlsplit(place)
            if url.scheme != "file" or url.netloc:
                raise ConfigError(f"table {table} at {place}: expected a folder of a mounted file system, not a URL")
            place = unquote(url.path)
        return Path(place).absolute()

    def silver_topic(self, topic: str) -> SilverTopic:
        """Return how a topic is decoded. Raises ConfigError."""
        try:
            return self.pipeline.silver.topics[topic]
        except KeyError:
            raise ConfigError(f"pipeline.silver.topics.{topic}: missing") from None

    def _sink_paths(self) -> list[Path]:
        paths = []
        for sink in self.sinks.values():
            path = sink.options.get("path")
            if sink.type in _FILE_SINKS and isinstance(path, (str, Path)):
                paths.append(Path(path))
        return paths
