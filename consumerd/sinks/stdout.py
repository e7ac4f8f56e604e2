# SPDX-License-Identifier: Apache-2.0
"""JSON lines on stdout, the same as in files; logs go to stderr.

There is no fence and no memory here: delivery is at least once. One thread writes, so that lines are never mixed, and a
batch is acknowledged when the system has taken all of it: a reader that is slow slows its partitions down. A reader that
has gone (EPIPE) ends the process in order, by SinkClosed.
"""

from __future__ import annotations

import os
import select
from typing import Final

from consumerd.aio.threads import WorkThreads
from consumerd.errors import RetriableSinkError, SinkClosed
from consumerd.landing.failures import describe_failure
from consumerd.model import Claim
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.lines import encode_lines
from consumerd.sinks.options import SinkOptions
from consumerd.wire.records import RecordBatch

_STDOUT: Final = 1
_CLOSE_S: Final = 0.5


class LineOutput:
    """Writes whole lines to a descriptor; used by one thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._broken_line = b""

    def write_batch(self, batch: RecordBatch) -> None:
        """Write a batch's lines; blocks while the reader is busy. Raises OSError, CorruptMessageError."""
        for piece in encode_lines(batch):
            self._write(piece)

    def _write(self, lines: bytes) -> None:
        # A failure (a full disk) may have cut a line in two; its rest goes first, then everything is written again.
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
                # whoever gave us this descriptor made it non-blocking, as terminals and parents of pipes do
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()


class StdoutWriter:
    """Acknowledges what the system has taken."""

    resume_position = None
    request_id = None

    def __init__(self, output: LineOutput, threads: WorkThreads, claim: Claim) -> None:
        self._output = output
        self._threads = threads
        self._claim = claim
        self._acknowledged = 0

    async def start(self, start: Start) -> None:
        """See PartitionWriter."""
        self._acknowledged = start.position

    async def write(self, batch: RecordBatch) -> int:
        """See PartitionWriter. Unbounded: it is the reader's pace."""
        if batch.next_offset > self._acknowledged:
            if len(batch):
                await self._write(batch)
            self._acknowledged = batch.next_offset
        return self._acknowledged

    async def _write(self, batch: RecordBatch) -> None:
        try:
            await self._threads.run(lambda: self._output.write_batch(batch))
        except BrokenPipeError as error:
            raise SinkClosed("stdout: the reader has closed the pipe") from error
        except OSError as error:
            doing = f"write {self._claim.partition} from {batch.start} on"
            raise RetriableSinkError(describe_failure(error, doing, "stdout")) from error

    async def flush(self) -> int:
        """See PartitionWriter: nothing is held."""
        return self._acknowledged

    def deadline(self) -> float | None:
        """See PartitionWriter."""
        return None

    async def abandon(self) -> None:
        """See PartitionWriter. What a thread is writing now may still come out."""


class StdoutSink:
    """Writes JSON lines to stdout, or to another descriptor, which stays open."""

    Options = SinkOptions

    def __init__(self, context: SinkContext, options: SinkOptions, *, descriptor: int = _STDOUT) -> None:  # noqa: ARG002
        self._threads = WorkThreads(name=f"sink-{context.sink_name}", count=1)
        self._output = LineOutput(descriptor)

    async def open(self, claim: Claim) -> StdoutWriter:
        """See Sink."""
        return StdoutWriter(self._output, self._threads, claim)

    async def close(self) -> None:
        """See Sink. A thread that waits for a reader is left behind after a moment."""
        await self._threads.close(timeout_s=_CLOSE_S)
