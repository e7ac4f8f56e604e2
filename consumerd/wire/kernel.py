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
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from consumerd.wire.columns import ColumnBuilder

Buffer = bytes | bytearray | memoryview
SWITCH: Final = "CONSUMERD_KERNEL"
"""The environment variable that switches the kernel off, by the value ``off``."""


class RecordsKernel(Protocol):
    """Magic 2: batches, their records, CRC-32C; and the heads of units of any magic."""

    CRC32C: str
    """How CRC-32C is computed here: ``sse4.2``, ``armv8`` or ``table``."""

    def crc32c(self, data: Buffer, begin: int = 0, end: int = ..., /) -> int:
        """Return the CRC-32C of ``data[begin:end]``, without copying it."""

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
        """Read the run of plain batches at ``at`` and return where it ends, which is ``at`` when the first is not plain.

        A plain batch is whole and intact; not compressed, not a control batch, not of a transaction unless
        ``transactional``; its base offset is ``columns.position``, or below and not below ``columns.end``; its records are
        as many as it says, fill it, and have consecutive offsets up to its last. So no hole arises. Records below
        the position that was asked for are verified and left out. Rows, ``position``, ``end``, ``unattested`` and
        ``left_out`` of the columns are brought up to date. ``shift`` turns positions in ``data`` into such in the buffer.
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

    def next_offset(self, data: Buffer, at: int, end: int, position: int, /) -> int:
        """Return the greatest offset behind any of the whole units of ``data[at:end]``, by their heads; at least
        ``position``. Ends at what cannot be a unit. Any magic; as ``record_set.peek_next_offset``.
        """

    def walk(self, data: Buffer, at: int, end: int, most: int, /) -> tuple[int, int]:
        """Walk over whole uncompressed units of one kind (messages, or batches), by their heads, until about ``most`` bytes
        are behind; returns where they end and where the last of them begins (``at`` twice when there is none).
        """

    def extend_steps(self, column: array[int], first: int, step: int, count: int, /) -> None:
        """Append ``first``, ``first + step``... to the column."""


_missing: Final[list[str]] = []
_is_off: Final = os.environ.get(SWITCH, "").strip().lower() == "off"


def _find(name: str) -> Any:
    """Return a part of the kernel, or None."""
    if _is_off:
        return None
    try:
        return importlib.import_module(f"consumerd.wire._kernel.{name}")
    except ImportError:
        _missing.append(name)
        return None


records: RecordsKernel | None = _find("records")

NATIVE: Final = not _is_off and not _missing
"""Whether all parts of the kernel are there."""


def describe() -> str:
    """Say in a few words which kernel is in use."""
    if _is_off:
        return f"pure Python ({SWITCH}=off)"
    if records is None:
        return "pure Python (the native kernel is not built)"
    without = f", without {', '.join(_missing)}" if _missing else ""
    return f"native (CRC-32C: {records.CRC32C}{without})"
