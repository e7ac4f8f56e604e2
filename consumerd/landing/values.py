# SPDX-License-Identifier: Apache-2.0
"""Landing folders, chains and files, as values from names and footers. Pure.

A *root* is the path of a sink, with the group and cluster that own it. A landing zone is one root, or one of each
replica where the sink's ``shared`` is false; all are of one cluster. Offsets of one *log* (topic, partition,
incarnation) mean the same record in every chain and root, so chains can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NewType

from consumerd.errors import LocalProtocolError
from consumerd.landing.chain import ChainRecord, FileMetadata, RootRecord, chain_folder, partition_folder
from consumerd.landing.filesystem import LOCAL_FILES, ReadableFiles
from consumerd.landing.findings import Finding, FindingKind, Severity
from consumerd.landing.ranges import Span
from consumerd.model import Incarnation, PartitionKey, TopicPartition

ChainRef = NewType("ChainRef", str)
"""Name of a chain of files that no other chain ever has, and that stays if a volume moves.

Form: ``<root id>:topic=<T>/partition=<P>/chain=<n>:<incarnation>:<origin>:<writer>``. Chain numbers begin anew where a
partition's folder was moved away; the fields from ``_chain.json`` tell such chains apart.
"""


@dataclass(frozen=True, slots=True, order=True)
class LogId:
    """Identity of a log in which each offset means one record.

    It is a partition of one incarnation of its topic, written ``<topic>/<partition>@<incarnation>``.
    """

    topic: str
    partition: PartitionKey
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> LogId:
        """Parse ``<topic>/<partition>@<incarnation>``. Raises ValueError."""
        place, at, incarnation = text.rpartition("@")
        topic, slash, partition = place.rpartition("/")
        if not (at and slash and topic):
            raise ValueError(f"log {text!r}, expected TOPIC/PARTITION@INCARNATION")
        return cls(topic, PartitionKey.parse(partition), Incarnation.parse(incarnation))

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition, without the incarnation."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingRoot:
    """The path of a sink: the folder below which it lands a group's files.

    Attributes:
        record: content of its ``_consumerd.json``: group, cluster, random id.
        order: index among the folders that are read together, from 0.
        files: the store that has the folder, such as the local file system.
    """

    path: Path
    record: RootRecord
    order: int
    files: ReadableFiles = field(default=LOCAL_FILES, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedFile:
    """A landed data file.

    Attributes:
        path: absolute path.
        position: offset at which the file begins.
        name_end: offset at which the next file begins, by the name of that file; None for the last file.
        metadata: metadata of the file; None if they were not read, or could not be read.
        damage: why the metadata could not be read, such as a truncated file; else None.
        size: size in bytes; None until the metadata are read.
        landed_ms: time of modification in ms since the epoch; None until the metadata are read.
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
        """Offset at which the next file begins, or None if unknown.

        The file's metadata tell it, or else the name of the next file.
        """
        return self.name_end if self.metadata is None else self.metadata.next_offset

    @property
    def span(self) -> Span | None:
        """Offsets from this file's beginning to the next file's; None if the end is unknown.

        The range is empty for a seal, a file without records that ends a chain.
        """
        end = self.end
        return None if end is None else Span(self.position, max(self.position, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedChain:
    """A chain: a run of landed files of one partition without overlap, sorted by offset.

    Attributes:
        root: the sink's path below which the chain is.
        number: number among the partition's chains, from 1.
        folder: absolute path of the chain's folder.
        record: content of its ``_chain.json``.
    """

    root: LandingRoot
    partition: TopicPartition
    number: int
    folder: str
    record: ChainRecord
    files: tuple[LandedFile, ...]

    @property
    def log(self) -> LogId:
        """Log (topic, partition, incarnation) whose records the chain has."""
        return LogId(self.partition.topic, self.partition.partition, self.record.incarnation)

    @property
    def ref(self) -> ChainRef:
        """Unique name of the chain, which stays if its volume is mounted elsewhere."""
        topic, name = partition_folder(self.partition)
        made = f"{self.record.incarnation}:{self.record.origin}:{self.record.writer}"
        return ChainRef(f"{self.root.record.root}:{topic}/{name}/{chain_folder(self.number)}:{made}")

    @property
    def end(self) -> int | None:
        """Offset after the chain's last file; None if that file's metadata were not read."""
        return self.files[-1].end if self.files else self.record.origin

    @property
    def sealed(self) -> bool:
        """True if the chain is known to be sealed: no file can be added.

        False also if the last file's metadata were not read.
        """
        return bool(self.files) and self.files[-1].metadata is not None and self.files[-1].metadata.sealed

    @property
    def priority(self) -> tuple[int, int]:
        """Sort key of a partition's chains: the chain with the lowest key counts.

        If several chains have a record of one offset, the record of the chain with the lowest key is taken. The highest
        chain number has the lowest key; equal numbers are ordered by ``root.order``.
        """
        return -self.number, self.root.order


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """The landed files below one or more paths of sinks, as found on disk.

    Attributes:
        roots: the paths of the sinks.
        chains: sorted by topic, partition, path and number.
        findings: files and folders that could not be read as chains.
    """

    roots: tuple[LandingRoot, ...]
    chains: tuple[LandedChain, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def cluster(self) -> str:
        """Id of the cluster whose records were landed."""
        return self.roots[0].record.cluster

    @property
    def file_count(self) -> int:
        """Number of landed data files."""
        return sum(len(chain.files) for chain in self.chains)

    def name_absent(self, topics: Iterable[str] | None) -> tuple[str, ...]:
        """Return a note that names the requested topics without landed files.

        The names of the topics may be misspelt. The result is a tuple of one text, or empty if every topic has files.
        With ``topics`` None, no topic was requested.
        """
        absent = sorted(set(topics or ()) - {chain.partition.topic for chain in self.chains})
        if not absent:
            return ()
        return (f"no file has landed of {', '.join(absent)}: look at the names (--topics, pipeline.landing.topics)",)


def describe_damage(chain: LandedChain, file: LandedFile) -> Finding:
    """Return the finding about a file whose metadata could not be read.

    Raises LocalProtocolError for a file whose metadata nothing has tried to read.
    """
    if file.damage is None:
        raise LocalProtocolError(f"{file.path}: its metadata were not read")
    return Finding(
        kind=FindingKind.FILE_DAMAGED,
        severity=Severity.CRITICAL,
        detail=file.damage,
        topic=chain.partition.topic,
        partition=str(chain.partition.partition),
        incarnation=str(chain.record.incarnation),
        chain=chain.number,
        where=file.path,
        start=file.position,
        end=file.name_end,
    )
