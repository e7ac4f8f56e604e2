# SPDX-License-Identifier: Apache-2.0
"""Settings of a pipeline job, and the paths of the landing folders and the tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict

from consumerd.config.cluster_section import ClusterSection
from consumerd.config.inspection import InspectionGroup, InspectionOffsets
from consumerd.config.pipeline import Pipeline
from consumerd.config.settings import LogSection, SinkSettings
from consumerd.errors import ConfigError
from consumerd.landing.metadata import LANDED_FORMATS
from consumerd.offsets.store import KAFKA_ONLY, Place

QUARANTINE: Final = "quarantine"
"""Name of the table of all topics' bad and late records."""
TableName = Literal["bronze", "silver", "quarantine", "latest", "stats"]

_FILE_SINKS: Final = frozenset(one.sink_type for one in LANDED_FORMATS.values())


class JobSettings(BaseModel):
    """Settings of a pipeline job: the sections of the settings file that jobs read.

    Other sections are ignored. ``cluster`` and ``group`` are optional: without them the job ``audit`` compares no
    positions, and ``replay`` has to be given its target.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    cluster: ClusterSection | None = None
    group: InspectionGroup | None = None
    offsets: InspectionOffsets = InspectionOffsets()
    sinks: dict[str, SinkSettings] = {}
    pipeline: Pipeline = Pipeline()
    log: LogSection = LogSection()

    @property
    def places(self) -> frozenset[Place]:
        """Stores in which members read committed positions: ZooKeeper, Kafka, or both.

        Kafka alone in a cluster without ZooKeeper.
        """
        without = self.cluster is not None and self.cluster.bootstrap is not None
        return KAFKA_ONLY if without else self.offsets.places

    def landing_roots(self) -> tuple[Path, ...]:
        """Return the absolute paths of the folders that sinks write to and jobs read.

        They are those of ``pipeline.landing.roots``; if it is empty, the path of each file sink. Raises ConfigError if
        there are none.
        """
        roots = self.pipeline.landing.roots or tuple(self._sink_paths())
        if not roots:
            raise ConfigError(
                "pipeline.landing.roots: missing, and there is no parquet or jsonl sink with a path; "
                "set either in the file, or give --landing FOLDER"
            )
        return tuple(root.absolute() for root in roots)

    def landing_topics(self) -> frozenset[str] | None:
        """Return the names of the topics whose landed files are read; None for all."""
        return frozenset(self.pipeline.landing.topics) or None

    def location(self, table: TableName, topic: str | None = None) -> str:
        """Return a table's path or URL for Spark. Raises ConfigError if none is set.

        Args:
            table: Kind of the table, such as ``bronze``.
            topic: Topic of a table that is one per topic (``silver``, ``latest``); else None.
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
        """Return the absolute path of a table's folder.

        Args:
            table: Kind of the table, such as ``bronze``.
            topic: Topic of a table that is one per topic (``silver``, ``latest``); else None.

        Raises ConfigError if no path is set, or if the path is a URL of an object store: tables need links and fsync,
        so a mounted file system.
        """
        return _to_folder(self.location(table, topic), f"table {table}")

    def tables_root(self) -> Path | None:
        """Return the absolute folder of the setting ``pipeline.path``; None if it is not set.

        Tables without a path of their own are below this folder. Raises ConfigError if it is a URL of another scheme
        than ``file``.
        """
        return None if self.pipeline.path is None else _to_folder(self.pipeline.path, "pipeline.path")

    def tables(self, kinds: Collection[TableName] = get_args(TableName)) -> Mapping[str, Path]:
        """Return the folders of the pipeline's tables by name, existing or not.

        Names are ``bronze``, ``quarantine``, ``stats``, ``silver/TOPIC`` and ``latest/TOPIC``. ``stats`` is left out if
        no path is set for it. Raises ConfigError if another table has no path.
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
