"""Lines on a pipe: pace, end, and half lines."""

import asyncio
import contextlib
import errno
import json
import os

import pytest

from consumerd.errors import RetriableSinkError, SinkClosed
from consumerd.sinks.stdout import LineOutput, StdoutSink
from tests.support.claims import StubClaim
from tests.support.sinks import PARTITION, Clock, SinkRig, run_of


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        with contextlib.suppress(OSError):  # a test may have closed it
            os.close(descriptor)


@pytest.fixture
async def sink(pipe, tmp_path):
    context = SinkRig(kind="stdout", path=tmp_path, clock=Clock()).context()
    sink = StdoutSink(context, StdoutSink.Options(), descriptor=pipe[1])
    yield sink
    await sink.close()


def read_lines(reader: int, count: int) -> list[dict[str, object]]:
    with os.fdopen(os.dup(reader), "rb") as file:
        return [json.loads(file.readline()) for _ in range(count)]


async def test_batch_is_acknowledged_when_it_is_written(sink: StdoutSink, pipe):
    """There is nothing else that could be waited for."""
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(0, "earliest")

    assert writer.resume_position is None
    assert await writer.write(run_of(0, 3)) == 3
    assert [line["offset"] for line in read_lines(pipe[0], 3)] == [0, 1, 2]
    assert await writer.flush() == 3
    assert writer.deadline() is None


async def test_slow_reader_slows_its_writer_down(sink: StdoutSink, pipe):
    """A pipe holds 64 KiB; what comes after waits for the reader, and the loop does not."""
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(0, "earliest")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        written = group.create_task(writer.write(run_of(0, 2, size=100_000)))
        lines = await asyncio.to_thread(read_lines, pipe[0], 1)
        assert [line["offset"] for line in lines] == [0]
        assert not written.done()
        await asyncio.to_thread(os.read, pipe[0], 200_000)
        await asyncio.to_thread(os.read, pipe[0], 200_000)
        while not written.done():
            await asyncio.to_thread(os.read, pipe[0], 200_000)
    assert written.result() == 2


async def test_reader_that_has_gone_ends_the_process_in_order(sink: StdoutSink, pipe):
    """``consumerd run | head`` is no failure."""
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(0, "earliest")
    os.close(pipe[0])

    with pytest.raises(SinkClosed):
        await writer.write(run_of(0, 3))


async def test_close_does_not_wait_for_a_reader_for_ever(sink: StdoutSink, pipe):
    """SIGTERM must end the process whatever the reader does."""
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(0, "earliest")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        stuck = group.create_task(writer.write(run_of(0, 1, size=1_000_000)))
        await asyncio.to_thread(os.read, pipe[0], 1)
        stuck.cancel()
        await asyncio.wait([stuck])
        await writer.abandon()
        await sink.close()
    os.close(pipe[0])


async def test_nonblocking_descriptor_is_waited_for(sink: StdoutSink, pipe):
    """Shells and parents set it, for every process that shares the terminal or pipe."""
    os.set_blocking(pipe[1], False)
    filler = os.write(pipe[1], b"\n" * (1 << 20))
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(0, "earliest")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        written = group.create_task(writer.write(run_of(0, 1, size=300_000)))
        assert not written.done()
        data = b""
        while not data.endswith(b"}\n"):
            data += await asyncio.to_thread(os.read, pipe[0], 1 << 20)
    assert json.loads(data[filler:])["offset"] == 0
    assert written.result() == 1


async def test_failure_is_told_with_its_place(tmp_path):
    """Stdout may be a file on a full disk."""
    with (tmp_path / "out").open("wb") as file:
        descriptor = os.dup(file.fileno())
        os.close(descriptor)
        sink = StdoutSink(
            SinkRig(kind="stdout", path=tmp_path, clock=Clock()).context(), StdoutSink.Options(), descriptor=descriptor
        )
        writer = await sink.open(StubClaim(PARTITION))
        await writer.start(0, "earliest")
        with pytest.raises(RetriableSinkError, match="stdout: cannot write orders/3 from 0 on: Bad file") as caught:
            await writer.write(run_of(0, 1))
        await sink.close()
    assert caught.value.resume_position is None


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
