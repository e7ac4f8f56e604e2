# SPDX-License-Identifier: Apache-2.0
"""Reads landed files as Arrow batches, in Spark's tasks.

Parquet and JSON lines give the same columns, those of ``wire.arrow``. Topic, partition and broker come from the file's
metadata; Parquet files of format 2 also have them as columns, which must agree. ``timestamp_type`` is null for records
with a timestamp in JSON lines of older releases, which did not write it.

A file that cannot be read, or contradicts its metadata, raises :class:`DamagedFile`: it was truncated or changed after
it had been published.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from consumerd.errors import ConsumerdError
from consumerd.landing.chain import FileMetadata
from consumerd.landing.landed_columns import PLACE_COLUMNS
from consumerd.landing.line_compression import DAMAGE, EXTENSIONS, compress_lines, find_line_compression, open_lines
from consumerd.landing.metadata import FOOTER_KEY, PARQUET
from consumerd.landing.publish import HiddenFile
from consumerd.landing.ranges import RangeSet
from consumerd.model import TimestampType, TopicPartition
from consumerd.spark.identities import Mask
from consumerd.wire.arrow import SCHEMA

if TYPE_CHECKING:
    from consumerd.sinks.parquet import Compression

PIECE_BYTES: Final = 8 << 20
"""Bytes of JSON lines that are parsed at once. A longer line is parsed whole."""

KeptRows = Callable[[pa.RecordBatch], Mask]
"""Function that returns, for each row of a batch, True if the row stays in the file."""

_TESTED: Final = ("offset", "index", "key")
"""Columns by which a row stays or goes. Others are not copied to test it."""
_CODECS: Final[dict[str, Compression]] = {"ZSTD": "zstd", "SNAPPY": "snappy", "UNCOMPRESSED": "none"}
_PLAIN_SCHEMA: Final = pa.schema([SCHEMA.field(name).with_nullable(True) for name in SCHEMA.names])  # noqa: FBT003
"""Columns of ``wire.arrow``, all nullable."""
IDENTITY_SCHEMA: Final = pa.schema([_PLAIN_SCHEMA.field("offset"), _PLAIN_SCHEMA.field("index")])
"""Columns that identify a row of one log."""

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.string()), ("value_base64", pa.string())])
_LINE: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("index", pa.int32()),
        ("timestamp", pa.int64()),
        ("timestamp_type", pa.int8()),
        ("headers", pa.list_(_HEADER)),
        ("key", pa.string()),
        ("key_base64", pa.string()),
        ("value", pa.string()),
        ("value_base64", pa.string()),
    ]
)
"""Fields of a JSON line.

