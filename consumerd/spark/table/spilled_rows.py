# SPDX-License-Identifier: Apache-2.0
"""Rows of a task that are kept on disk until their file is written.

A spill is an Arrow file of many batches, written once. A batch that is read again costs only its own memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class SpilledBatch:
    """Place of a batch: the number of its spill, and its own in that spill."""

    spill: int
    number: int


class SpilledRows:
    """The spills of one task.

    Args:
        folder: where they are written. It exists when the first one is written, or is made.
        prefix: beginning of their names, unique for the attempt of the task.
    """

    def __init__(self, folder: Path, *, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._paths: list[Path] = []
        self._readers: list[pa.RecordBatchFileReader] = []

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[SpilledBatch]:
        """Write batches of the same columns, and return their places. Raises OSError, pyarrow's ArrowException."""
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
                places.append(SpilledBatch(number, len(places)))
        self._readers.append(pa.ipc.open_file(pa.memory_map(str(path))))
        return places

    def read(self, place: SpilledBatch) -> pa.RecordBatch:
        """Return a batch. Raises OSError, pyarrow's ArrowException."""
        return self._readers[place.spill].get_batch(place.number)

    def remove(self) -> None:
        """Remove the spills. Raises OSError."""
        self._readers.clear()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths.clear()
