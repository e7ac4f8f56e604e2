# SPDX-License-Identifier: Apache-2.0
"""The seam to the native kernel: which of its parts are there, and what each promises.

The kernel is optional. Every part is a compiled module of ``consumerd.wire._kernel``, and is None here where it was not
built or where the environment says ``CONSUMERD_KERNEL=off``, which is read when this module is imported. Callers look
a part up each time (``if (native := kernel.records) is not None``), so that both ways can be tried in one process.

Rules for every part:

- It never finds fault. It takes what is well-formed and plain, and stops in front of whatever it is not sure of; the
  pure Python reader has its say about that one unit, errors included, and the kernel is tried again behind it. What the
  kernel takes it books exactly as the pure reader would.
- Any bytes are safe to give. Buffers are contiguous (``bytes``, ``bytearray``, ``memoryview`` of bytes) and are not
  written to; ``at`` and ``end`` are clipped to them.
- The interpreter's lock is released while bytes are read; buffers and columns must not change meanwhile, which is the
  caller's to see to.
- Columns are ``array('q')`` and are appended to in place.
"""

from __future__ import annotations

import importlib
import os
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from consumerd.installation import reinstall_command

if TYPE_CHECKING:
    from consumerd.wire.columns import ColumnBuilder

Buffer = bytes | bytearray | memoryview
SWITCH: Final = "CONSUMERD_KERNEL"
"""The environment variable that switches the kernel off, by the value ``off``."""


class RecordsKernel(Protocol):
    """Magic 2: batches, their records, CRC-32C; compressed wrappers of magic 0 and 1; and the heads of units of any magic."""

    CRC32C: str
    """How CRC-32C is computed here: ``sse4.2``, ``armv8`` or ``table``."""

    def crc32c(self, data: Buffer, begin: int = 0, end: int = ..., /) -> int:
        """Return the CRC-32C of ``data[begin:end]``, without copying it."""

    def crc32c_by_table(self, data: Buffer, /) -> int:
        """Return the CRC-32C as it is computed where the processor has no instruction for it."""

    def read_batches(
        self,
        data: Buffer,
        at: int,
        end: int,
        shift: int,
        columns: ColumnBuilder,
        transactional: bool,  # noqa: FBT001 - all by position: that is what a call of the kernel costs
        /,
    ) -> int:
        """Read the run of plain batches at ``at``; return where it ends.

        That is ``at`` itself where the first batch is not plain. A plain batch

        - is whole, and its checksum is right;
        - is not compressed, no control batch, and not of a transaction unless ``transactional``;
        - begins at ``columns.position``, or below it, but not below ``columns.end``: it leaves no hole before it;
        - holds as many records as it says, which fill it and have consecutive offsets up to its last one.

        Records below the position that was asked for are verified and left out. The columns get the rows, and their
        ``position``, ``end``, ``unattested`` and ``left_out`` are set as Python would (:class:`ColumnBuilder` explains
        them). ``shift`` is added to positions in ``data`` to give positions in the columns' buffer.
        """

    def read_packed(
        self,
        data: Buffer,
        at: int,
        end: int,
        columns: ColumnBuilder,
        limit: int,
        transactional: bool,  # noqa: FBT001
        /,
    ) -> int:
        """Read the run of batches at ``at`` that are plain as :meth:`read_batches` says, but for being compressed by snappy or
        LZ4, into the room of the columns; return where it ends, which is ``at`` where there is no room, and where the first
        needs more, or more than ``limit`` bytes with all that was decompressed before.
        """

    def read_wrappers(self, data: Buffer, at: int, end: int, columns: ColumnBuilder, limit: int, /) -> int:
        """Read the run of plain wrappers of magic 0 and 1 at ``at`` into the room of the columns; return where it ends, as
        :meth:`read_packed` does.

        A plain wrapper is whole and intact, and compressed by snappy or LZ4. In it are messages that are not compressed,
        one at least, with consecutive offsets, of which the last is the wrapper's own; the first is ``columns.position``, or
        below and not below ``columns.end``. So no hole arises. Rows below the position that was asked for are kept.
        """

    def read_block(
        self,
        data: Buffer,
        at: int,
        end: int,
        shift: int,
        columns: ColumnBuilder,
        base_offset: int,
        last_delta: int,
        count: int,
        base_timestamp: int,
        max_timestamp: int,
        log_append_time: bool,  # noqa: FBT001
        /,
    ) -> bool:
        """Read the records of one batch, which fill ``data[at:end]``, and book them as :meth:`read_batches` does, if they are
        such as it takes; otherwise return False, and nothing is done. The other arguments are what the batch's head says.
        """

    def read_records(
        self,
        data: Buffer,
        at: int,
        end: int,
        count: int,
        shift: int,
        base_timestamp: int,
        columns: ColumnBuilder,
        segments: list[tuple[int, int]],
        first: int,
        delta: int,
        /,
    ) -> tuple[int, int, int, int]:
        """Read up to ``count`` records of one batch, with or without holes, keys and headers.

        Appends to all columns but offsets and types of timestamps. ``first`` and ``delta`` are where the segment of offset
        deltas began that goes on, and the delta that is expected; segments that are over are appended to ``segments``.
        Returns how many records were read, the position behind them, and the two anew.
        """

    def step_messages(self, data: Buffer, at: int, until: int, /) -> tuple[int, int]:
        """Step over messages by their sizes, which may be absurd, while they begin at or before ``until``; returns where whole
        ones end and where the last of them begins, which is ``at`` twice where there is none.
        """

    def step_units(
        self, data: Buffer, at: int, weight: float, most: float, expansion: float, doubt: float, /
    ) -> tuple[int, int, float, int]:
        """Step over whole units of any magic until their weights, added to ``weight``, are ``most``: the size of one that is not
        compressed; of one that is, ``expansion`` times its size, or what it says that it gives divided by ``doubt``, if
        that is more. Stops in front of a compressed one of which it cannot tell.

        Returns where they end, where the last of them begins (``at`` where there is none), the weight, and the sum of what
        the compressed ones say that they give.
        """

    def trim(self, columns: ColumnBuilder, /) -> None:
        """Give back what columns were made larger by than they had to be in the end; short ones stay as they are."""

    def extend_steps(self, column: array[int], first: int, step: int, count: int, /) -> None:
        """Append ``first``, ``first + step``... to the column."""


