# SPDX-License-Identifier: Apache-2.0
"""Spills: rows of a task that wait on disk until their Parquet file is written.

A spill is an Arrow file of many batches, written once. Reading one batch takes only that batch's memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


SpilledBatch = tuple[int, int]
"""Where a spilled batch is: the index of its file on disk, and its index within that file."""


class SpilledRows:
    """Rows of one task that wait on disk, as Arrow files.

    Args:
        folder: in which the files are written; created if needed.
        prefix: beginning of their names, unique for the attempt of the task.
    """

    def __init__(self, folder: Path, *, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._paths: list[Path] = []
        self._readers: list[pa.RecordBatchFileReader] = []

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[SpilledBatch]:
        """Write batches of the same columns into one file; return where each of them is.

        Raises OSError, pyarrow's ArrowException.
        """
        number = len(self._paths)
        path = self._folder / f"{self._prefix}-{number:05d}.spill"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._paths.append(path)
        places: list[SpilledBatch] = []
        with contextlib.ExitStack() as stack:
            writer: pa.RecordBatchFileWriter | None = None
            for batch in batches:
                if writer is None:
                    writer = stack.enter_context(pa.ipc.new_file(str(path), batch.schema, options=_OPTIONS))
                writer.write_batch(batch)
                places.append((number, len(places)))
        self._readers.append(pa.ipc.open_file(pa.memory_map(str(path))))
        return places

    def read(self, place: SpilledBatch) -> pa.RecordBatch:
        """Return one batch that was written to disk. Raises OSError, pyarrow's ArrowException."""
        spill, number = place
        return self._readers[spill].get_batch(number)

    def remove(self) -> None:
        """Remove the task's files of waiting rows. Raises OSError."""
        self._readers.clear()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths.clear()
