"""Feeding frame assemblers."""

from __future__ import annotations

from collections.abc import Sequence

from consumerd.net.frames import FrameAssembler


def feed(assembler: FrameAssembler, data: bytes, chunk: int, *, as_views: bool = False) -> Sequence[bytes | memoryview]:
    """Receive ``data`` in reads of at most ``chunk`` bytes, as a socket would, and return the frames."""
    found: list[bytes | memoryview] = []
    while data:
        buffer = assembler.buffer()
        assert len(buffer) > 0
        count = min(chunk, len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        found += [body if as_views else bytes(body) for body in assembler.advance(count)]
    return found
