# SPDX-License-Identifier: Apache-2.0
"""Rewrites data files without some of their rows, with pyarrow instead of the JVM. Blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consumerd.spark.table.commit import DataFile
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, to_utc
from consumerd.spark.table.task_rows import read_row_groups

RowNumbers = npt.NDArray[np.int64]


def rewrite_without(
    source: Path,
    rows: RowNumbers,
    *,
    staging: Path,
    prefix: str,
    partition_by: Sequence[str] = (),
    values: tuple[str, ...] = (),
    settings: FileSettings,
) -> list[DataFile]:
    """Write a file's rows except some; return the new files.

    Columns and the order of rows stay. No file is written if no row is left.

    Args:
        rows: indexes of the rows to leave out, ascending.
        staging: folder in which the new file is written, in the folders of its partition values.
        prefix: beginning of its name, unique for the attempt and the file.
        values: of the partition columns, escaped as in folder names.

    Raises OSError, ArrowException.
    """
    writer = PartitionedWriter(staging, prefix=prefix, partition_by=partition_by, settings=settings)
    return write_part(writer, values, (batch for batch in read_without(source, rows) if len(batch)))


def write_part(writer: PartitionedWriter, values: tuple[str, ...], batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Write rows that share their partition values, in order; return the files.

    Args:
        writer: a new one; it is closed on return.
        values: of the partition columns, escaped as in folder names.
        batches: the rows, without the partition columns.

    Raises OSError, ArrowException.
    """
    with closing(writer):
        for batch in batches:
            writer.append_part(values, to_utc(batch))
        return writer.finish()


def read_without(path: Path, rows: RowNumbers) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet file's rows except those at the given ascending indexes.

    Raises OSError, ArrowException.
    """
    first = 0
    for table in map(pa.Table.combine_chunks, read_row_groups(path)):
        here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + len(table))] - first
        first += len(table)
        if len(here):
            kept = np.ones(len(table), dtype=bool)
            kept[here] = False
            table = table.filter(pa.array(kept))
        yield from table.to_batches()
