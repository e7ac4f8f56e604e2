# SPDX-License-Identifier: Apache-2.0
"""Lines on a pipe: pace, end, and half lines."""

import asyncio
import errno
import json
import os
import threading
from pathlib import Path

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import RetriableSinkError, SinkClosed
from consumerd.sinks.base import Start
from consumerd.sinks.stdout import LineOutput, StdoutSink
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.sinks import PARTITION, SinkRig, run_of


class Pipe:
    """Both ends of a pipe, each closed once: a number that was closed may be somebody else's."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self._ends = {"reader": reader, "writer": writer}

    @property
    def reader(self) -> int:
        return self._ends["reader"]

    @property
    def writer(self) -> int:
        return self._ends["writer"]

    def close_reader(self) -> None:
        if "reader" in self._ends:
            os.close(self._ends.pop("reader"))

    def close(self) -> None:
        while self._ends:
            os.close(self._ends.popitem()[1])

    def read(self) -> bytes:
        return os.read(self.reader, 1 << 20)

    def read_text(self, lines: int) -> str:
        data = b""
        while data.count(b"\n") < lines:
            data += self.read()
        return data.decode()

    def read_lines(self, count: int) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.read_text(count).splitlines()]


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
async def sink(pipe: Pipe, tmp_path):
    context = SinkRig(kind="stdout", path=tmp_path, clock=ManualClock()).context()
    sink = StdoutSink(context, StdoutSink.Options(), descriptor=pipe.writer)
    yield sink
    await sink.close()
    # whoever writes still must be done before the number of the descriptor becomes another test's pipe
    pipe.close_reader()
    for thread in threading.enumerate():
        if thread.name.startswith("sink-"):
            await asyncio.to_thread(thread.join, 10)


async def test_batch_is_acknowledged_when_it_is_written(sink: StdoutSink, pipe: Pipe):
    """There is nothing else that could be waited for."""
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=0, reason="earliest"))

    assert writer.resume_position is None
    assert await writer.write(run_of(0, 3)) == 3
    assert [line["offset"] for line in pipe.read_lines(3)] == [0, 1, 2]
    assert await writer.flush() == 3
    assert writer.deadline() is None


async def test_slow_reader_slows_its_writer_down(sink: StdoutSink, pipe: Pipe):
    """A pipe holds 64 KiB; what comes after waits for the reader, and the loop does not."""
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=0, reason="earliest"))
    async with timeout(10), asyncio.TaskGroup() as group:
        written = group.create_task(writer.write(run_of(0, 2, size=200_000)))
        assert (await asyncio.to_thread(os.read, pipe.reader, 1)) == b"{"
        assert not written.done()
        assert (await asyncio.to_thread(pipe.read_text, 2)).count('"offset":1,') == 1
    assert written.result() == 2


async def test_reader_that_has_gone_ends_the_process_in_order(sink: StdoutSink, pipe: Pipe):
    """``consumerd run | head`` is no failure."""
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=0, reason="earliest"))
    pipe.close_reader()

    with pytest.raises(SinkClosed):
        await writer.write(run_of(0, 3))


async def test_close_does_not_wait_for_a_reader_for_ever(sink: StdoutSink, pipe: Pipe):
    """SIGTERM must end the process whatever the reader does."""
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=0, reason="earliest"))
    async with timeout(10), asyncio.TaskGroup() as group:
        stuck = group.create_task(writer.write(run_of(0, 1, size=1_000_000)))
        await asyncio.to_thread(os.read, pipe.reader, 1)
        stuck.cancel()
        await asyncio.wait([stuck])
        await writer.abandon()
        await sink.close()
    pipe.close_reader()  # ends the thread, too


async def test_nonblocking_descriptor_is_waited_for(sink: StdoutSink, pipe: Pipe):
    """Shells and parents set it, for every process that shares the terminal or pipe."""
    os.set_blocking(pipe.writer, False)
    filler = os.write(pipe.writer, b"\n" * (1 << 20))
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=0, reason="earliest"))
    async with timeout(10), asyncio.TaskGroup() as group:
        written = group.create_task(writer.write(run_of(0, 1, size=300_000)))
        assert not written.done()
        data = b""
        while not data.endswith(b"}\n"):
            data += await asyncio.to_thread(pipe.read)
    assert json.loads(data[filler:])["offset"] == 0
    assert written.result() == 1


@pytest.fixture
def full_disk():
    with Path("/dev/full").open("wb") as file:
        yield file


async def test_failure_is_told_with_its_place(full_disk, tmp_path):
    """Stdout may be a file on a full disk."""
    context = SinkRig(kind="stdout", path=tmp_path, clock=ManualClock()).context()
    sink = StdoutSink(context, StdoutSink.Options(), descriptor=full_disk.fileno())
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=0, reason="earliest"))
    with pytest.raises(RetriableSinkError, match="stdout: cannot write orders/3 from 0 on: No space") as caught:
        await writer.write(run_of(0, 1))
    await sink.close()
    assert caught.value.resume_position is None


async def test_batch_that_failed_is_not_acknowledged_by_its_retry_or_a_flush(full_disk, tmp_path):
    """The second write of a batch must write it: one that returns at once has its records committed unwritten."""
    context = SinkRig(kind="stdout", path=tmp_path, clock=ManualClock()).context()
    sink = StdoutSink(context, StdoutSink.Options(), descriptor=full_disk.fileno())
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=5, reason="committed"))
    for _ in range(2):
        with pytest.raises(RetriableSinkError):
            await writer.write(run_of(5, 8))
        assert await writer.flush() == 5
    await sink.close()


def test_line_that_was_cut_is_completed_first():
    """A full disk cuts a line in two; the next line must not be glued to the stump."""

    class FullDisk(LineOutput):
        room = 10
        written = b""

        def _write_some(self, data: memoryview) -> int:
            taken = bytes(data[: self.room])
            if not taken:
                raise OSError(errno.ENOSPC, "full")
            self.written += taken
            self.room -= len(taken)
            return len(taken)

    output = FullDisk(-1)
    for room in (0, 7, 0, 1000, 3):
        output.room += room
        try:
            output.write_batch(run_of(0, 2))
        except OSError:
            continue
    output.room = 10_000
    output.write_batch(run_of(2, 3))

    offsets = [json.loads(line)["offset"] for line in output.written.splitlines()]
    assert offsets[-1] == 2
    assert set(offsets) == {0, 1, 2}
