# SPDX-License-Identifier: Apache-2.0
"""A batch as Arrow columns, in as many pieces as they take; names the record that cannot be one of them. No IO.

What Arrow and Parquet can hold, as measured with pyarrow 26: a column of ``binary`` has int32 offsets, so that its values
together stay below 2 GiB; and so does a page, headers included, of which the writer makes one for up to 1024 values, and
before and after compression. A batch beyond that is cut in two until its parts are below. What remains is a record that is
too large by itself, or of which Arrow says that it does not fit (an index beyond int32). Timestamps of any value fit.
"""

from __future__ import annotations

import errno
from array import array
from typing import Final

import pyarrow as pa

from consumerd.errors import PermanentSinkError
from consumerd.wire.records import RecordBatch

LARGEST_COLUMN_BYTES: Final = (2 << 30) - (1 << 20)
"""The most that the keys, values or headers of one piece may have together; the rest is for what pages add to them."""


def to_pieces(batch: RecordBatch, *, largest_bytes: int = LARGEST_COLUMN_BYTES) -> list[pa.RecordBatch]:
    """Return the records as Arrow record batches, nearly always one.

    Raises PermanentSinkError, which names the row, where a record does not fit; CorruptMessageError where headers cannot
    be read; OSError for want of memory.
    """
    return _convert(batch, 0, largest_bytes)


def _convert(batch: RecordBatch, first_row: int, largest_bytes: int) -> list[pa.RecordBatch]:
    refusal: Exception | None = None
    if _is_below(batch, largest_bytes):
        try:
            return [batch.to_arrow()]
        except pa.ArrowMemoryError as error:
            raise OSError(errno.ENOMEM, f"Arrow: {error}") from error
        except pa.ArrowException as error:
            refusal = error
    if len(batch) == 1:
        what = refusal or f"its key, value or headers have more than {largest_bytes} bytes"
        raise PermanentSinkError(
            f"{batch.partition}: the record at offset {batch.offsets[0]} does not fit into Arrow columns: {what}",
            refused=first_row,
        ) from refusal
    half = len(batch) // 2
    return [
        *_convert(batch.rows(0, half), first_row, largest_bytes),
        *_convert(batch.rows(half, len(batch)), first_row + half, largest_bytes),
    ]


def _is_below(batch: RecordBatch, largest_bytes: int) -> bool:
    """Tell whether no column has more; everything lies in the buffer, so that mostly its size says it all."""
    if len(batch.buffer) <= largest_bytes:
        return True
    columns = (
        (batch.key_starts, batch.key_ends),
        (batch.value_starts, batch.value_ends),
        (batch.header_starts, batch.header_ends),
    )
    return all(_size(starts, ends) <= largest_bytes for starts, ends in columns)


def _size(starts: array[int], ends: array[int]) -> int:
    return sum(ends) - sum(starts)  # of a null both are the same
