# SPDX-License-Identifier: Apache-2.0
"""Sink ``null``: reads all records and drops them, with a checksum of each partition.

Used to measure speed, and to check that two runs have read the same records.

The checksum has five streams of bytes: all offsets, all key lengths (-1 for null), all keys, all value lengths, all
values. Each has a CRC-32. They depend only on the records and their order, so any division into batches gives the same
result. (Checksums of the wire formats are verified by the decoder.)

The value is a cryptographic hash of the five CRCs. A CRC of them would not tell ``[(null, null), ("", null)]`` from
``[(null, ""), (null, null)]``: CRCs are linear, so differences in two streams can cancel out.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from functools import partial
from hashlib import blake2b
from operator import sub
from typing import Final

from consumerd.aio.threads import WorkThreads
from consumerd.model import Claim, TopicPartition
from consumerd.sinks.base import DirectWriter, SinkContext
from consumerd.sinks.options import SinkOptions
from consumerd.wire import kernel
from consumerd.wire.kernel_sinks import FoldKernel
from consumerd.wire.record_fields import NULL_SPAN
from consumerd.wire.records import RecordBatch

_INLINE_BYTES: Final = 64 << 10
"""Size of a batch up to which it is added on the event loop: starting a thread would take as long."""
_NATIVE_INLINE_BYTES: Final = 256 << 10
"""Size of a batch up to which it is added on the event loop if the native kernel is there."""
_CLOSE_S: Final = 5.0
"""Longest time, in seconds, that closing waits for the thread."""
_VALUE_BYTES: Final = 8


class Checksum:
    """Checksum of one partition's records: offsets, keys and values, in order."""

    def __init__(self) -> None:
        self.count = 0
        self._streams = [0] * 5

    @property
    def value(self) -> int:
        """Checksum of all records added so far, a number of 64 bits."""
        packed = struct.pack("<q5I", self.count, *self._streams)
        return int.from_bytes(blake2b(packed, digest_size=_VALUE_BYTES).digest())

    def add(self, batch: RecordBatch) -> None:
        """Add a batch's offsets, keys and values to the checksum."""
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
    """Return the lengths of keys or values, -1 for null, and their joined bytes."""
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


class NullSink:
    """Sink that reads all records and drops them, with a checksum of each partition.

    ``checksums`` has them by partition. Each counts all records since the sink was made, over all claims of the
    partition.
    """

    Options = SinkOptions

    def __init__(self, context: SinkContext, options: SinkOptions) -> None:  # noqa: ARG002 - as every sink
        self.checksums: dict[TopicPartition, Checksum] = {}
        self._threads = WorkThreads(name=f"sink-{context.sink_name}", count=1)

    async def open(self, claim: Claim) -> DirectWriter:
        """Return a writer that adds the partition's records to its checksum."""
        checksum = self.checksums.setdefault(claim.partition, Checksum())
        return DirectWriter(partial(self._fold, checksum))

    async def _fold(self, checksum: Checksum, batch: RecordBatch) -> None:
        """Add a batch to a checksum."""
        # a large batch in a thread, because it would block the event loop
        if len(batch.buffer) > (_INLINE_BYTES if kernel.fold is None else _NATIVE_INLINE_BYTES):
            await self._threads.run(lambda: checksum.add(batch))
        else:
            checksum.add(batch)

    async def close(self) -> None:
        """End the thread that computes checksums. Idempotent."""
        await self._threads.close(timeout_s=_CLOSE_S)