class MessagesKernel(Protocol):
    """Uncompressed messages of magic 0 and 1; CRC-32."""

    CRC32: str
    """How CRC-32 is computed here: ``pclmulqdq`` or ``table``."""

    def crc32(self, data: Buffer, begin: int = 0, end: int = ..., /) -> int:
        """Return the CRC-32 of ``data[begin:end]``, without copying it."""

    def crc32_by_table(self, data: Buffer, /) -> int:
        """Return the CRC-32 of ``data`` as where the processor does not help."""

    def read_messages(
        self,
        data: Buffer,
        at: int,
        end: int,
        shift: int,
        columns: ColumnBuilder,
        segments: list[tuple[int, int]],
        first: int,
        following: int,
        /,
    ) -> tuple[int, int, int]:
        """Read the run of whole and intact messages at ``at`` that have the first one's magic and attributes, no codec
        among those, and ascending offsets, ``following`` at least.

        Appends to all columns but offsets and types of timestamps; ``shift`` turns positions in ``data`` into such in the
        buffer. ``first`` is where the segment of offsets began that goes on; segments that are over are appended to
        ``segments``. Returns the position behind the last message, and ``first`` and ``following`` anew.
        """


class SnappyKernel(Protocol):
    """Snappy: a raw block, or the framing of snappy-java. What is not sound to the last byte is left to the library."""

    def size(self, data: Buffer, /) -> int:
        """Return what ``data`` declares to give, 64 times its size at most; -1 where it is not sound."""

    def decompress(self, data: Buffer, limit: int, /) -> bytes | None:
        """Return what ``data`` holds; None for more than ``limit`` bytes and where it is not sound."""

    def decompress_into(self, data: Buffer, room: memoryview, /) -> int:
        """Write what ``data`` holds to the beginning of ``room`` and return its size; -1 where it has more than there is
        room for, or is not sound. What stands behind it in the room may have changed.
        """


class Lz4Kernel(Protocol):
    """LZ4 frames. What is not sound to the last byte, or odd, is left to the library; what follows a frame is not looked at.

    With ``any_checksum`` the one of the frame's header does not matter.
    """

    def xxh32(self, data: Buffer, /) -> int:
        """Return the xxHash-32 of ``data``, seed 0."""

    def decompress(self, data: Buffer, limit: int, any_checksum: bool, /) -> bytes | None:  # noqa: FBT001 - by position
        """Return what ``data`` holds; None for more than ``limit`` bytes and where it is not sound."""

    def decompress_into(self, data: Buffer, room: memoryview, any_checksum: bool, /) -> int:  # noqa: FBT001
        """Write what ``data`` holds to the beginning of ``room`` and return its size; -1 where it has more than there is
        room for, or is not sound. What stands behind it in the room may have changed.
        """


