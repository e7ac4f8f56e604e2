# SPDX-License-Identifier: Apache-2.0
"""Searches landed files for records, and removes records from them.

Spark's tasks search, so they need the landing folders mounted as the job ``bronze`` does. Threads of the driver rewrite
the files that have wanted records (``landing.erasing``). Rewritten Parquet files keep their columns and row groups; in
JSON lines the remaining lines keep their bytes.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumerd.errors import ConsumerdError
from consumerd.landing.chain import FileId, FileMetadata
from consumerd.landing.erasing import LeftRecords, describe_erased, replace_file
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.publish import HiddenFile, Outcome
from consumerd.landing.ranges import RangeSet
from consumerd.landing.values import LandedChain, LandedFile, Landing
from consumerd.spark.erase_tables import Removal, SoughtRecords, find_keys
from consumerd.spark.identities import DDL, SCHEMA, Identities, LogKey, Mask
from consumerd.spark.landed_rows import DamagedFile, LandedContent, read_columns, rewrite
from consumerd.spark.tasks import deal, run_shares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_THREADS: Final = 4
"""Landed files that are rewritten at the same time."""
_MAX_ATTEMPTS: Final = 3
"""Attempts to replace a file while claims of its partition remove the new one."""
_FOUND: Final = f"{DDL}, damage string"
"""Schema of the rows that tasks return: an identity, or the damage of a file."""
_FOUND_SCHEMA: Final = pa.schema([*SCHEMA, ("damage", pa.string())])
_SEARCHED: Final = ("offset", "next_offset", "index", "timestamp", "key")
"""Columns that a search reads."""


class LandedBusy(ConsumerdError):
    """Raised if a landed file could not be replaced: members kept claiming its partition.

    A member that claims a partition removes hidden files as leftovers of a dead process. The new file is hidden until
    it replaces the old one.
    """


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A landed file to search for records or to remove records from.

    Attributes:
        folder: folder of the file.
        content: path, format and number of records.
        metadata: metadata that the file was published with, such as its range of offsets.
        log: partition and incarnation of its records.
    """

    folder: str
    content: LandedContent
    metadata: FileMetadata
    log: LogKey

    def touches(self, identities: Identities) -> bool:
        """Return True if the file's range of offsets includes any of these records."""
        rows = identities.logs.get(self.log)
        return rows is not None and rows.touches(self.metadata.position, self.metadata.next_offset - 1)


@dataclass(slots=True)
class LandedSearch:
    """Records found in landed files, and files that could not be searched.

    Attributes:
        rows: identities of the records (``identities.SCHEMA``: incarnation, partition, offset and so on). A record may
            occur more than once.
        damage: one text for each file that could not be read.
    """

    rows: pa.Table
    damage: list[str] = field(default_factory=list)


def list_files(landing: Landing) -> tuple[list[SearchedFile], list[str]]:
    """Return the landed files whose metadata are known, and a text for each damaged one."""
    found: list[SearchedFile] = []
    damage: list[str] = []
    for chain in landing.chains:
        for file in chain.files:
            if file.metadata is not None:
                found.append(_describe(chain, file, file.metadata))
            elif Path(file.path).exists():  # else the job retention has removed it
                damage.append(file.damage or f"{file.path}: its metadata were not read")
    return found, damage


def _describe(chain: LandedChain, file: LandedFile, metadata: FileMetadata) -> SearchedFile:
    return SearchedFile(
        folder=chain.folder,
        content=LandedContent(
            path=file.path,
            partition=chain.partition,
            extension=chain.record.extension,
            count=metadata.count,
            sha256=metadata.sha256,
        ),
        metadata=metadata,
        log=LogKey(
            str(chain.log.incarnation),
            None if chain.partition.partition.broker is None else int(chain.partition.partition.broker),
            chain.partition.partition.number,
        ),
    )


def search(spark: SparkSession, files: Sequence[SearchedFile], wanted: SoughtRecords, *, limit: int) -> LandedSearch:
    """Search landed files for records, in Spark's tasks; return at most ``limit`` of them.

    Raises Spark's exceptions if a task fails.
    """
    chosen = [
        one for one in files if one.metadata.count and (wanted.keys is not None or one.touches(wanted.identities))
    ]
    if not chosen:
        return LandedSearch(SCHEMA.empty_table())
    found = run_shares(spark, deal(spark, chosen), functools.partial(_find_in_files, wanted), _FOUND)
    rows = found.limit(limit).toArrow()
    damage = [text for text in rows["damage"].to_pylist() if text is not None]
    return LandedSearch(rows.filter(pc.is_null(rows["damage"])).select(SCHEMA.names).cast(SCHEMA), damage)


def _find_in_files(wanted: SoughtRecords, files: Sequence[SearchedFile]) -> Iterator[pa.RecordBatch]:
    """Search a task's files; yield ``_FOUND``."""
    for one in files:
        try:
            for rows in read_columns(one.content, _SEARCHED):
                found = rows.filter(pa.array(_find(one, rows, wanted)))
                if len(found):
                    yield from _identities(one, found).to_batches()
        except FileNotFoundError:
            continue  # the job retention has removed it
        except DamagedFile as error:
            nothing = dict.fromkeys(SCHEMA.names)
            yield from pa.Table.from_pylist([{**nothing, "damage": str(error)}], schema=_FOUND_SCHEMA).to_batches()


