# SPDX-License-Identifier: Apache-2.0
"""Names, records and metadata of landed files. Pure; touches no disk.

A file's path is ``<path>/topic=<T>/partition=<P>/chain=<n>/<position>.<extension>``. A *chain* is a run of files
without overlap. A file is named by its *chain position*, in twenty digits: the ``next_offset`` of the file before it,
or the chain's origin for the first file. So the files that are there determine the name of the next one, and a name can
be taken only once.

Example: a chain of origin 0 holds files 0 (offsets 0-99) and 100 (offsets 100-149). The next file is named 150.

The chains of a partition are numbered, and only the newest one grows. Every other chain ends with a *seal*, a file
without records whose ``next_offset`` is its own position. While the seal is there, no file can have that name, and no
writer can get past it.

Readers skip names that begin with ``_`` or ``.``, as Spark does. Those are the records of this module, and files that
are being written. Every record is one JSON object; readers skip keys that they do not know.
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
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import RecordBatch

ROOT_RECORD: Final = "_consumerd.json"
CHAIN_RECORD: Final = "_chain.json"
META_FOLDER: Final = "_meta"
HIDDEN_PREFIX: Final = "."
SEALED: Final = "sealed"
"""Reason, in ``_chain.json``, of a chain begun only because the one before was sealed.

The writer that sealed it died before it began the next chain.
"""
MAX_GAPS: Final = 1000
"""Largest number of gaps that a file lists one by one.

Beyond it, the gaps of the most frequent reason are summed up in one entry.
"""

FileId = NewType("FileId", str)
"""Id of one attempt to write a file: the process's writer id and a number. Never used twice."""

_CHAIN_FOLDER = re.compile(r"chain=([1-9][0-9]*)")
_DATA_NAME = re.compile(r"([0-9]{20})\.([a-z0-9]+(?:\.[a-z0-9]+)?)")
_META_NAME = re.compile(r"([0-9]{20})\.(.+)\.json")


# -- names


def partition_folder(partition: TopicPartition) -> tuple[str, str]:
    """Return the names of a partition's two folders, such as ``topic=orders`` and ``partition=3``.

    Characters that a file system or Spark would misread are percent-encoded.
    """
    return f"topic={quote(partition.topic, safe='')}", f"partition={quote(str(partition.partition), safe='')}"


def chain_folder(number: int) -> str:
    """Return the folder name of a partition's chain of files, such as ``chain=2``.

    Args:
        number: Number among the partition's chains, from 1.
    """
    return f"chain={number}"


def parse_chain_folder(name: str) -> int | None:
    """Return the chain number in a folder name such as ``chain=2``; None for other names."""
    match = _CHAIN_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def data_name(position: int, extension: str) -> str:
    """Return the final name of a data file, such as ``00000000000000000150.parquet``.

    Args:
        position: Offset at which the file begins: the end of the file before it.
        extension: Without a leading dot.
    """
    return f"{position:020d}.{extension}"


def parse_data_name(name: str, extension: str) -> int | None:
    """Return the offset in a data file's name; None for other names and extensions."""
    match = _DATA_NAME.fullmatch(name)
    return int(match[1]) if match and match[2] == extension else None


def hidden_name(name: str, file_id: FileId) -> str:
    """Return the hidden name under which the file ``name`` is written before it is published.

    Readers ignore the hidden name, which begins with a dot or an underscore. It contains ``file_id``, so two writers of
    one file never share it.
    """
    return f"{HIDDEN_PREFIX}{name}.{quote(file_id, safe='')}.tmp"


def is_hidden(name: str) -> bool:
    """Return True if a name is one that :func:`hidden_name` makes."""
    return name.startswith(HIDDEN_PREFIX) and name.endswith(".tmp")


def meta_name(position: int, file_id: FileId) -> str:
    """Return the name of a metadata file in the folder ``_meta``.

    Several attempts to write a data file may each leave metadata, so the name has the id of the attempt.

    Args:
        position: Offset that names the data file.
        file_id: Id of the attempt.
    """
    return f"{position:020d}.{quote(file_id, safe='')}.json"


def parse_meta_name(name: str) -> int | None:
    """Return the offset in a metadata file's name in ``_meta``; None for other names."""
    match = _META_NAME.fullmatch(name)
    return int(match[1]) if match else None


