# SPDX-License-Identifier: Apache-2.0
"""Compression of JSON lines into consecutive gzip members or zstd frames.

Each member or frame holds about 1 MiB of lines. An open file keeps no compressor, which would take 1.4 MB per
partition. Instead lines are collected, and compressed together once there are enough of them or memory is needed.
Readers take consecutive members or frames for one stream (gzip, zstd, Python, Spark, Arrow).
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
"""Extension of files of JSON lines, by compression."""

_GZIP_LEVEL: Final = 3
_ZSTD_LEVEL: Final = 1
_GZIP_WINDOW: Final = 15 + 16
"""Argument of zlib: a window of 32 KiB, and a gzip header."""

COMPRESSOR_BYTES: Final[dict[LineCompression, int]] = {"none": 0, "gzip": 272 << 10, "zstd": 1408 << 10}
"""Memory of one working compressor, in bytes, rounded up; by compression.

zlib's is from its manual (zconf.h), zstd's from its own estimate.
"""

DAMAGE: Final = (zlib.error, EOFError, zstandard.ZstdError)
"""Errors, besides OSError, that reading damaged compressed lines may raise."""


def find_line_compression(extension: str) -> LineCompression | None:
    """Return the compression of JSON lines with an extension; None for other formats.

    Examples: ``none`` for ``jsonl``, ``zstd`` for ``jsonl.zst``, None for ``parquet``.
    """
    return next((compression for compression, known in EXTENSIONS.items() if known == extension), None)


def compress_lines(compression: LineCompression, pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the bytes of one gzip member or zstd frame with these lines.

    Without lines it is an empty member or frame.
    """
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
    """Return a decompressing stream of a file's JSON lines.

    Reading from the stream raises OSError, or one of the errors in DAMAGE if the data are damaged. A zstd frame or gzip
    member that is cut off may look like the end of the file instead.
    """
    compression = find_line_compression(extension)
    if compression == "gzip":
        return cast("BinaryIO", gzip.GzipFile(fileobj=source))
    if compression == "zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True, closefd=False)
        return cast("BinaryIO", reader)
    return source
