"""What lies in a landing zone: roots, chains and files, as names (and, where they were read, footers) tell of them. Pure.

A zone is one root, or one of each replica where the sink's ``shared`` is false; all are of one cluster. Offsets of one *log*
(topic, partition, incarnation) mean the same record in every chain and root, which is what makes chains comparable at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NewType

from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.chain import ChainRecord, FileMetadata, RootRecord, chain_folder, partition_folder
from consumerd.spark.landing.findings import Finding
from consumerd.spark.landing.ranges import Span

ChainRef = NewType("ChainRef", str)
"""A chain's name, wherever its root is mounted, which no other chain ever has:
``<root id>:topic=<T>/partition=<P>/chain=<n>:<incarnation>:<origin>:<writer>``.

Numbers begin anew where a partition's folder was moved away; what ``_chain.json`` says tells such chains apart.
"""


@dataclass(frozen=True, slots=True, order=True)
class LogId:
    """A log whose offsets each mean one record: a partition of one making of its topic, up to a truncation.

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
    """A folder below which one group's daemons land. ``order`` is its place among those of the zone, from 0."""

    path: Path
    record: RootRecord
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedFile:
    """One data file of a chain.

    ``name_end`` is the position of the chain's next file, None for its last one. ``metadata`` is None until it is read, and
    where that failed; ``damage`` then says why (a truncated file, metadata that are those of another place). ``size`` in bytes
    and ``landed_ms``, when it was finished (since 1970), are known where the metadata were asked for.
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
        """Where the chain goes on: by the file's own word, else by its successor's name, else unknown."""
        return self.name_end if self.metadata is None else self.metadata.next_offset

    @property
    def span(self) -> Span | None:
        """The chain positions that it takes, empty for a seal; None where its end is not known."""
        end = self.end
        return None if end is None else Span(self.position, max(self.position, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedChain:
    """One chain with its files, by position. ``folder`` is absolute."""

    root: LandingRoot
    partition: TopicPartition
    number: int
    folder: str
    record: ChainRecord
    files: tuple[LandedFile, ...]

    @property
    def log(self) -> LogId:
        """Whose records it holds."""
        return LogId(self.partition.topic, self.partition.partition, self.record.incarnation)

    @property
    def ref(self) -> ChainRef:
        """Its name, wherever the root is mounted."""
        topic, name = partition_folder(self.partition)
        made = f"{self.record.incarnation}:{self.record.origin}:{self.record.writer}"
        return ChainRef(f"{self.root.record.root}:{topic}/{name}/{chain_folder(self.number)}:{made}")

    @property
    def end(self) -> int | None:
        """The position of its next file; None where its last file's metadata were not read."""
        return self.files[-1].end if self.files else self.record.origin

    @property
    def sealed(self) -> bool:
        """Whether it is over for good; only known once its last file's metadata were read."""
        return bool(self.files) and self.files[-1].metadata is not None and self.files[-1].metadata.sealed

    @property
    def priority(self) -> tuple[int, int]:
        """Which of two chains that hold the same record gives it: the one with the lower value, so the higher number."""
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
    def file_count(self) -> int:
        """How many data files there are."""
        return sum(len(chain.files) for chain in self.chains)
