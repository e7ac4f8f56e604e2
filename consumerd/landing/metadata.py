# SPDX-License-Identifier: Apache-2.0
"""Metadata of landed files: a Parquet file's footer, or the JSON beside JSON lines.

Metadata of JSON lines is in ``_meta/<position>.<file id>.json``, durable before the data file has its name. Several
attempts to write the data file at one position may each have left a metadata file. These rules choose one of them:

1. The metadata file states the size of the data file as it is on the disk, compressed or not; if several do, also its
   SHA-256.
2. If several are left, because attempts wrote the same bytes (for example a seal and a file without records): the one
   that states the data file's time of modification. Each attempt stamps its data file with a time of its own
   (``HiddenFile.stamp``), and a link does not change that time.
3. If none states that time, because the data file was copied here: the one with the lowest ``next_offset``. The
   attempts wrote equal bytes, so the offsets beyond have no records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from consumerd.landing.chain import META_FOLDER, FileMetadata, data_name, parse_meta_name
from consumerd.landing.filesystem import ReadableFiles
from consumerd.landing.line_compression import EXTENSIONS
from consumerd.landing.record_fields import MalformedRecord

PARQUET: Final = "parquet"
"""Extension of Parquet files."""
FOOTER_KEY: Final = b"consumerd"
"""Key of the metadata in a Parquet footer."""

MetadataReader = Callable[[ReadableFiles, Path, int, Iterable[str]], FileMetadata]
"""Function that reads the metadata of a published file. Raises MalformedRecord, OSError.

Called with the store of files, the file's folder, the offset in its name, and the names in ``_meta``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedFormat:
    """A format of landed files: ``parquet`` or JSON lines.

    Args:
        sink_type: Type of the sink that writes it.
        metadata_beside: True if the metadata are a file in ``_meta``, not a part of the data file.
        read_metadata: Reads the metadata of one file.
    """

    sink_type: str
    metadata_beside: bool
    read_metadata: MetadataReader


def find_format(extension: str) -> LandedFormat | None:
    """Return the format of files with an extension, such as ``parquet``, or None."""
    return LANDED_FORMATS.get(extension)


def find_metadata_reader(extension: str) -> MetadataReader | None:
    """Return the function that reads metadata of files with an extension; None if unknown."""
    known = find_format(extension)
    return None if known is None else known.read_metadata


def keeps_metadata_beside(extension: str) -> bool:
    """Return True if metadata of files with an extension are in ``_meta``."""
    known = find_format(extension)
    return known is not None and known.metadata_beside


def read_footer(
    files: ReadableFiles,
    folder: Path,
    position: int,
    beside: Iterable[str],  # noqa: ARG001 - see MetadataReader
) -> FileMetadata:
    """Return the metadata in the footer of a Parquet file. Raises MalformedRecord, OSError.

    Args:
        position: Offset at which the file begins, which is its name.
        beside: Names in ``_meta``; not used.
    """
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
    """Return the metadata, from ``_meta``, of a file of JSON lines.

    If several attempts to write the file have left metadata, those whose size and SHA-256 are the data file's count.
    Raises MalformedRecord if there are none, OSError.

    Args:
        position: Offset at which the file begins, which is its name.
        beside: Names of the files in ``_meta`` for this position.
        extension: Extension of the data file, without a dot.
    """
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


LANDED_FORMATS: Final[Mapping[str, LandedFormat]] = {
    PARQUET: LandedFormat(sink_type="parquet", metadata_beside=False, read_metadata=read_footer),
    **{
        extension: LandedFormat(
            sink_type="jsonl", metadata_beside=True, read_metadata=partial(read_beside, extension=extension)
        )
        for extension in EXTENSIONS.values()
    },
}
"""All formats of landed files, by extension. ``spark.landed_rows`` has the readers of their rows."""
