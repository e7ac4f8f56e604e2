# SPDX-License-Identifier: Apache-2.0
"""Reads a table's files with pyarrow in Spark's tasks, in batches limited by bytes.

Spark's own reader takes 4,096 rows at a time, which may be gigabytes. Here a batch has about ``BATCH_BYTES`` of Arrow
memory, at least one row, and at most a row group, which our writer limits to some tens of MiB. The memory is Python's,
not the JVM's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

BATCH_BYTES: Final = 8 << 20
"""Approximate size of a batch of rows, in bytes of Arrow memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToRead:
    """A file of a table, as its task reads it.

    Attributes:
        path: absolute.
        constants: values of columns that are not in the file: partition columns.
    """

    path: str
    constants: Mapping[str, object] = field(default_factory=dict)


def divide_by_size(items: Sequence[T], sizes: Sequence[int], tasks: int) -> list[tuple[T, ...]]:
    """Divide items into at most ``tasks`` consecutive groups of about the same size.

    Example: files of 40, 40, 10 and 10 MB for two tasks: the first gets 40, and the second 40, 10 and 10.
    """
    total = sum(sizes)
    groups: dict[int, list[T]] = {}
    before = 0
    # the total is divided into ``tasks`` equal shares; an item belongs to the share that has its middle byte
    for item, size in zip(items, sizes, strict=True):
        groups.setdefault((before + size // 2) * tasks // max(total, 1), []).append(item)
        before += size
    return [tuple(group) for group in groups.values()]


def read_batches(file: FileToRead, schema: pa.Schema, *, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in order, cast to ``schema``. Raises OSError, ArrowException."""
    stored = [name for name in schema.names if name not in file.constants]
    for table in read_row_groups(file.path, stored):
        for batch in table.combine_chunks().to_batches():
            rows = max(1, len(batch) * batch_bytes // max(batch.nbytes, 1))
            for first in range(0, len(batch), rows):
                yield _complete(batch.slice(first, rows), schema, file.constants)


def read_row_groups(path: str | Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield a Parquet file's row groups in order. Raises OSError, ArrowException.

    Args:
        columns: None for all of them.
    """
    with pq.ParquetFile(path) as parquet:
        for number in range(parquet.num_row_groups):
            yield parquet.read_row_group(number, columns=columns and list(columns), use_threads=False)


def _complete(batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, object]) -> pa.RecordBatch:
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), len(batch))
        if field.name in constants
        else batch[field.name].cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
