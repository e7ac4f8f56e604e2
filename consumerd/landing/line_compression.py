# SPDX-License-Identifier: Apache-2.0
"""Compression of JSON lines: whole gzip members or zstd frames of about 1 MiB of lines, one behind the other.

An open file keeps no compressor, which would be 1.4 MB for each partition: lines are collected, and compressed together when there
are enough of them or when memory is wanted. Readers take members and frames that follow each other for one stream (gzip,
zstd, Python, Spark, Arrow).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, Literal, cast

import zstandard

LineCompression = Literal["none", "gzip", "zstd"]

PLAIN: Final = "jsonl"
EXTENSIONS: Final[dict[LineCompression, str]] = {"none": PLAIN, "gzip": f"{PLAIN}.gz", "zstd": f"{PLAIN}.zst"}
"""The last part of files' names, by compression."""

_GZIP_LEVEL: Final = 3
_ZSTD_LEVEL: Final = 1
_GZIP_WINDOW: Final = 15 + 16
"""32 KiB, and a gzip header."""

COMPRESSOR_BYTES: Final[dict[LineCompression, int]] = {"none": 0, "gzip": 272 << 10, "zstd": 1408 << 10}
"""Memory of one compressor at work: zlib's by its manual (zconf.h), zstd's as it says itself, rounded up."""

DAMAGE: Final = (zlib.error, EOFError, zstandard.ZstdError)
"""What reading raises, besides OSError, for bytes that are not what was written."""


def find_line_compression(extension: str) -> LineCompression | None:
    """Return how files of an extension are compressed; None where they are no JSON lines."""
    return next((compression for compression, known in EXTENSIONS.items() if known == extension), None)


def compress_lines(compression: LineCompression, pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the bytes of one member or frame of these lines, of an empty one where there are none."""
    if compression == "gzip":
        member = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        for piece in pieces:
            yield member.compress(piece)
        yield member.flush()
    else:
        size = sum(map(len, pieces))
        frame = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj(size=size)
        for piece in pieces:
            yield frame.compress(piece)
        yield frame.flush()


def open_lines(source: BinaryIO, extension: str) -> BinaryIO:
    """Return a file to read lines from. Reading raises OSError, and those of DAMAGE; frames cut off may read as an end."""
    compression = find_line_compression(extension)
    if compression == "gzip":
        return cast("BinaryIO", gzip.GzipFile(fileobj=source))
    if compression == "zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True, closefd=False)
        return cast("BinaryIO", reader)
    return source
