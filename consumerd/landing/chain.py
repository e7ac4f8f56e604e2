# SPDX-License-Identifier: Apache-2.0
"""Chains on paper: the names, records and metadata of landed files. Pure; nothing here touches a disk.

``<path>/topic=<T>/partition=<P>/chain=<n>/<position>.<extension>``. A chain is a run of files without overlap: a file is
named by its *chain position*, twenty digits, which is the ``next_offset`` of the file before it, or the chain's origin
for the first. So the name that the next file must have follows from what is there, and a name can be taken only once.

A partition's chains follow each other by their numbers, and only the newest one grows: every other one ends with a *seal*, a
file without records whose ``next_offset`` is its own position. As long as nobody removes it, no file can have that name, and
no writer can get past it.

Readers skip names that begin with ``_`` or ``.``, as Spark does: those are the records of this module and the files
that are still being written. Every record is one JSON object; keys that a reader does not know are to be passed over.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, NewType
from urllib.parse import quote

from consumerd.landing.record_fields import (
    FORMAT_VERSION,
    MalformedRecord,
    decode_fields,
    encode_fields,
    encode_incarnation,
    encode_partition,
    find_number,
    get_incarnation,
    get_number,
    get_partition,
    get_text,
)
from consumerd.model import Gap, GapReason, Incarnation, PartitionKey, TopicPartition
from consumerd.wire import kernel
from consumerd.wire.records import NO_TIMESTAMP, RecordBatch

ROOT_RECORD: Final = "_consumerd.json"
CHAIN_RECORD: Final = "_chain.json"
META_FOLDER: Final = "_meta"
HIDDEN_PREFIX: Final = "."
SEALED: Final = "sealed"
"""The reason of a chain that goes on behind a seal whose maker died before it began the chain it was made for."""
MAX_GAPS: Final = 1000
"""Gaps a file lists one by one; beyond, those of the most frequent reason are summed up in one entry."""

FileId = NewType("FileId", str)
"""Which attempt at a file: the process's writer id and a number, never used twice."""

_CHAIN_FOLDER = re.compile(r"chain=([1-9][0-9]*)")
_DATA_NAME = re.compile(r"([0-9]{20})\.([a-z0-9]+(?:\.[a-z0-9]+)?)")
_META_NAME = re.compile(r"([0-9]{20})\.(.+)\.json")


# -- names


def partition_folder(partition: TopicPartition) -> tuple[str, str]:
    """Return the two folder names of a partition, percent-encoded where a file system or Spark would misread them."""
    return f"topic={quote(partition.topic, safe='')}", f"partition={quote(str(partition.partition), safe='')}"


def chain_folder(number: int) -> str:
    """Return the folder name of a partition's ``number``-th chain, from 1."""
    return f"chain={number}"


def parse_chain_folder(name: str) -> int | None:
    """Read a chain's number, or None if the name is not a chain's."""
    match = _CHAIN_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def data_name(position: int, extension: str) -> str:
    """Return the final name of the file at ``position``."""
    return f"{position:020d}.{extension}"


def parse_data_name(name: str, extension: str) -> int | None:
    """Read the position off a data file's name, or None if the name is no data file's of that extension."""
    match = _DATA_NAME.fullmatch(name)
    return int(match[1]) if match and match[2] == extension else None


def hidden_name(name: str, file_id: FileId) -> str:
    """Return the name under which the file ``name`` is written before it is published."""
    return f"{HIDDEN_PREFIX}{name}.{quote(file_id, safe='')}.tmp"


def is_hidden(name: str) -> bool:
    """Tell whether a name is one that :func:`hidden_name` makes."""
    return name.startswith(HIDDEN_PREFIX) and name.endswith(".tmp")


def meta_name(position: int, file_id: FileId) -> str:
    """Return the name, in ``_meta``, of the metadata that one attempt wrote for the file at ``position``."""
    return f"{position:020d}.{quote(file_id, safe='')}.json"


