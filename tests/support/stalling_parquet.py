# SPDX-License-Identifier: Apache-2.0
"""The Parquet sink on a disk that stands still; a module of its own, as whoever loads it has all of Arrow in memory."""

from __future__ import annotations

from consumerd.sinks.base import SinkContext
from consumerd.sinks.parquet import ParquetOptions, ParquetSink
from tests.support.stalling_sinks import STALL, StallingFileSystem


class StallingParquetSink(ParquetSink):
    """Lands Parquet files when it may."""

    def __init__(self, context: SinkContext, options: ParquetOptions) -> None:
        super().__init__(context, options, files=StallingFileSystem(options.path.with_name(STALL)))
