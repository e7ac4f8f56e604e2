# SPDX-License-Identifier: Apache-2.0
"""Roots, chains and files of a landing zone, as values from names and footers. Pure.

A zone is one root, or one of each replica where the sink's ``shared`` is false; all are of one cluster. Offsets of one
*log* (topic, partition, incarnation) mean the same record in every chain and root, which is what makes chains
comparable at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NewType

from consumerd.landing.chain import ChainRecord, FileMetadata, RootRecord, chain_folder, partition_folder
from consumerd.landing.filesystem import LOCAL_FILES, ReadableFiles
from consumerd.landing.findings import Finding
from consumerd.landing.ranges import Span
from consumerd.model import Incarnation, PartitionKey, TopicPartition

ChainRef = NewType("ChainRef", str)
"""A chain's name, wherever its root is mounted, which no other chain ever has:
``<root id>:topic=<T>/partition=<P>/chain=<n>:<incarnation>:<origin>:<writer>``.

Numbers begin anew where a partition's folder was moved away; what ``_chain.json`` says tells such chains apart.
"""


@dataclass(frozen=True, slots=True, order=True)
class LogId:
    """A log in which each offset means one record: a partition of one incarnation.

    Written ``<topic>/<partition>@<incarnation>``.
    """

    topic: str
    partition: PartitionKey
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> LogId:
        """Read what ``str`` has made. Raises ValueError."""
        place, at, incarnation = text.rpartition("@")
        topic, slash, partition = place.rpartition("/")
        if not (at and slash and topic):
            raise ValueError(f"log {text!r}, expected TOPIC/PARTITION@INCARNATION")
        return cls(topic, PartitionKey.parse(partition), Incarnation.parse(incarnation))

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition, whichever incarnation."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingRoot:
    """A folder below which one group's daemons land.

    Attributes:
        order: place among the roots of the zone, from 0.
        files: the store that the folder is in.
    """

    path: Path
    record: RootRecord
    order: int
    files: ReadableFiles = field(default=LOCAL_FILES, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedFile:
    """A data file of a chain.

    Attributes:
        path: absolute.
        position: offset at which the file begins.
        name_end: position of the chain's next file, None for the last one.
        metadata: None until read, and if that failed.
        damage: why reading failed: a truncated file, or metadata of another place.
        size: in bytes, if the metadata were asked for.
        landed_ms: time of modification in ms since the epoch, if the metadata were asked for.
    """

    path: str
    position: int
    name_end: int | None
    metadata: FileMetadata | None = None
    damage: str | None = None
    size: int | None = None
    landed_ms: int | None = None

    @property
    def end(self) -> int | None:
        """Offset at which the chain continues: by its metadata, else by the next file's name, else None."""
        return self.name_end if self.metadata is None else self.metadata.next_offset

    @property
    def span(self) -> Span | None:
        """Offsets of the file, empty for a seal, None if the end is unknown."""
        end = self.end
        return None if end is None else Span(self.position, max(self.position, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedChain:
    """A chain with its files, by position. ``folder`` is absolute."""

    root: LandingRoot
    partition: TopicPartition
    number: int
    folder: str
    record: ChainRecord
    files: tuple[LandedFile, ...]

    @property
    def log(self) -> LogId:
        """Log whose records the chain holds."""
        return LogId(self.partition.topic, self.partition.partition, self.record.incarnation)

    @property
    def ref(self) -> ChainRef:
        """Name of the chain, wherever its root is mounted."""
        topic, name = partition_folder(self.partition)
        made = f"{self.record.incarnation}:{self.record.origin}:{self.record.writer}"
        return ChainRef(f"{self.root.record.root}:{topic}/{name}/{chain_folder(self.number)}:{made}")

    @property
    def end(self) -> int | None:
        """Position of the chain's next file, None if the last file's metadata were not read."""
        return self.files[-1].end if self.files else self.record.origin

    @property
    def sealed(self) -> bool:
        """True if the chain has a seal; False if it has none, or the last file's metadata were not read."""
        return bool(self.files) and self.files[-1].metadata is not None and self.files[-1].metadata.sealed

    @property
    def priority(self) -> tuple[int, int]:
        """Sort key of chains with the same records: the one with the lowest value (highest number) gives them."""
        return -self.number, self.root.order


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A landing zone as it was found. ``chains`` by topic, partition, root and number; ``findings``: what could not be
    made sense of on the way. ``hidden`` are names of files that are being written, or were when their writer died.
    """

    roots: tuple[LandingRoot, ...]
    chains: tuple[LandedChain, ...]
    findings: tuple[Finding, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        """Identity of the cluster."""
        return self.roots[0].record.cluster

    @property
    def file_count(self) -> int:
        """Number of data files."""
        return sum(len(chain.files) for chain in self.chains)

    def name_absent(self, topics: Iterable[str] | None) -> tuple[str, ...]:
        """Return a note if some of the topics that were asked for are not here: a name may be misspelt."""
        absent = sorted(set(topics or ()) - {chain.partition.topic for chain in self.chains})
        if not absent:
            return ()
        return (f"no file has landed of {', '.join(absent)}: look at the names (--topics, pipeline.landing.topics)",)
