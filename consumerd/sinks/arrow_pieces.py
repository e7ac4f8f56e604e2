# SPDX-License-Identifier: Apache-2.0
"""Converts a batch of records into Arrow record batches; finds records that do not fit.

A column of type ``binary`` has int32 offsets, so its values must be below 2 GiB in total. The limit of 2 GiB also holds
for a Parquet page, with its header, before and after compression; the writer makes a page of up to 1024 values
(measured with pyarrow 26). A larger batch is halved until its parts fit. A single record may still not fit: it is too
large, or Arrow refuses it (an index beyond int32). Timestamps of any value fit.

Example: a batch of 3 records has values of 1, 1 and 0.5 GiB. It becomes two pieces: record 0, and records 1 and 2.
"""

from __future__ import annotations

import errno
from typing import Final

import pyarrow as pa

from consumerd.errors import PermanentSinkError
from consumerd.wire.records import RecordBatch

LARGEST_COLUMN_BYTES: Final = (2 << 30) - (1 << 20)
"""Largest size of the keys, of the values, or of the headers of one Arrow record batch.

Arrow's limit is 2 GiB; the rest is for page headers.
"""


def to_pieces(batch: RecordBatch, *, largest_bytes: int = LARGEST_COLUMN_BYTES) -> list[pa.RecordBatch]:
    """Return a batch's records as Arrow record batches, mostly one.

    The batch is halved if its keys, values or headers have more than ``largest_bytes``, and its parts again. Raises
    PermanentSinkError, which names the row, for a record that does not fit; CorruptMessageError for unreadable headers;
    OSError if memory is short.
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
    """Return True if keys, values and headers of a batch are within the limit."""
    # all columns are in the buffer, so its size mostly decides
    if len(batch.buffer) <= largest_bytes:
        return True
    columns = (
        (batch.key_starts, batch.key_ends),
        (batch.value_starts, batch.value_ends),
        (batch.header_starts, batch.header_ends),
    )
    # null has the same start and end
    return all(sum(ends) - sum(starts) <= largest_bytes for starts, ends in columns)
