# SPDX-License-Identifier: Apache-2.0
"""Search for records in landed files, and removal of them.

Searching is done in Spark's tasks, which see the landing folders as those of bronze do. Removal rewrites the files that
hold wanted records, in threads of the driver (``landing.erasing``). Parquet keeps its columns and row groups, JSON lines
stay as they are, byte for byte.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from consumerd.errors import ConsumerdError
from consumerd.landing.chain import FileId, FileMetadata
from consumerd.landing.erasing import LeftRecords, describe_erased, replace_file
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.line_compression import compress_lines, find_line_compression
from consumerd.landing.metadata import FOOTER_KEY
from consumerd.landing.publish import HiddenFile, Outcome
from consumerd.landing.ranges import RangeSet
from consumerd.landing.values import LandedChain, LandedFile, Landing
from consumerd.sinks.parquet import Compression, ParquetCodec, make_writer
from consumerd.spark.identities import DDL, SCHEMA, Identities, LogKey, Mask
from consumerd.spark.landed_rows import DamagedFile, LandedContent, read_pieces, read_rows
from consumerd.spark.wanted import SoughtRecords, find_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_THREADS: Final = 4
_TRIES: Final = 3
_TASKS_A_CORE: Final = 2
_FOUND: Final = f"{DDL}, damage string"
_FOUND_SCHEMA: Final = pa.schema([*SCHEMA, ("damage", pa.string())])
_SEARCHED: Final = ("offset", "next_offset", "index", "timestamp", "key")
_CODECS: Final[dict[str, Compression]] = {"ZSTD": "zstd", "SNAPPY": "snappy", "UNCOMPRESSED": "none"}


class LandedBusy(ConsumerdError):
    """Claims of a partition keep removing the file that is to replace a landed one."""


@dataclass(frozen=True, slots=True)
class LandedOne:
    """A landed file to search or to rewrite, and its log."""

    folder: str
    extension: str
    content: LandedContent
    metadata: FileMetadata
    log: LogKey

    def touches(self, identities: Identities) -> bool:
        """Tell by the file's span whether it may hold one of these records."""
        rows = identities.logs.get(self.log)
        return rows is not None and rows.touches(self.metadata.position, self.metadata.next_offset - 1)


@dataclass(slots=True)
class LandedSearch:
    """Result of a search.

    Attributes:
        rows: identities, maybe some more than once.
        damage: reasons why files cannot be read.
    """

    rows: pa.Table
    damage: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LandedRemoval:
    """Number of records removed from landed files, and of files rewritten."""

    rows: int = 0
    files: int = 0


def list_files(landing: Landing) -> tuple[list[LandedOne], list[str]]:
    """Return the files whose metadata are known, and what is wrong with the others."""
    found: list[LandedOne] = []
    damage: list[str] = []
    for chain in landing.chains:
        for file in chain.files:
            if file.metadata is not None:
                found.append(_describe(chain, file, file.metadata))
            elif Path(file.path).exists():  # else the job retention has removed it
                damage.append(file.damage or f"{file.path}: its metadata were not read")
    return found, damage


