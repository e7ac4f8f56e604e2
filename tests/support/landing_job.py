# SPDX-License-Identifier: Apache-2.0
"""The main job, as a user sets it up: a group that lands one topic as Parquet and another one as JSON lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import Embedded
from tests.support.kafka import Sent
from tests.support.landing_check import Place, find_faults, wait_landed


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingJob:
    """A group, its topics and where they land, below ``folder``."""

    zookeeper: str
    group: str
    folder: Path
    parquet: str
    """The topic that lands as Parquet."""
    jsonl: str
    roll_ms: int = 500

    @classmethod
    def make(cls, cluster: Embedded, name: str, folder: Path, *, partitions: int, roll_ms: int = 500) -> LandingJob:
        """Make the topics ``name-orders`` and ``name-clicks``, and name the group ``name``."""
        job = cls(
            zookeeper=cluster.zookeeper,
            group=name,
            folder=folder,
            parquet=f"{name}-orders",
            jsonl=f"{name}-clicks",
            roll_ms=roll_ms,
        )
        for topic in job.topics:
            cluster.create_topic(topic, partitions)
        return job

    @property
    def topics(self) -> tuple[str, str]:
        """Both of them."""
        return self.parquet, self.jsonl

    def landing(self, topic: str) -> Path:
        """Return the folder that a topic lands in."""
        return self.folder / ("parquet" if topic == self.parquet else "jsonl")

    def daemon(self, name: str, **sections: Mapping[str, Any]) -> Daemon:
        """Start a member; ``sections`` of its settings are merged over what the job says."""
        settings = settings_for(
            self.zookeeper,
            self.group,
            topics=(self.parquet,),
            sink={"type": "parquet", "path": str(self.landing(self.parquet)), "roll_ms": self.roll_ms},
            group={"session_timeout_ms": 3000},
            offsets={"commit_interval_ms": 200},
        )
        settings["subscriptions"].append({"topics": [self.jsonl], "sink": "lines"})
        lines = {"type": "jsonl", "path": str(self.landing(self.jsonl)), "roll_ms": self.roll_ms}
        settings["sinks"]["lines"] = lines
        for section, values in sections.items():
            settings[section] = {**settings.get(section, {}), **values}
        return Daemon(self.folder, name, settings)

    def wait_landed(self, ledger: Collection[Place], timeout_s: float = 40.0) -> None:
        """Wait until all that was acknowledged has landed. Raises TimeoutError."""
        for topic in self.topics:
            wait_landed(self.landing(topic), _of(topic, ledger), timeout_s)

    def find_faults(self, ledger: Mapping[Place, Sent]) -> list[str]:
        """Return everything that is wrong with what has landed, by the producer's ledger: of no fault, nothing."""
        return [
            fault
            for topic in self.topics
            for fault in find_faults(self.landing(topic), {place: ledger[place] for place in _of(topic, ledger)})
        ]


def _of(topic: str, ledger: Collection[Place]) -> list[Place]:
    return [place for place in ledger if place[0] == topic]