def parse_meta_name(name: str) -> int | None:
    """Read the position off a metadata file's name, or None."""
    match = _META_NAME.fullmatch(name)
    return int(match[1]) if match else None


# -- records


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecord:
    """``_consumerd.json``: whose path this is. ``root`` is random, so that one volume is told from another."""

    root: str
    cluster: str
    group: str

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return encode_fields({"format": FORMAT_VERSION, **asdict(self)})

    @classmethod
    def parse(cls, data: bytes) -> RootRecord:
        """Read a record. Raises MalformedRecord."""
        fields = decode_fields(data)
        return cls(root=get_text(fields, "root"), cluster=get_text(fields, "cluster"), group=get_text(fields, "group"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRecord:
    """``_chain.json``: what is fixed when a chain begins.

    ``request_id`` is the operator's request that asked for it. A chain that only goes on behind the seal of another
    (``reason`` is ``SEALED``) has that of the other. ``cluster`` is None in records of format 1.
    """

    origin: int
    incarnation: Incarnation
    extension: str
    reason: str
    writer: str
    request_id: str | None = None
    cluster: str | None = None

    def continues(self, other: ChainRecord) -> bool:
        """Tell whether this chain, a later one, holds what the other would have held: no step back or over lies between."""
        return self.reason == SEALED and (self.incarnation, self.request_id) == (other.incarnation, other.request_id)

    def encode(self) -> bytes:
        """Return the record's bytes."""
        fields: dict[str, object] = {
            "format": FORMAT_VERSION,
            "origin": self.origin,
            **encode_incarnation(self.incarnation),
            "extension": self.extension,
            "reason": self.reason,
            "writer": self.writer,
        }
        if self.request_id is not None:
            fields["request_id"] = self.request_id
        if self.cluster is not None:
            fields["cluster"] = self.cluster
        return encode_fields(fields)

    @classmethod
    def parse(cls, data: bytes) -> ChainRecord:
        """Read a record. Raises MalformedRecord."""
        fields = decode_fields(data)
        return cls(
            origin=get_number(fields, "origin"),
            incarnation=get_incarnation(fields),
            extension=get_text(fields, "extension"),
            reason=get_text(fields, "reason"),
            writer=get_text(fields, "writer"),
            request_id=get_text(fields, "request_id") if "request_id" in fields else None,
            cluster=get_text(fields, "cluster") if "cluster" in fields else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedEnd:
    """How far a partition's chain has reached at least: what the group notes when a file was published."""

    incarnation: Incarnation
    chain: int
    origin: int
    next_offset: int

    def encode(self) -> bytes:
        """Return the note's bytes."""
        fields = {"chain": self.chain, "origin": self.origin, "next_offset": self.next_offset}
        return encode_fields({"format": FORMAT_VERSION, **encode_incarnation(self.incarnation), **fields})

    @classmethod
    def parse(cls, data: bytes) -> LandedEnd:
        """Read a note. Raises MalformedRecord."""
        fields = decode_fields(data)
        return cls(
            incarnation=get_incarnation(fields),
            chain=get_number(fields, "chain"),
            origin=get_number(fields, "origin"),
            next_offset=get_number(fields, "next_offset"),
        )

    def find_missing(self, *, chain: int, end: int) -> Gap | None:
        """Return what is missing of a partition whose newest chain is of this number and ends there; None: nothing.

        Chains only grow and later ones have higher numbers, so that a lower end means that files were removed.
        """
        if chain > self.chain or end >= self.next_offset:
            return None
        return Gap(end, self.next_offset, GapReason.MISSING_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedGap:
    """Offsets without a landed record. ``offsets`` is how many: less than the span where several gaps are summed up."""

    start: int
    end: int
    reason: GapReason
    offsets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetadata:
    """What a landed file says of itself: a Parquet footer's ``consumerd`` entry, or a JSON file in ``_meta``.

    ``next_offset`` is where the chain goes on. Between ``position`` and ``next_offset`` every offset is a record of
    this file or lies in one of ``gaps``. ``sealed``: the chain ends here, at ``position``, for good; only a seal says so.
    Where the metadata stands beside the data (JSON lines), ``size``, ``sha256`` and ``modified_ns`` say which data it
    belongs to.
    """

    writer: str
    group: str
    cluster: str
    topic: str
    partition: PartitionKey
    incarnation: Incarnation
    chain: int
    position: int
    next_offset: int
    count: int
    first_offset: int | None
    last_offset: int | None
    min_timestamp: int | None
    max_timestamp: int | None
    gaps: tuple[LandedGap, ...]
    sealed: bool = False
    size: int | None = None
    sha256: str | None = None
    modified_ns: int | None = None

    def encode(self) -> bytes:
        """Return the metadata as one JSON object."""
        said = asdict(self)
        absent = [name for name in _OPTIONAL if said[name] is None or said[name] is False]
        fields: dict[str, object] = {"format": FORMAT_VERSION}
        for name, value in said.items():
            if name == "partition":
                fields |= encode_partition(self.partition)
            elif name == "incarnation":
                fields |= encode_incarnation(self.incarnation)
            elif name not in absent:
                fields[name] = value
        return encode_fields(fields)

    @classmethod
    def parse(cls, data: bytes) -> FileMetadata:
        """Read metadata. Raises MalformedRecord."""
        fields = decode_fields(data)
        metadata = cls(
            writer=get_text(fields, "writer"),
            group=get_text(fields, "group"),
            cluster=get_text(fields, "cluster"),
            topic=get_text(fields, "topic"),
            partition=get_partition(fields),
            incarnation=get_incarnation(fields),
            chain=get_number(fields, "chain"),
            position=get_number(fields, "position"),
            next_offset=get_number(fields, "next_offset"),
            count=get_number(fields, "count"),
            first_offset=find_number(fields, "first_offset"),
            last_offset=find_number(fields, "last_offset"),
            min_timestamp=find_number(fields, "min_timestamp"),
            max_timestamp=find_number(fields, "max_timestamp"),
            gaps=_gaps(fields),
            sealed=fields.get("sealed") is True,
            size=find_number(fields, "size"),
            sha256=get_text(fields, "sha256") if "sha256" in fields else None,
            modified_ns=find_number(fields, "modified_ns"),
        )
        if metadata.next_offset < metadata.position:
            raise MalformedRecord(f"next_offset {metadata.next_offset} is below the position {metadata.position}")
        if metadata.sealed and metadata.next_offset != metadata.position:
            raise MalformedRecord(f"a seal at {metadata.position} whose next_offset is {metadata.next_offset}")
        return metadata


_OPTIONAL: Final = ("sealed", "size", "sha256", "modified_ns")


# -- what a file is going to say


class GapLedger:
    """The gaps of one file, within a bound: a compacted topic can have as many as records."""

    def __init__(self, limit: int = MAX_GAPS) -> None:
        self._limit = limit
        self._listed: list[LandedGap] = []
        self._summed: dict[GapReason, LandedGap] = {}

    def add(self, gap: Gap) -> None:
        """Note a gap that begins at or after the end of those noted before."""
        self.add_entry(LandedGap(start=gap.start, end=gap.end, reason=gap.reason, offsets=gap.end - gap.start))

    def add_entry(self, entry: LandedGap) -> None:
        """Note an entry of another file, perhaps a sum.

        Its start is not below that of entries noted before.
        """
        reason = entry.reason
        if reason in self._summed:
            self._summed[reason] = _sum_up([self._summed[reason], entry])
        elif entry.offsets < entry.end - entry.start:
            self._sum_up(reason, entry)
        elif self._listed and self._listed[-1].reason is reason and self._listed[-1].end == entry.start:
            self._listed[-1] = _sum_up([self._listed[-1], entry])
        else:
            self._listed.append(entry)
            if len(self._listed) > self._limit:
                self._sum_up_most_frequent()

    def entries(self) -> tuple[LandedGap, ...]:
        """Return the gaps by where they start; a summed one spans others."""
        return tuple(sorted([*self._listed, *self._summed.values()], key=lambda gap: (gap.start, gap.end)))

    def _sum_up_most_frequent(self) -> None:
        reason, _ = Counter(gap.reason for gap in self._listed).most_common(1)[0]
        self._sum_up(reason)

    def _sum_up(self, reason: GapReason, *more: LandedGap) -> None:
        self._summed[reason] = _sum_up([*(gap for gap in self._listed if gap.reason is reason), *more])
        self._listed = [gap for gap in self._listed if gap.reason is not reason]


class FileSummary:
    """What a file holds so far."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.next_offset = position
        self.count = 0
        self._first_offset: int | None = None
        self._last_offset: int | None = None
        self._min_timestamp: int | None = None
        self._max_timestamp: int | None = None
        self._gaps = GapLedger()

    def pass_over(self, gap: Gap) -> None:
        """Note offsets that this file leaves out and no batch tells of."""
        self._gaps.add(gap)
        self.next_offset = gap.end

    def add(self, batch: RecordBatch) -> None:
        """Note a batch that the file has taken."""
        if batch.offsets:
            if self._first_offset is None:
                self._first_offset = batch.offsets[0]
            self._last_offset = batch.offsets[-1]
            self.count += len(batch)
            self._add_timestamps(batch)
        for gap in batch.gaps:
            self._gaps.add(gap)
        self.next_offset = batch.next_offset

    def describe(
        self,
        partition: TopicPartition,
        *,
        writer: str,
        group: str,
        cluster: str,
        incarnation: Incarnation,
        chain: int,
        sealed: bool = False,
    ) -> FileMetadata:
        """Return the metadata of a file with this content, or of the chain's seal."""
        return FileMetadata(
            writer=writer,
            group=group,
            cluster=cluster,
            topic=partition.topic,
            partition=partition.partition,
            incarnation=incarnation,
            chain=chain,
            position=self.position,
            next_offset=self.next_offset,
            count=self.count,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            min_timestamp=self._min_timestamp,
            max_timestamp=self._max_timestamp,
            gaps=self._gaps.entries(),
            sealed=sealed,
        )

    def _add_timestamps(self, batch: RecordBatch) -> None:
        extent = _extent(batch.timestamps)
        if extent is None:
            return
        low, high = extent
        self._min_timestamp = low if self._min_timestamp is None else min(self._min_timestamp, low)
        self._max_timestamp = high if self._max_timestamp is None else max(self._max_timestamp, high)


def _extent(timestamps: array[int]) -> tuple[int, int] | None:
    """Return the earliest and the latest of those that are none of NO_TIMESTAMP."""
    if kernel.gather is not None:
        return kernel.gather.extent(timestamps, NO_TIMESTAMP)
    known: Sequence[int] = timestamps
    if NO_TIMESTAMP in known:
        known = [timestamp for timestamp in known if timestamp != NO_TIMESTAMP]
    return (min(known), max(known)) if known else None


def _sum_up(gaps: list[LandedGap]) -> LandedGap:
    return replace(
        gaps[0],
        start=min(gap.start for gap in gaps),
        end=max(gap.end for gap in gaps),
        offsets=sum(gap.offsets for gap in gaps),
    )


def _gaps(fields: Mapping[str, object]) -> tuple[LandedGap, ...]:
    entries = fields.get("gaps")
    if not isinstance(entries, list):
        raise MalformedRecord(f"gaps is {entries!r}, expected a list")
    gaps = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise MalformedRecord(f"gap {entry!r}, expected an object")
        try:
            reason = GapReason(get_text(entry, "reason"))
        except ValueError as error:
            raise MalformedRecord(f"gap {entry!r}: {error}") from error
        gaps.append(
            LandedGap(
                start=get_number(entry, "start"),
                end=get_number(entry, "end"),
                reason=reason,
                offsets=get_number(entry, "offsets"),
            )
        )
    return tuple(gaps)
