# SPDX-License-Identifier: Apache-2.0
"""Sink ``stdout``: JSON lines on stdout, as the sink ``jsonl`` writes them.

Logs go to stderr. Delivery is at least once, because stdout keeps no record of what was written. One thread writes, so
lines are never mixed. A batch is acknowledged when the system has taken all its bytes, so a slow reader slows the
partitions down. If the reader has gone (EPIPE), SinkClosed stops the daemon in order.
"""

from __future__ import annotations

import os
import select
from functools import partial
from typing import Final

from consumerd.aio.threads import WorkThreads
from consumerd.errors import RetriableSinkError, SinkClosed
from consumerd.landing.failures import describe_failure
from consumerd.model import Claim
from consumerd.sinks.base import DirectWriter, SinkContext
from consumerd.sinks.lines import encode_lines
from consumerd.sinks.options import SinkOptions
from consumerd.wire.records import RecordBatch

_STDOUT: Final = 1
_CLOSE_S: Final = 0.5
"""Longest time, in seconds, that closing waits for the reader of stdout."""


class LineOutput:
    """Writes whole lines to a file descriptor; only one thread may use it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._broken_line = b""

    def write_batch(self, batch: RecordBatch) -> None:
        """Write a batch's records as JSON lines; block until their reader takes them.

        Raises OSError, CorruptMessageError.
        """
        for piece in encode_lines(batch):
            self.write(piece)

    def write(self, lines: bytes) -> None:
        """Write whole lines; blocks until the reader of the descriptor takes them. Raises OSError."""
        # An earlier failure, such as a full disk, may have cut a line. Its rest is written first, so that the repeated
        # batch begins on a new line.
        data = self._broken_line + lines
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._write_some(rest) :]
        finally:
            written = len(data) - len(rest)
            line_end = data.index(b"\n", written - 1) + 1 if written else len(self._broken_line)
            self._broken_line = data[written:line_end]

    def _write_some(self, data: memoryview) -> int:
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                # the descriptor is non-blocking, as terminals and parent processes may make it
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()


class StdoutSink:
    """Sink that writes JSON lines to stdout, or to another file descriptor.

    It does not close the descriptor.
    """

    Options = SinkOptions

    def __init__(
        self,
        context: SinkContext,
        options: SinkOptions,  # noqa: ARG002 - as every sink
        *,
        descriptor: int = _STDOUT,
    ) -> None:
        self._threads = WorkThreads(name=f"sink-{context.sink_name}", count=1)
        self._output = LineOutput(descriptor)

    async def open(self, claim: Claim) -> DirectWriter:
        """Return a writer that writes the partition's records to the sink's descriptor."""
        return DirectWriter(partial(self._write, claim))

    async def _write(self, claim: Claim, batch: RecordBatch) -> None:
        """Write a batch. Has no time limit, because it waits for the reader of stdout.

        If it is cancelled, a thread may still write the batch.
        """
        if not len(batch):
            return
        try:
            await self._threads.run(lambda: self._output.write_batch(batch))
        except BrokenPipeError as error:
            raise SinkClosed("stdout: the reader has closed the pipe") from error
        except OSError as error:
            doing = f"write {claim.partition} from {batch.start} on"
            raise RetriableSinkError(describe_failure(error, doing, "stdout")) from error

    async def close(self) -> None:
        """End the writing thread. Idempotent.

        If the thread still waits for the reader of stdout after half a second, it is left running.
        """
        await self._threads.close(timeout_s=_CLOSE_S)
