# SPDX-License-Identifier: Apache-2.0
"""Lines of a file, a pipe or a terminal, read in a thread so that the event loop goes on.

A thread of its own rather than the loop's: one that waits for a terminal cannot be interrupted, and the process must be able to
end all the same. It reads ahead by a few chunks at most.
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
    """Lines, without their ends (``\\n``), of what a file descriptor gives; the last one needs no end.

    ``longest`` bounds a line, in bytes.
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
        """Read no more: :meth:`lines` ends with what was read, but for a line that has not ended."""
        self._stopped = True
        self._arrived.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """Iterate over the lines. Unbounded, as its source is; ends by :meth:`stop`.

        Raises ConfigError for a line that is too long, and what cannot be read.
        """
        loop = asyncio.get_running_loop()
        # of its own: a thread that still reads when the caller's is closed would read from whatever gets its number next
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
        """Have the thread end, which may wait for room."""
        self._stopped = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._chunks.get_nowait()

    async def _next(self) -> bytes | OSError | None:
        """Return the next chunk, empty at the end; None when it was stopped and nothing more is there."""
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
                with contextlib.suppress(RuntimeError):  # the loop has ended: nobody wants it any more
                    loop.call_soon_threadsafe(self._arrived.set)
        finally:
            os.close(descriptor)
