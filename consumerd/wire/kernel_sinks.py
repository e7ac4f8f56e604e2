# SPDX-License-Identifier: Apache-2.0
"""Interfaces of the native kernel's modules for sinks; ``wire.kernel`` loads them, and has their contract."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Protocol


class FoldKernel(Protocol):
    """Compiled module that computes the checksum of the sink ``null``."""

    def fold(
        self,
        buffer: bytes | bytearray | memoryview,
        offsets: array[int],
        key_starts: array[int],
        key_ends: array[int],
        value_starts: array[int],
        value_ends: array[int],
        streams: list[int],
        /,
    ) -> list[int] | None:
        """Return ``streams``, five running CRC-32 checksums, updated with these records.

        They cover all offsets, key lengths, keys, value lengths and values. Numbers count as little-endian int64, null
        as length -1. Returns None if a span lies outside of the buffer, or if the columns differ in length.
        """


class GatherKernel(Protocol):
    """Compiled module that copies keys or values into a contiguous array.

    It also finds the smallest and largest value of a column.
    """

    def gather(
        self,
        buffer: bytes | bytearray | memoryview,
        starts: array[int],
        ends: array[int],
        allocate: Callable[[int], Any],
        /,
    ) -> tuple[Any, Any, Any | None, int] | None:
        """Copy keys or values out of a buffer, in the form of Arrow's binary arrays.

        ``starts`` and ``ends`` are their positions; a negative start is null.

        Args:
            allocate: returns writable memory of the given size.

        Returns offsets (int32), data, validity, and the number of nulls; validity is None if there is no null. Returns
        None if a position lies outside of the buffer, and for 2 GiB or more.
        """

    def extent(self, column: array[int], missing: int, /) -> tuple[int, int] | None:
        """Return the smallest and the largest value of a column, ignoring values equal to ``missing``.

        None if the column has no other value.
        """


class LinesKernel(Protocol):
    """Compiled module that encodes records as JSON lines."""

    def encode_lines(
        self,
        buffer: bytes | bytearray | memoryview,
        head: bytes,
        columns: tuple[array[int], array[int] | None, array[int] | None, array[int]],
        keys: tuple[array[int], array[int]],
        values: tuple[array[int], array[int]],
        headers: tuple[bytes, array[int]] | None,
        row: int,
        enough: int,
        /,
    ) -> tuple[bytes, int] | None:
        """Return JSON lines from ``row`` on, and the first row not written.

        At least one line is written. No further line is begun once there are about ``enough`` bytes.

        Args:
            buffer: Bytes of keys and values.
            head: Beginning of each line, up to the offset.
            columns: Offsets; next offsets (None: each is the offset plus one); indexes (None: all are 0); timestamps.
            keys: Starts and ends of the keys in ``buffer``.
            values: Starts and ends of the values in ``buffer``.
            headers: Headers of all rows as JSON, joined; and the start of each row's, followed by the end of the last.
                None: no row has headers.

        Returns None if a position lies outside of the buffer, if columns differ in length, or if a next offset exceeds
        64 bits.
        """