def _identities(one: SearchedFile, rows: pa.RecordBatch) -> pa.Table:
    place = [pa.repeat(pa.scalar(value, kind), len(rows)) for value, kind in zip(one.log, SCHEMA.types, strict=False)]
    columns = [*place, rows["offset"], rows["index"], pa.nulls(len(rows), pa.string())]
    return pa.Table.from_arrays(columns, schema=_FOUND_SCHEMA)


def _find(one: SearchedFile, rows: pa.RecordBatch, wanted: SoughtRecords) -> Mask:
    """Return a mask of the wanted rows of a file."""
    found = np.zeros(len(rows), np.bool_)
    records = wanted.identities.logs.get(one.log)
    if records is not None:
        found |= records.find(np.asarray(rows["offset"]), np.asarray(rows["index"]))
    return found if wanted.keys is None else found | find_keys(rows["key"], wanted.keys)


# -- removal


def remove(files: FileSystem, landed: Sequence[SearchedFile], identities: Identities) -> Removal:
    """Rewrite the landed files that have some of these records, without the records.

    Returns the numbers of rows and files. Raises DamagedFile, LandedBusy, OSError.
    """
    chosen = [one for one in landed if one.metadata.count and one.touches(identities)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="erase") as pool:
        counts = list(pool.map(lambda one: _remove_from(files, one, identities), chosen))
    return Removal(rows=sum(counts), files=sum(1 for count in counts if count))


def _remove_from(files: FileSystem, one: SearchedFile, identities: Identities) -> int:
    """Rewrite one file without these records; return the number removed."""
    wanted = SoughtRecords(identities=identities)
    try:
        tally = _FileTally()
        for rows in read_columns(one.content, _SEARCHED):
            tally.add(rows, _find(one, rows, wanted))
        if not tally.erased:
            return 0
        metadata = describe_erased(one.metadata, tally.left, tally.spans())
        # a claim of the partition may remove the hidden file before it replaces the landed one: write it again
        for _ in range(_MAX_ATTEMPTS):
            outcome = replace_file(
                files,
                Path(one.folder),
                one.metadata,
                extension=one.content.extension,
                file_id=FileId(f"erase-{uuid.uuid4().hex}"),
                write=lambda hidden: _write(hidden, one, wanted, metadata),
            )
            if outcome is Outcome.PUBLISHED:
                return tally.erased
    except FileNotFoundError:
        return 0  # the job retention has removed it
    raise LandedBusy(
        f"{one.content.path}: claims of its partition have removed the file that was to replace it {_MAX_ATTEMPTS} "
        "times; nothing of it was changed, run the job again"
    )


@dataclass(slots=True)
class _FileTally:
    """Tally of one file: its erased records, and the metadata of the remaining ones."""

    erased: int = 0
    _gone: list[tuple[int, int]] = field(default_factory=list)
    _kept: list[tuple[int, int]] = field(default_factory=list)
    left: LeftRecords = field(default_factory=LeftRecords)

    def add(self, rows: pa.RecordBatch, erased: Mask) -> None:
        """Add rows of the file.

        Args:
            erased: mask of the rows that are erased.
        """
        if erased.any():
            self.erased += int(erased.sum())
            self._gone += _spans(rows, erased)
        # Records of Kafka 0.7 may share an offset, which is covered while one of them remains. Records with a batch's
        # first or last offset may also be in the batch before or after it, so these rows are always kept for that.
        kept = np.flatnonzero(~erased)
        shared = np.isin(np.asarray(rows["offset"]), np.asarray(rows["offset"])[erased])
        shared[[*kept[:1], *kept[-1:]]] = True
        self._kept += _spans(rows, shared & ~erased)
        left = rows.filter(pa.array(~erased))
        if not len(left):
            return
        times = pc.min_max(left["timestamp"].cast(pa.int64()))
        low, high = times["min"].as_py(), times["max"].as_py()
        before = self.left
        self.left = LeftRecords(
            count=before.count + len(left),
            first_offset=left["offset"][0].as_py() if before.first_offset is None else before.first_offset,
            last_offset=left["offset"][-1].as_py(),
            min_timestamp=min((one for one in (before.min_timestamp, low) if one is not None), default=None),
            max_timestamp=max((one for one in (before.max_timestamp, high) if one is not None), default=None),
        )

    def spans(self) -> list[tuple[int, int]]:
        """Return the offsets that no remaining record covers."""
        return [(span.start, span.end) for span in RangeSet.of(self._gone) - RangeSet.of(self._kept)]


def _spans(rows: pa.RecordBatch, mask: Mask) -> list[tuple[int, int]]:
    offsets, ends = (np.asarray(rows[name])[mask].tolist() for name in ("offset", "next_offset"))
    return list(zip(offsets, ends, strict=True))


def _write(hidden: HiddenFile, one: SearchedFile, wanted: SoughtRecords, metadata: FileMetadata) -> FileMetadata:
    rewrite(one.content, hidden, metadata, lambda rows: ~_find(one, rows, wanted))
    return metadata