Bytes that are not UTF-8 are in the fields with ``_base64``.
"""


class DamagedFile(ConsumerdError):
    """Raised if a landed file contradicts its metadata or cannot be read.

    ``path`` names the file, ``reason`` says what is wrong.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str, str]]:
        return DamagedFile, (self.path, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedContent:
    """A landed file to read, with the facts from its metadata.

    Attributes:
        partition: partition of all its records.
        count: number of records.
        sha256: digest of the file; None if its metadata have none.
    """

    path: str
    partition: TopicPartition
    extension: str
    count: int
    sha256: str | None = None


def read_rows(file: LandedContent, wanted: RangeSet | None = None) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in order, in batches of at most a row group.

    Args:
        wanted: offsets that the caller needs. Row groups without any of them may be left out; None for all rows.

    Raises DamagedFile, OSError.
    """
    yield from _get_format(file).read(file, wanted)


def read_identities(file: LandedContent, wanted: RangeSet) -> pa.Table:
    """Return offset and index of a landed file's rows, as a table.

    Rows outside of ``wanted`` may be among them. The index numbers the records with one offset, from 0. Raises
    DamagedFile, OSError.
    """
    batches = [batch.select(["offset", "index"]) for batch in read_rows(file, wanted)]
    return pa.Table.from_batches(batches, IDENTITY_SCHEMA)


def read_columns(file: LandedContent, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a landed file's rows with at least the given columns. Raises DamagedFile, OSError."""
    yield from _get_format(file).read_columns(file, columns)


def rewrite(file: LandedContent, hidden: HiddenFile, metadata: FileMetadata, find_kept: KeptRows) -> None:
    """Write a landed file's content without some rows to a new file.

    Raises DamagedFile, OSError.

    Args:
        hidden: The new file.
        metadata: Metadata of the new file.
        find_kept: Function that returns, for each row of a batch, True if the row stays.
    """
    _get_format(file).rewrite(file, hidden, metadata, find_kept)


# -- Parquet


@contextlib.contextmanager
def _telling_damage(file: LandedContent) -> Iterator[None]:
    """Turn the failure of a library to read a file into DamagedFile."""
    try:
        yield
    except (pa.ArrowException, *DAMAGE) as error:
        raise DamagedFile(file.path, f"cannot be read: {error}") from error
    except OSError as error:
        if error.errno is None:  # Arrow's, for bytes that it cannot decompress or whose checksum differs; gzip's
            raise DamagedFile(file.path, f"cannot be read: {error}") from error
        raise


def _read_parquet(file: LandedContent, wanted: RangeSet | None) -> Iterator[pa.RecordBatch]:
    with _telling_damage(file):
        metadata = pq.read_metadata(file.path)
        # The topic is the same in each row and is only compared. Read as a dictionary it costs a tenth.
        # Format 1 has none.
        texts = [name for name in ("topic",) if name in metadata.schema.names]
        with pq.ParquetFile(
            file.path, metadata=metadata, read_dictionary=texts, page_checksum_verification=True
        ) as parquet:
            if parquet.metadata.num_rows != file.count:
                raise DamagedFile(file.path, f"holds {parquet.metadata.num_rows} rows, its metadata say {file.count}")
            missing = [name for name in SCHEMA.names if name not in parquet.schema_arrow.names]
            if missing:
                raise DamagedFile(file.path, f"has no column {missing[0]}")
            for number in range(parquet.num_row_groups):
                if wanted is None or _may_hold(parquet.metadata.row_group(number), wanted):
                    table = parquet.read_row_group(number, columns=[*PLACE_COLUMNS, *SCHEMA.names], use_threads=False)
                    _check_place(file, table)
                    yield from table.select(SCHEMA.names).cast(_PLAIN_SCHEMA).combine_chunks().to_batches()


def _check_place(file: LandedContent, table: pa.Table) -> None:
    """Raise DamagedFile if rows are of another partition.

    Files of format 1 do not have the columns that say so.
    """
    key = file.partition.partition
    for name, value in zip(PLACE_COLUMNS, (file.partition.topic, key.number, key.broker), strict=True):
        found = table[name].unique().to_pylist() if name in table.column_names else [value]
        if found not in ([value], []):
            raise DamagedFile(file.path, f"holds rows of {name} {found[0]}, its metadata say {value}")


def _may_hold(group: pq.RowGroupMetaData, wanted: RangeSet) -> bool:
    """Return False if a row group's statistics exclude all wanted offsets."""
    columns = map(group.column, range(group.num_columns))
    offsets = next((column for column in columns if column.path_in_schema == "offset"), None)
    if offsets is None or not offsets.is_stats_set or not offsets.statistics.has_min_max:
        return True
    return bool(wanted & RangeSet.of([(offsets.statistics.min, offsets.statistics.max + 1)]))


def _read_parquet_columns(file: LandedContent, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with _telling_damage(file), pq.ParquetFile(file.path, page_checksum_verification=True) as parquet:
        for number in range(parquet.num_row_groups):
            table = parquet.read_row_group(number, columns=list(columns), use_threads=False)
            yield from table.combine_chunks().to_batches()


def _rewrite_parquet(file: LandedContent, hidden: HiddenFile, metadata: FileMetadata, find_kept: KeptRows) -> None:
    """Write the rows that stay with the file's own columns and row groups."""
    # The sink brings pydantic and structlog, 0.1 s for each worker process of jobs that rewrite nothing.
    from consumerd.sinks.parquet import ParquetCodec, make_writer

    with _telling_damage(file), pq.ParquetFile(file.path, page_checksum_verification=True) as parquet:
        schema = parquet.schema_arrow.remove_metadata()
        groups = (
            parquet.read_row_group(number, use_threads=False).replace_schema_metadata(None)
            for number in range(parquet.num_row_groups)
        )
        writer: pq.ParquetWriter | None = None
        codec = ParquetCodec(_compression(parquet.metadata))
        for group in groups:
            [rows] = group.select(_TESTED).combine_chunks().to_batches() or [None]
            if rows is None:
                continue
            left = group.filter(pa.array(find_kept(rows)))
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


# -- JSON lines


def _read_lines(file: LandedContent, _wanted: object) -> Iterator[pa.RecordBatch]:
    for _, batch in read_pieces(file):
        yield batch


def _rewrite_lines(file: LandedContent, hidden: HiddenFile, _metadata: FileMetadata, find_kept: KeptRows) -> None:
    """Write the remaining lines unchanged, one gzip member or zstd frame a piece."""
    compression = find_line_compression(file.extension)
    assert compression is not None
    for piece, rows in read_pieces(file):
        lines = [line + b"\n" for line in piece.removesuffix(b"\n").split(b"\n")]
        if len(lines) != len(rows):
            raise DamagedFile(file.path, f"holds {len(lines)} lines with {len(rows)} records")
        left = [line for line, kept in zip(lines, find_kept(rows).tolist(), strict=True) if kept]
        for data in left if compression == "none" else compress_lines(compression, left) if left else ():
            hidden.write(data)
    if compression != "none" and not hidden.size:
        for data in compress_lines(compression, []):  # nothing at all is no gzip file
            hidden.write(data)


def read_pieces(file: LandedContent) -> Iterator[tuple[bytes, pa.RecordBatch]]:
    """Yield a file of JSON lines in parts of whole lines, each with its rows.

    Raises DamagedFile, OSError.
    """
    count = 0
    with Path(file.path).open("rb") as raw:
        source = _Digesting(raw)
        for piece in _read_pieces(file, source):
            try:
                batch = _parse_lines(piece)
            except (pa.ArrowException, ValueError) as error:  # ValueError: malformed base64 or UTF-8
                raise DamagedFile(file.path, f"cannot be read: {error}") from error
            count += len(batch)
            yield piece, batch
        while source.read(PIECE_BYTES):  # bytes after the last compressed stream count for the digest, too
            pass
    if count != file.count:
        raise DamagedFile(file.path, f"holds {count} rows, its metadata say {file.count}")
    if file.sha256 is not None and source.digest.hexdigest() != file.sha256:
        raise DamagedFile(file.path, "is not what was written: its SHA-256 is not the one of its metadata")


class _Digesting(io.RawIOBase):
    """A file whose SHA-256 is computed while it is read sequentially."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        """Return True, as files opened for reading do."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes, and add them to the digest."""
        data = self._source.read(size)
        self.digest.update(data)
        return data


def _read_pieces(file: LandedContent, source: _Digesting) -> Iterator[bytes]:
    """Yield a file's lines, decompressed, in pieces. Raises DamagedFile, OSError."""
    with _telling_damage(file):
        yield from _pieces(open_lines(cast("BinaryIO", source), file.extension))


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    """Yield pieces of whole lines of about ``PIECE_BYTES``. The last line may lack its newline."""
    rest = b""
    while data := source.read(PIECE_BYTES):
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            yield rest + head + newline
            rest = tail
        else:
            rest += data
    if rest:
        yield rest


def _parse_lines(piece: bytes) -> pa.RecordBatch:
    options = pa.json.ParseOptions(explicit_schema=_LINE, unexpected_field_behavior="ignore")
    reading = pa.json.ReadOptions(use_threads=False, block_size=len(piece) + 1)
    lines = pa.json.read_json(pa.BufferReader(piece), read_options=reading, parse_options=options)
    if not len(lines):
        raise pa.ArrowInvalid("there are lines, and no records")
    batch = lines.combine_chunks().to_batches()[0]
    count = len(batch)
    none = pa.scalar(int(TimestampType.NONE), pa.int8())
    timestamps = batch["timestamp"]
    # lines of older releases have no timestamp_type: null, except NONE without a timestamp
    types = pc.if_else(pc.is_null(timestamps), none, batch["timestamp_type"])
    if any(batch[name].null_count for name in ("offset", "next_offset", "index")):
        raise pa.ArrowInvalid("a line lacks its offset")
    columns = [
        batch["offset"],
        batch["next_offset"],
        batch["index"],
        timestamps.cast(pa.timestamp("ms", "UTC")),
        types if isinstance(types, pa.Array) else pa.array([types] * count),
        _bytes(batch["key"], batch["key_base64"]),
        _bytes(batch["value"], batch["value_base64"]),
        _headers(batch["headers"]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_PLAIN_SCHEMA)


def _bytes(texts: pa.Array, encoded: pa.Array) -> pa.Array:
    """Combine a text field and its base64 variant into one binary column."""
    plain = texts.cast(pa.binary())
    if encoded.null_count == len(encoded):
        return plain
    decoded = [None if text is None else base64.b64decode(text, validate=True) for text in encoded.to_pylist()]
    return pc.coalesce(plain, pa.array(decoded, pa.binary()))


def _headers(lists: pa.ListArray) -> pa.Array:
    kind = SCHEMA.field("headers").type
    lists = lists.fill_null([]) if lists.null_count else lists
    fields = lists.flatten()
    keys, values, encoded = fields.flatten()
    pairs = pa.StructArray.from_arrays([keys, _bytes(values, encoded)], fields=list(kind.value_type))
    starts: Sequence[int] | pa.Array = pc.subtract(lists.offsets, lists.offsets[0])
    return pa.ListArray.from_arrays(starts, pairs).cast(kind)


# -- the formats


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """Functions that read and rewrite landed files of one format.

    ``read_rows``, ``read_columns`` and ``rewrite`` call them.
    """

    read: Callable[[LandedContent, RangeSet | None], Iterator[pa.RecordBatch]]
    read_columns: Callable[[LandedContent, Sequence[str]], Iterator[pa.RecordBatch]]
    rewrite: Callable[[LandedContent, HiddenFile, FileMetadata, KeptRows], None]


_LINES: Final = RowFormat(read=_read_lines, read_columns=_read_lines, rewrite=_rewrite_lines)
ROW_FORMATS: Final[Mapping[str, RowFormat]] = {
    PARQUET: RowFormat(read=_read_parquet, read_columns=_read_parquet_columns, rewrite=_rewrite_parquet),
    **dict.fromkeys(EXTENSIONS.values(), _LINES),
}
"""Functions that read landed files, by extension of the file names.

It has one entry for each of ``landing.metadata.LANDED_FORMATS``.
"""


def _get_format(file: LandedContent) -> RowFormat:
    try:
        return ROW_FORMATS[file.extension]
    except KeyError:
        raise DamagedFile(file.path, f".{file.extension} files are of no format that is known here") from None
