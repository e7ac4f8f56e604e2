# SPDX-License-Identifier: Apache-2.0
"""The file sinks on a disk that stands still, for a daemon of its own process.

``install`` makes a folder of a distribution that brings them by the documented entry points; with that folder on
``PYTHONPATH`` the daemon knows the sinks ``stalling-jsonl`` and ``stalling-parquet``, and ``refusing`` besides. Writes wait
while the file ``stall`` is beside the landing folder.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from consumerd.landing.filesystem import OsFileSystem
from consumerd.sinks.base import SinkContext
from consumerd.sinks.jsonl import JsonlOptions, JsonlSink

STALL: Final = "stall"
_LOOK_S: Final = 0.05


class StallingFileSystem(OsFileSystem):
    """Writes data only while nobody says otherwise."""

    def __init__(self, stall: Path) -> None:
        self._stall = stall

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        """See FileSystem: wait, then write."""
        while self._stall.exists():
            time.sleep(_LOOK_S)  # a thread that a disk holds up
        super().write(descriptor, data)


class StallingJsonlSink(JsonlSink):
    """Lands JSON lines when it may."""

    def __init__(self, context: SinkContext, options: JsonlOptions) -> None:
        super().__init__(context, options, files=StallingFileSystem(options.path.with_name(STALL)))


def install(folder: Path) -> Path:
    """Make the distribution in ``folder`` and return it."""
    metadata = folder / "stalling_sinks-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stalling-sinks\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "[consumerd.sinks]\n"
        f"stalling-parquet = {__name__.rpartition('.')[0]}.stalling_parquet:StallingParquetSink\n"
        f"stalling-jsonl = {__name__}:StallingJsonlSink\n"
        f"refusing = {__name__.rpartition('.')[0]}.refusing_sink:RefusingSink\n"
    )
    return folder
