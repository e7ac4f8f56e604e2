# SPDX-License-Identifier: Apache-2.0
"""A sink that reads everything and delivers nothing: for measuring, and for checking that two runs saw the same.

Checksums of the wire formats were verified by the decoder. What is folded here are the records themselves, as streams of
bytes: all offsets, all key lengths (-1 for null), all keys, all value lengths, all values, one CRC-32 each. Those depend
on the records and their order and on nothing else, so that any division into batches gives the same result.

A hash of another kind makes one value of the five. A CRC over them would not tell ``[(null, null), ("", null)]`` from
``[(null, ""), (null, null)]``: CRCs are linear, so that differences in two streams can cancel out.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import blake2b
from operator import sub
from typing import Final

from consumerd.aio.threads import WorkThreads
from consumerd.model import Claim, TopicPartition
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.options import SinkOptions
from consumerd.wire import kernel
from consumerd.wire.kernel import FoldKernel
from consumerd.wire.records import NULL_SPAN, RecordBatch

_INLINE_BYTES: Final = 64 << 10
_NATIVE_INLINE_BYTES: Final = 256 << 10
"""What is folded in about the time that a thread takes to begin."""
_CLOSE_S: Final = 5.0
_VALUE_BYTES: Final = 8


class Checksum:
    """The fold over one partition's records."""

    def __init__(self) -> None:
        self.count = 0
        self._streams = [0] * 5

    @property
    def value(self) -> int:
        """The checksum of everything added so far, 64 bits."""
        packed = struct.pack("<q5I", self.count, *self._streams)
        return int.from_bytes(blake2b(packed, digest_size=_VALUE_BYTES).digest())

    def add(self, batch: RecordBatch) -> None:
        """Fold a batch in."""
        if not batch.offsets:
            return
        streams = None if kernel.fold is None else self._fold_natively(kernel.fold, batch)
        self._streams = self._fold(batch) if streams is None else streams
        self.count += len(batch)

    def _fold_natively(self, native: FoldKernel, batch: RecordBatch) -> list[int] | None:
        return native.fold(
            batch.buffer,
            batch.offsets,
            batch.key_starts,
            batch.key_ends,
            batch.value_starts,
            batch.value_ends,
            self._streams,
        )

    def _fold(self, batch: RecordBatch) -> list[int]:
        buffer = batch.buffer if isinstance(batch.buffer, bytes) else bytes(batch.buffer)
        key_lengths, keys = _column(buffer, batch.key_starts, batch.key_ends)
        value_lengths, values = _column(buffer, batch.value_starts, batch.value_ends)
        parts = (_little_endian(batch.offsets), key_lengths, keys, value_lengths, values)
        return [zlib.crc32(part, crc) for part, crc in zip(parts, self._streams, strict=True)]


def _column(buffer: bytes, starts: array[int], ends: array[int]) -> tuple[bytes, bytes]:
    """Return the lengths of keys or values, -1 for null, and their bytes in a row."""
    if max(ends) < 0:
        return _little_endian(array("q", [NULL_SPAN]) * len(ends)), b""
    if min(starts) >= 0:
        lengths = array("q", map(sub, ends, starts))
    else:
        lengths = array(
            "q", [end - start if start >= 0 else NULL_SPAN for start, end in zip(starts, ends, strict=True)]
        )
    return _little_endian(lengths), b"".join(map(buffer.__getitem__, map(slice, starts, ends)))


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("q", column)
        column.byteswap()
    return column.tobytes()


class NullWriter:
    """Acknowledges what ``take`` has been given."""

    resume_position = None
    request_id = None

    def __init__(self, take: Callable[[RecordBatch], Awaitable[None]]) -> None:
        self._take = take
        self._acknowledged = 0

    async def start(self, start: Start) -> None:
        """See PartitionWriter."""
        self._acknowledged = start.position

    async def write(self, batch: RecordBatch) -> int:
        """See PartitionWriter."""
        if batch.next_offset > self._acknowledged:
            await self._take(batch)
            self._acknowledged = batch.next_offset
        return self._acknowledged

    async def flush(self) -> int:
        """See PartitionWriter."""
        return self._acknowledged

    def deadline(self) -> float | None:
        """See PartitionWriter."""
        return None

    async def abandon(self) -> None:
        """See PartitionWriter."""


class NullSink:
    """Reads everything, delivers nothing."""

    Options = SinkOptions

    def __init__(self, context: SinkContext, options: SinkOptions) -> None:  # noqa: ARG002 - as every sink
        self._checksums: dict[TopicPartition, Checksum] = {}
        self._threads = WorkThreads(name=f"sink-{context.sink_name}", count=1)

    @property
    def checksums(self) -> Mapping[TopicPartition, Checksum]:
        """What was read of each partition since the start, over all claims."""
        return self._checksums

    @property
    def count(self) -> int:
        """How many records were read since the start."""
        return sum(checksum.count for checksum in self._checksums.values())

    async def open(self, claim: Claim) -> NullWriter:
        """See Sink."""
        checksum = self._checksums.setdefault(claim.partition, Checksum())
        return NullWriter(partial(self._fold, checksum))

    async def _fold(self, checksum: Checksum, batch: RecordBatch) -> None:
        """Fold a batch in: one of some size in a thread, for the loop's sake."""
        if len(batch.buffer) > (_INLINE_BYTES if kernel.fold is None else _NATIVE_INLINE_BYTES):
            await self._threads.run(lambda: checksum.add(batch))
        else:
            checksum.add(batch)

    async def close(self) -> None:
        """See Sink."""
        await self._threads.close(timeout_s=_CLOSE_S)
