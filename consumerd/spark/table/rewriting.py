# SPDX-License-Identifier: Apache-2.0
"""Files of a table, rewritten without some of their rows.

Blocks. Reads and writes with pyarrow, outside of the JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from consumerd.spark.table.commit import DataFile
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, to_utc

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
    """Write a file's rows except some; return the new files, none if no row is left.

    Columns and the order of rows stay.

    Args:
        rows: numbers of the rows that are left out, ascending.
        staging: folder in which the new file is written, in the folders of its partition values.
        prefix: beginning of its name, unique for the attempt and the file.
        values: of the partition columns, as folder names hold them.

    Raises OSError, ArrowException.
    """
    writer = PartitionedWriter(staging, prefix=prefix, partition_by=partition_by, settings=settings)
    return write_part(writer, values, (batch for batch in read_without(source, rows) if len(batch)))


def write_part(writer: PartitionedWriter, values: tuple[str, ...], batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Write rows that share their partition values, in order; return the files. Raises OSError, ArrowException.

    Args:
        writer: a new one, which is ended.
        values: of the partition columns, as folder names hold them.
        batches: the rows, without the partition columns.
    """
    try:
        for batch in batches:
            writer.append_part(values, to_utc(batch))
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def read_without(path: Path, rows: RowNumbers) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet file's rows except those with the given ascending numbers. Raises OSError, ArrowException."""
    first = 0
    with pq.ParquetFile(path) as parquet:
        for number in range(parquet.num_row_groups):
            table = parquet.read_row_group(number, use_threads=False).combine_chunks()
            here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + len(table))] - first
            first += len(table)
            if len(here):
                kept = np.ones(len(table), dtype=bool)
                kept[here] = False
                table = table.filter(pa.array(kept))
            yield from table.to_batches()