def _describe(chain: LandedChain, file: LandedFile, metadata: FileMetadata) -> LandedOne:
    return LandedOne(
        folder=chain.folder,
        extension=chain.record.extension,
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


def search(spark: SparkSession, files: Sequence[LandedOne], wanted: SoughtRecords, *, limit: int) -> LandedSearch:
    """Find wanted records in files, at most ``limit``.

    Raises what Spark raises where a task fails.
    """
    chosen = [
        one for one in files if one.metadata.count and (wanted.keys is not None or one.touches(wanted.identities))
    ]
    if not chosen:
        return LandedSearch(SCHEMA.empty_table())
    count = min(len(chosen), _TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    groups = [chosen[place::count] for place in range(count)]
    rows = spark.range(0, count, 1, count).mapInArrow(_make_finder(groups, wanted), _FOUND).limit(limit).toArrow()
    damage = [text for text in rows["damage"].to_pylist() if text is not None]
    return LandedSearch(rows.filter(pc.is_null(rows["damage"])).select(SCHEMA.names).cast(SCHEMA), damage)


def _make_finder(
    groups: Sequence[Sequence[LandedOne]], wanted: SoughtRecords
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None  # this runs in tasks only
        for one in groups[context.partitionId()]:
            try:
                for rows in _read_searched(one):
                    found = rows.filter(pa.array(_find(one, rows, wanted)))
                    if len(found):
                        yield from _identities(one, found).to_batches()
            except FileNotFoundError:
                continue  # the job retention has removed it
            except DamagedFile as error:
                nothing = dict.fromkeys(SCHEMA.names)
                yield from pa.Table.from_pylist([{**nothing, "damage": str(error)}], schema=_FOUND_SCHEMA).to_batches()

    return find


def _identities(one: LandedOne, rows: pa.RecordBatch) -> pa.Table:
    place = [pa.repeat(pa.scalar(value, kind), len(rows)) for value, kind in zip(one.log, SCHEMA.types, strict=False)]
    columns = [*place, rows["offset"], rows["index"], pa.nulls(len(rows), pa.string())]
    return pa.Table.from_arrays(columns, schema=_FOUND_SCHEMA)


def _find(one: LandedOne, rows: pa.RecordBatch, wanted: SoughtRecords) -> Mask:
    """Return, for each row of a file, whether it is wanted."""
    found = np.zeros(len(rows), np.bool_)
    records = wanted.identities.logs.get(one.log)
    if records is not None:
        found |= records.find(np.asarray(rows["offset"]), np.asarray(rows["index"]))
    return found if wanted.keys is None else found | find_keys(rows["key"], wanted.keys)


def _read_searched(one: LandedOne) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows with at least the columns of ``_SEARCHED``."""
    if find_line_compression(one.extension) is not None:
        yield from read_rows(one.content)
        return
    try:
        with pq.ParquetFile(one.content.path, page_checksum_verification=True) as parquet:
            for number in range(parquet.num_row_groups):
                table = parquet.read_row_group(number, columns=list(_SEARCHED), use_threads=False)
                yield from table.combine_chunks().to_batches()
    except pa.ArrowException as error:
        raise DamagedFile(one.content.path, f"cannot be read: {error}") from error
    except OSError as error:
        if error.errno is None:
            raise DamagedFile(one.content.path, f"cannot be read: {error}") from error
        raise


# -- removal


def remove(files: FileSystem, landed: Sequence[LandedOne], identities: Identities) -> LandedRemoval:
    """Rewrite the files that hold some records. Raises DamagedFile, LandedBusy, OSError."""
    chosen = [one for one in landed if one.metadata.count and one.touches(identities)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="erase") as pool:
        counts = list(pool.map(lambda one: _remove_from(files, one, identities), chosen))
    return LandedRemoval(rows=sum(counts), files=sum(1 for count in counts if count))


def _remove_from(files: FileSystem, one: LandedOne, identities: Identities) -> int:
    wanted = SoughtRecords(identities=identities)
    try:
        account = _Account()
        for rows in _read_searched(one):
            account.add(rows, _find(one, rows, wanted))
        if not account.erased:
            return 0
        metadata = describe_erased(one.metadata, account.left(), account.spans())
        for _ in range(_TRIES):
            outcome = replace_file(
                files,
                Path(one.folder),
                one.metadata,
                extension=one.extension,
                file_id=FileId(f"erase-{uuid.uuid4().hex}"),
                write=lambda hidden: _write(hidden, one, wanted, metadata),
            )
            if outcome is Outcome.PUBLISHED:
                return account.erased
    except FileNotFoundError:
        return 0  # the job retention has removed it
    raise LandedBusy(
        f"{one.content.path}: claims of its partition have removed the file that was to replace it {_TRIES} times; "
        "nothing of it was changed, run the job again"
    )


@dataclass(slots=True)
class _Account:
    """Account of a file: the records that are erased, and those that are left."""

    erased: int = 0
    _gone: list[tuple[int, int]] = field(default_factory=list)
    _kept: list[tuple[int, int]] = field(default_factory=list)
    _left: LeftRecords = field(default_factory=LeftRecords)

    def add(self, rows: pa.RecordBatch, erased: Mask) -> None:
        if erased.any():
            self.erased += int(erased.sum())
            self._gone += _spans(rows, erased)
        # Records that share an offset (0.7) keep it covered as long as one of them is left. Those of a batch's first
        # and last offset may be in the batch before or after.
        kept = np.flatnonzero(~erased)
        shared = np.isin(np.asarray(rows["offset"]), np.asarray(rows["offset"])[erased])
        shared[[*kept[:1], *kept[-1:]]] = True
        self._kept += _spans(rows, shared & ~erased)
        left = rows.filter(pa.array(~erased))
        if not len(left):
            return
        times = pc.min_max(left["timestamp"].cast(pa.int64()))
        low, high = times["min"].as_py(), times["max"].as_py()
        before = self._left
        self._left = LeftRecords(
            count=before.count + len(left),
            first_offset=left["offset"][0].as_py() if before.first_offset is None else before.first_offset,
            last_offset=left["offset"][-1].as_py(),
            min_timestamp=min((one for one in (before.min_timestamp, low) if one is not None), default=None),
            max_timestamp=max((one for one in (before.max_timestamp, high) if one is not None), default=None),
        )

    def left(self) -> LeftRecords:
        return self._left

    def spans(self) -> list[tuple[int, int]]:
        return [(span.start, span.end) for span in RangeSet.of(self._gone) - RangeSet.of(self._kept)]


def _spans(rows: pa.RecordBatch, mask: Mask) -> list[tuple[int, int]]:
    offsets, ends = (np.asarray(rows[name])[mask].tolist() for name in ("offset", "next_offset"))
    return list(zip(offsets, ends, strict=True))


def _write(hidden: HiddenFile, one: LandedOne, wanted: SoughtRecords, metadata: FileMetadata) -> FileMetadata:
    if find_line_compression(one.extension) is not None:
        _write_lines(hidden, one, wanted)
        return metadata
    try:
        _write_parquet(hidden, one, wanted, metadata)
    except pa.ArrowException as error:
        raise DamagedFile(one.content.path, f"cannot be read: {error}") from error
    except OSError as error:
        if error.errno is None:  # Arrow's word for a page whose checksum does not fit
            raise DamagedFile(one.content.path, f"cannot be read: {error}") from error
        raise
    return metadata


def _write_parquet(hidden: HiddenFile, one: LandedOne, wanted: SoughtRecords, metadata: FileMetadata) -> None:
    with pq.ParquetFile(one.content.path, page_checksum_verification=True) as parquet:
        schema = parquet.schema_arrow.remove_metadata()
        groups = (
            parquet.read_row_group(number, use_threads=False).replace_schema_metadata(None)
            for number in range(parquet.num_row_groups)
        )
        writer: pq.ParquetWriter | None = None
        codec = ParquetCodec(_compression(parquet.metadata))
        for group in groups:
            [rows] = group.select(_SEARCHED).combine_chunks().to_batches() or [None]
            if rows is None:
                continue
            left = group.filter(pa.array(~_find(one, rows, wanted)))
            if len(left):
                writer = writer or make_writer(hidden, left, codec, schema=schema)
                writer.write_table(left, row_group_size=len(left))
        writer = writer or make_writer(hidden, schema.empty_table(), codec, schema=schema)
        writer.add_key_value_metadata({FOOTER_KEY: metadata.encode()})
        writer.close()


def _compression(metadata: pq.FileMetaData) -> Compression:
    if not metadata.num_row_groups:
        return "zstd"
    return _CODECS.get(metadata.row_group(0).column(0).compression, "zstd")


def _write_lines(hidden: HiddenFile, one: LandedOne, wanted: SoughtRecords) -> None:
    """Write the lines that stay, a member or frame for each piece that is read."""
    compression = find_line_compression(one.extension)
    assert compression is not None
    for piece, rows in read_pieces(one.content):
        lines = [line + b"\n" for line in piece.removesuffix(b"\n").split(b"\n")]
        if len(lines) != len(rows):
            raise DamagedFile(one.content.path, f"holds {len(lines)} lines with {len(rows)} records")
        left = [line for line, erased in zip(lines, _find(one, rows, wanted).tolist(), strict=True) if not erased]
        for data in left if compression == "none" else compress_lines(compression, left) if left else ():
            hidden.write(data)
    if compression != "none" and not hidden.size:
        for data in compress_lines(compression, []):  # nothing at all is no gzip file
            hidden.write(data)
