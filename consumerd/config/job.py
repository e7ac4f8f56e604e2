# SPDX-License-Identifier: Apache-2.0
"""Settings of a pipeline job, and the paths of the landing zone and the tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict

from consumerd.config.pipeline import Pipeline
from consumerd.config.pipeline_topics import SilverTopic
from consumerd.config.settings import ClusterSection, InspectionGroup, LogSection, SinkSettings
from consumerd.errors import ConfigError

QUARANTINE: Final = "quarantine"
"""Name of the table of all topics' bad and late records."""
TableName = Literal["bronze", "silver", "quarantine", "latest", "stats"]

_FILE_SINKS: Final = ("parquet", "jsonl")


class JobSettings(BaseModel):
    """The sections of the settings file that jobs read; others are ignored.

    ``cluster`` and ``group`` are optional: without them ``audit`` compares no positions, and ``replay`` has to be given
    its target.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    cluster: ClusterSection | None = None
    group: InspectionGroup | None = None
    sinks: dict[str, SinkSettings] = {}
    pipeline: Pipeline = Pipeline()
    log: LogSection = LogSection()

    def landing_roots(self) -> tuple[Path, ...]:
        """Return the absolute landing folders. Raises ConfigError if none is set."""
        roots = self.pipeline.landing.roots or tuple(self._sink_paths())
        if not roots:
            raise ConfigError(
                "pipeline.landing.roots: missing, and there is no parquet or jsonl sink with a path; "
                "set either in the file, or give --landing FOLDER"
            )
        return tuple(root.absolute() for root in roots)

    def landing_topics(self) -> frozenset[str] | None:
        """Return the names of the topics to read, None for all."""
        return frozenset(self.pipeline.landing.topics) or None

    def location(self, table: TableName, topic: str | None = None) -> str:
        """Return a table's path or URL for Spark. Raises ConfigError if none is set.

        Args:
            topic: For tables that are one per topic (``silver``, ``latest``).
        """
        place = self._given(table)
        if place is None:
            if self.pipeline.path is None:
                raise ConfigError(
                    f"pipeline.path: missing, and so the table {table} has no place; set it in the file, "
                    "or give --path FOLDER"
                )
            place = f"{self.pipeline.path.rstrip('/')}/{table}"
        return place if topic is None else f"{place.rstrip('/')}/{topic}"

    def folder(self, table: TableName, topic: str | None = None) -> Path:
        """Return a table's absolute folder.

        Raises ConfigError if no path is set, or if it is not on a mounted file system: tables need links and fsync.
        """
        return _to_folder(self.location(table, topic), f"table {table}")

    def tables_root(self) -> Path | None:
        """Return the absolute folder ``pipeline.path``, or None if it is not set.

        Raises ConfigError if it is a URL of another scheme than ``file``.
        """
        return None if self.pipeline.path is None else _to_folder(self.pipeline.path, "pipeline.path")

    def tables(self, kinds: Collection[TableName] = get_args(TableName)) -> Mapping[str, Path]:
        """Return the folders of the pipeline's tables by name, existing or not.

        Names are ``bronze``, ``quarantine``, ``stats``, ``silver/TOPIC`` and ``latest/TOPIC``. Raises ConfigError if a
        table of these kinds has no path; without a path there are no ``stats``.
        """
        named: dict[str, Path] = {}
        topics = self.pipeline.silver.topics
        if "bronze" in kinds:
            named["bronze"] = self.folder("bronze")
        if topics and "quarantine" in kinds:
            named["quarantine"] = self.folder("quarantine")
        for topic, how in topics.items():
            if "silver" in kinds:
                named[f"silver/{topic}"] = self.folder("silver", topic)
            if how.latest and "latest" in kinds:
                named[f"latest/{topic}"] = self.folder("latest", topic)
        if "stats" in kinds and (self.pipeline.path is not None or self._given("stats") is not None):
            named["stats"] = self.folder("stats")
        return named

    def silver_topic(self, topic: str) -> SilverTopic:
        """Return a topic's settings. Raises ConfigError if it has none."""
        try:
            return self.pipeline.silver.topics[topic]
        except KeyError:
            raise ConfigError(f"pipeline.silver.topics.{topic}: missing") from None

    def _given(self, table: TableName) -> str | None:
        given: Mapping[TableName, str | None] = {
            "bronze": self.pipeline.bronze.path,
            "silver": self.pipeline.silver.path,
            "quarantine": self.pipeline.silver.quarantine,
            "latest": self.pipeline.silver.latest,
            "stats": self.pipeline.stats.path,
        }
        return given[table]

    def _sink_paths(self) -> list[Path]:
        paths = []
        for sink in self.sinks.values():
            path = sink.options.get("path")
            if sink.type in _FILE_SINKS and isinstance(path, (str, Path)):
                paths.append(Path(path))
        return paths


def _to_folder(place: str, what: str) -> Path:
    if "://" in place or place.startswith("file:"):
        url = urlsplit(place)
        if url.scheme != "file" or url.netloc:
            raise ConfigError(f"{what} at {place}: expected a folder of a mounted file system, not a URL")
        place = unquote(url.path)
    return Path(place).absolute()
