# SPDX-License-Identifier: Apache-2.0
"""Which format a landed file's extension means."""

from __future__ import annotations

from typing import Final

from consumerd.sinks.files import FileFormat
from consumerd.sinks.jsonl import JsonlFormat
from consumerd.sinks.line_compression import find_line_compression

_PARQUET: Final = "parquet"


def find_format(extension: str) -> FileFormat | None:
    """Return the format of an extension, to read with; None for one that is not known here."""
    if extension == _PARQUET:
        from consumerd.sinks.parquet import ParquetFormat  # needs an extra

        return ParquetFormat("none")
    compression = find_line_compression(extension)
    return None if compression is None else JsonlFormat(compression)
