# SPDX-License-Identifier: Apache-2.0
"""Reads landed files as Arrow batches, of both formats and the same columns: what Spark's tasks do with them.

Columns are those of ``wire.arrow``. Topic, partition and broker, which files of format 2 have as columns, are known
from the metadata; they are only held against these. JSON lines of older releases do not say what a timestamp is:
``timestamp_type`` is null there where there is a timestamp. What cannot be read, or is not what the file's metadata say,
is a :class:`DamagedFile`: a file that was cut off or changed after it had been published.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from consumerd.errors import ConsumerdError
from consumerd.landing.landed_columns import PLACE_COLUMNS
from consumerd.landing.line_compression import DAMAGE, find_line_compression, open_lines
from consumerd.landing.ranges import RangeSet
from consumerd.model import TimestampType, TopicPartition
from consumerd.wire.arrow import SCHEMA

PIECE_BYTES: Final = 8 << 20
"""How much of a file of JSON lines is parsed at once; more where a line is longer."""

_PLAIN_SCHEMA: Final = pa.schema([SCHEMA.field(name).with_nullable(True) for name in SCHEMA.names])  # noqa: FBT003
IDENTITY_SCHEMA: Final = pa.schema([_PLAIN_SCHEMA.field("offset"), _PLAIN_SCHEMA.field("index")])
"""What tells rows of one log apart."""

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


class DamagedFile(ConsumerdError):
    """A landed file is not what its metadata say. ``path`` names it, ``reason`` says what is wrong."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str, str]]:
        return DamagedFile, (self.path, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedContent:
    """Where a file is, and whose records and how many its metadata say that it holds. ``sha256`` where they tell."""

    path: str
    partition: TopicPartition
    extension: str
    count: int
    sha256: str | None = None


def read_rows(file: LandedContent, wanted: RangeSet | None = None) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in order, as batches of up to a row group each.

    With ``wanted`` no rows but those of these offsets are of interest: parts of the file that have none of them may be
    left out. Raises DamagedFile, OSError.
    """
    if find_line_compression(file.extension):
        yield from _read_lines(file)
        return
    try:
        yield from _read_parquet(file, wanted)
    except pa.ArrowException as error:
        raise DamagedFile(file.path, f"cannot be read: {error}") from error
    except OSError as error:
        if error.errno is None:  # Arrow's word for bytes that it cannot decompress
            raise DamagedFile(file.path, f"cannot be read: {error}") from error
        raise


def read_identities(file: LandedContent, wanted: RangeSet) -> pa.Table:
    """Return the columns ``offset`` and ``index`` of a file's rows, at least those in ``wanted``. Raises as read_rows."""
    batches = [batch.select(["offset", "index"]) for batch in read_rows(file, wanted)]
    return pa.Table.from_batches(batches, IDENTITY_SCHEMA)


def _read_parquet(file: LandedContent, wanted: RangeSet | None) -> Iterator[pa.RecordBatch]:
    metadata = pq.read_metadata(file.path)
    # the topic, the same in each row, is only compared: as a dictionary it costs a tenth of the texts (format 1 has none)
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
    """Raise DamagedFile where rows say that they are another partition's; files of format 1 say nothing."""
    key = file.partition.partition
    for name, value in zip(PLACE_COLUMNS, (file.partition.topic, key.number, key.broker), strict=True):
        found = table[name].unique().to_pylist() if name in table.column_names else [value]
        if found not in ([value], []):
            raise DamagedFile(file.path, f"holds rows of {name} {found[0]}, its metadata say {value}")


def _may_hold(group: pq.RowGroupMetaData, wanted: RangeSet) -> bool:
    columns = map(group.column, range(group.num_columns))
    offsets = next((column for column in columns if column.path_in_schema == "offset"), None)
    if offsets is None or not offsets.is_stats_set or not offsets.statistics.has_min_max:
        return True
    return bool(wanted & RangeSet.of([(offsets.statistics.min, offsets.statistics.max + 1)]))


def _read_lines(file: LandedContent) -> Iterator[pa.RecordBatch]:
    for _, batch in read_pieces(file):
        yield batch


def read_pieces(file: LandedContent) -> Iterator[tuple[bytes, pa.RecordBatch]]:
    """Yield a file of JSON lines as pieces of whole lines, each with its rows.

    Raises DamagedFile, OSError.
    """
    count = 0
    with Path(file.path).open("rb") as raw:
        source = _Digesting(raw)
        for piece in _read_pieces(file, source):
            try:
                batch = _parse_lines(piece)
            except (pa.ArrowException, ValueError) as error:  # the latter: base64, or text, that is none
                raise DamagedFile(file.path, f"cannot be read: {error}") from error
            count += len(batch)
            yield piece, batch
        while source.read(PIECE_BYTES):  # what a decompressor leaves behind its last stream
            pass
    if count != file.count:
        raise DamagedFile(file.path, f"holds {count} rows, its metadata say {file.count}")
    if file.sha256 is not None and source.digest.hexdigest() != file.sha256:
        raise DamagedFile(file.path, "is not what was written: its SHA-256 is not the one of its metadata")


class _Digesting(io.RawIOBase):
    """A file that is digested as it is read, in order."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def read(self, size: int = -1) -> bytes:
        """See io.RawIOBase."""
        data = self._source.read(size)
        self.digest.update(data)
        return data


def _read_pieces(file: LandedContent, source: _Digesting) -> Iterator[bytes]:
    """Yield a file's lines, decompressed. Raises DamagedFile, OSError."""
    try:
        yield from _pieces(open_lines(cast("BinaryIO", source), file.extension))
    except DAMAGE as error:
        raise DamagedFile(file.path, f"cannot be read: {error}") from error
    except OSError as error:
        if error.errno is None:  # gzip's word for bytes that are none of its own
            raise DamagedFile(file.path, f"cannot be read: {error}") from error
        raise


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    """Yield a file in pieces of whole lines; the last may lack its end."""
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
    # lines of older releases do not say what a timestamp is
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
    """Return what two fields of lines are together: text as UTF-8, or base64."""
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