class FramePool(Protocol):
    """Memory for received frames; see :class:`MemoryKernel`."""

    idle_bytes: int
    """What lies here for the next frames."""
    lent_bytes: int
    """What is out, with what it was rounded up by."""

    def allocate(self, size: int) -> memoryview:
        """Return writable memory of ``size`` bytes, not cleared; it comes back by itself with its last view. Raises
        MemoryError.
        """

    def trim(self) -> None:
        """Give back to the system what lies idle."""


class MemoryKernel(Protocol):
    """Memory that is used again instead of being mapped, cleared and unmapped each time."""

    def ReceivePool(self, idle_limit: int) -> FramePool:  # noqa: N802 - a class
        """Make a pool that keeps at most ``idle_limit`` bytes for the next frames."""


class FoldKernel(Protocol):
    """The null sink's checksum."""

    def fold(
        self,
        buffer: Buffer,
        offsets: array[int],
        key_starts: array[int],
        key_ends: array[int],
        value_starts: array[int],
        value_ends: array[int],
        streams: list[int],
        /,
    ) -> list[int] | None:
        """Return ``streams`` (CRC-32 of all offsets, key lengths, keys, value lengths, values; numbers as little-endian
        int64, null as length -1) with these records added. None, and nothing is done, where a span is not one of the
        buffer or the columns are not equally long.
        """


class GatherKernel(Protocol):
    """Spans put in a row, and what a column ranges over."""

    def gather(
        self, buffer: Buffer, starts: array[int], ends: array[int], allocate: Callable[[int], Any], /
    ) -> tuple[Any, Any, Any | None, int] | None:
        """Copy spans in a row, as the offsets (int32), data and validity of an Arrow binary array; a negative start is null.

        ``allocate(size)`` gives writable memory of ``size`` bytes. Returns what it gave, filled: ``(offsets, data, validity,
        nulls)``, without a validity where nothing is null. None for spans outside the buffer and for 2 GiB or more.
        """

    def extent(self, column: array[int], missing: int, /) -> tuple[int, int] | None:
        """Return the smallest and the largest value that is not ``missing``; None where there is none."""


class LinesKernel(Protocol):
    """Records as JSON lines."""

    def encode_lines(
        self,
        buffer: Buffer,
        head: bytes,
        columns: tuple[array[int], array[int] | None, array[int] | None, array[int]],
        keys: tuple[array[int], array[int]],
        values: tuple[array[int], array[int]],
        headers: tuple[bytes, array[int]] | None,
        row: int,
        enough: int,
        /,
    ) -> tuple[bytes, int] | None:
        """Return JSON lines from ``row`` on, and the first row that is not written.

        There is one line at least, and no more are begun once they have about ``enough`` bytes.

        Args:
            head: what each line begins with, up to the offset.
            columns: offsets; next offsets (None: each is its offset plus one); indexes (None: all are 0); timestamps.
            headers: all rows' encoded lists of headers, one behind the other, and where each begins; the last entry is
                where the last one ends. None: all are empty.

        Returns None where spans are outside the buffer, columns differ in length, or a next offset would have to be
        written that a 64-bit number cannot hold.
        """


_missing: Final[dict[str, ImportError]] = {}
_is_off: Final = os.environ.get(SWITCH, "").strip().lower() == "off"


def _find(name: str) -> Any:
    """Return a part of the kernel, or None."""
    if _is_off:
        return None
    try:
        return importlib.import_module(f"consumerd.wire._kernel.{name}")
    except ImportError as error:
        _missing[name] = error
        return None


records: RecordsKernel | None = _find("records")
messages: MessagesKernel | None = _find("messages")
snappy: SnappyKernel | None = _find("snappy")
lz4: Lz4Kernel | None = _find("lz4")
gather: GatherKernel | None = _find("gather")
lines: LinesKernel | None = _find("lines")
memory: MemoryKernel | None = _find("memory")
fold: FoldKernel | None = _find("fold")

NATIVE: Final = not _is_off and not _missing
"""Whether all parts of the kernel are there."""


def describe() -> str:
    """Say which kernel is in use, and where there is none, or not all of it, why, and what helps."""
    if _is_off:
        return f"none, pure Python: {SWITCH}=off"
    found = "none, pure Python" if records is None else f"native (CRC-32C: {records.CRC32C})"
    if not _missing:
        return found
    remedy = f"install it again ({reinstall_command()}), or make kernel in a checkout"
    broken = [f"{name}: {error}" for name, error in _missing.items() if not isinstance(error, ModuleNotFoundError)]
    if broken:
        return f"{found}: cannot load {'; '.join(broken)}; {remedy}"
    if records is None:
        return f"{found}: not built, for want of a C compiler or of Python's headers; once they are there, {remedy}"
    return f"{found}, without {', '.join(_missing)}: built from older sources; {remedy}"
