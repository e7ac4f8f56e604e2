# SPDX-License-Identifier: Apache-2.0
"""Metadata of landed files: the footer of a Parquet file, and the JSON beside a file of JSON lines.

Metadata of JSON lines is in ``_meta/<position>.<file id>.json``, durable before the data file has its name. Several
attempts may have left such a file for one position. Which of them counts:

1. Its size and SHA-256 are those of the data file, as it is on the disk, compressed or not.
2. Where two attempts wrote the same bytes (a seal and a file without records, say), its time of modification is that of
   the data file. A link does not change it, and it is stamped so that no two attempts share it (``HiddenFile.stamp``).
3. Where the data file was copied here, none has that time. The one that claims least counts: what it leaves out has no
   records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from consumerd.landing.chain import META_FOLDER, FileMetadata, data_name, parse_meta_name
from consumerd.landing.filesystem import ReadableFiles
from consumerd.landing.line_compression import find_line_compression
from consumerd.landing.record_fields import MalformedRecord

PARQUET: Final = "parquet"
"""Extension of Parquet files."""
FOOTER_KEY: Final = b"consumerd"
"""Key of the metadata in a Parquet footer."""

MetadataReader = Callable[[ReadableFiles, Path, int, Iterable[str]], FileMetadata]
"""Reads the metadata of a published file. Raises MalformedRecord, OSError.

Called with the store, the chain's folder, the position of the file, and the names in ``_meta``.
"""


def find_metadata_reader(extension: str) -> MetadataReader | None:
    """Return the reader for files of an extension; None for an unknown one."""
    if extension == PARQUET:
        return read_footer
    if find_line_compression(extension) is None:
        return None
    return partial(read_beside, extension=extension)


def read_footer(
    files: ReadableFiles,
    folder: Path,
    position: int,
    beside: Iterable[str],  # noqa: ARG001 - see MetadataReader
) -> FileMetadata:
    """Read the footer of a Parquet file. Raises MalformedRecord, OSError."""
    import pyarrow as pa  # needs an extra
    import pyarrow.parquet as pq

    try:
        with files.open(folder / data_name(position, PARQUET)) as file:
            footer = pq.read_metadata(file).metadata or {}
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter for columns' names
        raise MalformedRecord(f"no Parquet footer: {error}") from error
    if FOOTER_KEY not in footer:
        raise MalformedRecord(f"no {FOOTER_KEY.decode()!r} in the Parquet footer; who wrote this file?")
    return FileMetadata.parse(footer[FOOTER_KEY])


def read_beside(
    files: ReadableFiles, folder: Path, position: int, beside: Iterable[str], *, extension: str
) -> FileMetadata:
    """Read the metadata that counts for a file of JSON lines. Raises MalformedRecord, OSError."""
    data = folder / data_name(position, extension)
    size, modified_ns = files.size_and_mtime(data)
    names = [name for name in beside if parse_meta_name(name) == position]
    candidates = [FileMetadata.parse(files.read(folder / META_FOLDER / name)) for name in names]
    matching = [candidate for candidate in candidates if candidate.size == size]
    if len(matching) > 1:
        with files.open(data) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        matching = [candidate for candidate in matching if candidate.sha256 == sha256]
    if not matching:
        raise MalformedRecord(f"none of the {len(names)} files in {META_FOLDER} for it is of {size} bytes like it")
    exact = [candidate for candidate in matching if candidate.modified_ns == modified_ns]
    return min(exact or matching, key=lambda candidate: candidate.next_offset)
