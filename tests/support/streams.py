# SPDX-License-Identifier: Apache-2.0
"""Feeding frame assemblers."""

from __future__ import annotations

from collections.abc import Iterator

from consumerd.net.frames import FrameAssembler


def receive(assembler: FrameAssembler, data: bytes, chunk: int) -> Iterator[memoryview]:
    """Receive ``data`` in reads of at most ``chunk`` bytes, as a socket would, and yield the frames as they complete."""
    while data:
        buffer = assembler.buffer()
        assert len(buffer) > 0
        count = min(chunk, len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        yield from assembler.advance(count)


def feed(assembler: FrameAssembler, data: bytes, chunk: int) -> list[bytes]:
    """Receive all of ``data`` and return what is in the frames."""
    return [bytes(body) for body in receive(assembler, data, chunk)]