# -- records


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecord:
    """Content of ``_consumerd.json``: the group and cluster that own a sink's path.

    ``root`` is a random id. ZooKeeper has it too, so a path whose volume is not mounted, or another volume, is noticed.
    """

    root: str
    cluster: str
    group: str

    def encode(self) -> bytes:
        """Return the content of ``_consumerd.json`` as JSON."""
        return encode_fields({"format": FORMAT_VERSION, **asdict(self)})

    @classmethod
    def parse(cls, data: bytes) -> RootRecord:
        """Parse the content of ``_consumerd.json``. Raises MalformedRecord."""
        fields = decode_fields(data)
        return cls(root=get_text(fields, "root"), cluster=get_text(fields, "cluster"), group=get_text(fields, "group"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRecord:
    """Content of ``_chain.json``, written when a chain of landed files begins, and never changed.

    Args:
        origin: Offset at which the chain begins.
        incarnation: Identity of the topic; a topic that is created again under the same name has another one.
        extension: Extension of the chain's data files, without a dot.
        reason: Why a new chain was begun.
        writer: Id of the process that began the chain.
        request_id: Id of the operator's request that asked for the chain; None if no request did. If ``reason`` is
            ``SEALED``, the chain only continues where the one before was sealed, and has the ``request_id`` of that
            one.
        cluster: The cluster's id; None in records of format 1.
    """

    origin: int
    incarnation: Incarnation
    extension: str
    reason: str
    writer: str
    request_id: str | None = None
    cluster: str | None = None

    def continues(self, other: ChainRecord) -> bool:
        """Return True if this chain only continues the sealed chain ``other``.

        It has the reason ``SEALED``, and the incarnation and the request of ``other``.
        """
        return self.reason == SEALED and (self.incarnation, self.request_id) == (other.incarnation, other.request_id)

    def encode(self) -> bytes:
        """Return the content of ``_chain.json`` as JSON."""
        fields = {
            "format": FORMAT_VERSION,
            "origin": self.origin,
            **encode_incarnation(self.incarnation),
            "extension": self.extension,
            "reason": self.reason,
            "writer": self.writer,
            "request_id": self.request_id,
            "cluster": self.cluster,
        }
        return encode_fields({name: value for name, value in fields.items() if value is not None})

    @classmethod
    def parse(cls, data: bytes) -> ChainRecord:
        """Parse the content of ``_chain.json``. Raises MalformedRecord."""
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
    """Lower bound for the end of a partition's newest chain, as recorded in ZooKeeper.

    A chain is a run of landed files without overlap. The end is recorded whenever a file was published.

    Attributes:
        chain: Number of the chain, from 1.
        origin: Offset at which the chain begins.
        next_offset: Offset after the last file that was recorded.
    """

    incarnation: Incarnation
    chain: int
    origin: int
    next_offset: int

    def encode(self) -> bytes:
        """Return the value of the znode in which this end is recorded, as JSON."""
        fields = {"chain": self.chain, "origin": self.origin, "next_offset": self.next_offset}
        return encode_fields({"format": FORMAT_VERSION, **encode_incarnation(self.incarnation), **fields})

    @classmethod
    def parse(cls, data: bytes) -> LandedEnd:
        """Parse the value of the znode that records the end. Raises MalformedRecord."""
        fields = decode_fields(data)
        return cls(
            incarnation=get_incarnation(fields),
            chain=get_number(fields, "chain"),
            origin=get_number(fields, "origin"),
            next_offset=get_number(fields, "next_offset"),
        )

    def find_missing(self, *, chain: int, end: int) -> Gap | None:
        """Return the offsets that had landed according to this record, but are not on disk.

        None if no offset is missing: the chain on disk reaches this end, or a newer chain was begun. A lower end on
        disk means that files were removed, because chains only grow.

        Args:
            chain: Number of the newest chain on disk.
            end: Offset after the last file of that chain.
        """
        if chain > self.chain or end >= self.next_offset:
            return None
        return Gap(end, self.next_offset, GapReason.MISSING_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedGap:
    """Range of offsets for which a landed file has no records, for one ``reason``.

    Attributes:
        start: first offset of the range.
        end: offset after the range.
        offsets: number of offsets without a record in the range: ``end - start``, or less if the entry is the sum of
            several gaps with records between them.
    """

    start: int
    end: int
    reason: GapReason
    offsets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetadata:
    """Metadata of a landed file: a Parquet footer's ``consumerd`` entry, or JSON in ``_meta``.

    From ``position`` to ``next_offset`` (not included), every offset is a record of this file or lies in one of
    ``gaps``. Timestamps are in ms since the epoch.

    Args:
        writer: Id of the attempt that wrote the file.
        chain: Number of the file's chain among those of the partition, from 1.
        position: Offset at which the file begins.
        next_offset: Offset at which the next file begins.
        count: Number of records.
        first_offset: Offset of the first record; None without a record.
        last_offset: Offset of the last record; None without a record.
        min_timestamp: Earliest timestamp of the records; None if no record has one.
        max_timestamp: Latest timestamp of the records; None if no record has one.
        sealed: True for a seal: a file without records, after which no file can be added.
        size: Size in bytes of the data file to which metadata in ``_meta`` belong. ``sha256`` and ``modified_ns`` (time
            of modification, in ns since the epoch) identify that file, too. None in Parquet, whose metadata are within
            the file.
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
        """Return a file's metadata as one JSON object."""
        optional = {
            "sealed": self.sealed or None,
            "size": self.size,
            "sha256": self.sha256,
            "modified_ns": self.modified_ns,
        }
        fields = {
            "format": FORMAT_VERSION,
            "writer": self.writer,
            "group": self.group,
            "cluster": self.cluster,
            "topic": self.topic,
            **encode_partition(self.partition),
            **encode_incarnation(self.incarnation),
            "chain": self.chain,
            "position": self.position,
            "next_offset": self.next_offset,
            "count": self.count,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "min_timestamp": self.min_timestamp,
            "max_timestamp": self.max_timestamp,
            "gaps": [asdict(gap) for gap in self.gaps],
            **{name: value for name, value in optional.items() if value is not None},
        }
        return encode_fields(fields)

    @classmethod
    def parse(cls, data: bytes) -> FileMetadata:
        """Parse a file's metadata. Raises MalformedRecord."""
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


# -- what a file is going to say


class GapLedger:
    """Collects the gaps of one file, in bounded memory.

    A compacted topic can have as many gaps as records. If there are more than ``limit`` gaps, all gaps of the most
    frequent reason become one entry: their whole range, and the number of offsets without a record in it.
    """

    def __init__(self, limit: int = MAX_GAPS) -> None:
        self._limit = limit
        self._listed: list[LandedGap] = []
        self._summed: dict[GapReason, LandedGap] = {}

    def add(self, gap: Gap) -> None:
        """Add a gap that begins at or after the end of those added before."""
        self.add_entry(LandedGap(start=gap.start, end=gap.end, reason=gap.reason, offsets=gap.end - gap.start))

    def add_entry(self, entry: LandedGap) -> None:
        """Add a gap that another file lists, which may be a sum of several gaps.

        Entries come in the order of their starts.
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
                [(most_frequent, _)] = Counter(gap.reason for gap in self._listed).most_common(1)
                self._sum_up(most_frequent)

    def entries(self) -> tuple[LandedGap, ...]:
        """Return the gaps, sorted by start.

        The range of an entry that is the sum of several gaps may include gaps of other reasons.
        """
        return tuple(sorted([*self._listed, *self._summed.values()], key=lambda gap: (gap.start, gap.end)))

    def _sum_up(self, reason: GapReason, *more: LandedGap) -> None:
        self._summed[reason] = _sum_up([*(gap for gap in self._listed if gap.reason is reason), *more])
        self._listed = [gap for gap in self._listed if gap.reason is not reason]


class FileSummary:
    """Counts, offsets, timestamps and gaps of a file that is being written.

    Args:
        position: Offset at which the file begins.
    """

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
        """Add a gap: offsets for which the file has no records."""
        self._gaps.add(gap)
        self.next_offset = gap.end

    def add(self, batch: RecordBatch) -> None:
        """Add a batch that was written to the file."""
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
        """Return the metadata of a file with these records and gaps.

        Args:
            chain: Number of the file's chain among those of the partition, from 1.
            sealed: True for a seal: a file without records, which ends the chain.
        """
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
    """Return the earliest and the latest timestamp, without NO_TIMESTAMP; None without any."""
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
