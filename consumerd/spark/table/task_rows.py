# SPDX-License-Identifier: Apache-2.0
"""Reads a table's files with pyarrow in Spark's tasks, in batches limited by bytes.

Spark's own reader takes 4,096 rows at a time, which may be gigabytes. Here a batch has about ``BATCH_BYTES`` of Arrow
memory, at least one row, and at most a row group, which our writer keeps to some tens of MiB. None of it is the JVM's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToRead:
    """A file of a table: absolute path, size in bytes, and its partition values by column."""

    path: str
    size: int
    constants: Mapping[str, object] = field(default_factory=dict)


def divide_files(files: Sequence[FileToRead], tasks: int) -> list[tuple[FileToRead, ...]]:
    """Divide files into at most ``tasks`` consecutive groups of about the same size, none of them empty."""
    total = sum(file.size for file in files)
    groups: dict[int, list[FileToRead]] = {}
    before = 0
    for file in files:
        groups.setdefault((before + file.size // 2) * tasks // max(total, 1), []).append(file)
        before += file.size
    return [tuple(group) for group in groups.values()]


def read_batches(file: FileToRead, schema: pa.Schema, *, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in order, with the columns of ``schema``. Raises OSError, ArrowException."""
    stored = [name for name in schema.names if name not in file.constants]
    with pq.ParquetFile(file.path) as parquet:
        for number in range(parquet.num_row_groups):
            table = parquet.read_row_group(number, columns=stored, use_threads=False)
            for batch in table.combine_chunks().to_batches():
                rows = max(1, len(batch) * batch_bytes // max(batch.nbytes, 1))
                for first in range(0, len(batch), rows):
                    yield _complete(batch.slice(first, rows), schema, file.constants)


def _complete(batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, object]) -> pa.RecordBatch:
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), len(batch))
        if field.name in constants
        else batch[field.name].cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
