# SPDX-License-Identifier: Apache-2.0
"""Lines of a file, a pipe or a terminal, read in a thread.

A thread keeps the event loop free while a read blocks. It is not one of the loop's default executor: the process could
not exit before those threads end, and a thread that waits for a terminal cannot be interrupted. The thread reads ahead
by a few chunks at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncIterator
from typing import Final

from consumerd.errors import ConfigError

_CHUNK_BYTES: Final = 64 << 10
_CHUNKS_AHEAD: Final = 4


class LineFeed:
    r"""Reads the lines of a file descriptor, without their line ends (``\n``).

    The last line needs no line end.

    Args:
        descriptor: File descriptor to read.
        longest: Length limit of a line, in bytes.
    """

    def __init__(self, descriptor: int, *, longest: int) -> None:
        self._descriptor = descriptor
        self._longest = longest
        self._chunks: queue.Queue[bytes | OSError] = queue.Queue(_CHUNKS_AHEAD)
        self._arrived = asyncio.Event()
        self._stopped = False
        self.read_bytes = 0
        self.read_lines = 0

    def stop(self) -> None:
        """Stop reading: :meth:`lines` ends with what was read.

        A line that has not ended is left out.
        """
        self._stopped = True
        self._arrived.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """Iterate over the lines, without a timeout, until the end of the input or :meth:`stop`.

        Raises ConfigError if a line is too long or reading fails.
        """
        loop = asyncio.get_running_loop()
        # a descriptor of its own: after the caller's is closed, the thread would read from the next file of that number
        descriptor = os.dup(self._descriptor)
        threading.Thread(target=self._read, args=(loop, descriptor), name="read lines", daemon=True).start()
        rest = b""
        try:
            while (chunk := await self._next()) is not None:
                if isinstance(chunk, OSError):
                    raise ConfigError(f"the input cannot be read: {chunk}") from chunk
                self.read_bytes += len(chunk)
                if chunk:
                    *whole, rest = (rest + chunk).split(b"\n")
                else:
                    whole, rest = ([rest] if rest else []), b""
                for line in whole:
                    self.read_lines += 1
                    yield line
                if len(rest) > self._longest:
                    raise ConfigError(
                        f"line {self.read_lines + 1}: more than {self._longest} bytes, which is the most of a record"
                    )
                if not chunk:
                    return
        finally:
            self._end()

    def _end(self) -> None:
        """Make the reading thread end, even if it waits for space in the queue."""
        self._stopped = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._chunks.get_nowait()

    async def _next(self) -> bytes | OSError | None:
        """Return the next chunk, empty at the end.

        None if it was stopped and nothing more is there.
        """
        while True:
            self._arrived.clear()
            with contextlib.suppress(queue.Empty):
                return self._chunks.get_nowait()
            if self._stopped:
                return None
            await self._arrived.wait()

    def _read(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        chunk: bytes | OSError = b"-"
        try:
            while chunk and not isinstance(chunk, OSError) and not self._stopped:
                try:
                    chunk = os.read(descriptor, _CHUNK_BYTES)
                except OSError as error:
                    chunk = error
                self._chunks.put(chunk)
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._arrived.set)
        finally:
            os.close(descriptor)
