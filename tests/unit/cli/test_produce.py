# SPDX-License-Identifier: Apache-2.0
"""``consumerd produce`` without a cluster: its input, and what it says when nothing can be written."""

from __future__ import annotations

import asyncio
import linecache
import os
import sys
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from consumerd.cli.line_feed import LineFeed
from consumerd.cli.main import main
from consumerd.errors import ConfigError
from tests.support.kafka import free_port


def feed_lines(data: bytes, *, longest: int = 1000) -> list[bytes]:
    """Read lines from a pipe that is closed behind the data."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)

    async def read() -> list[bytes]:
        return [line async for line in LineFeed(reading, longest=longest).lines()]

    try:
        return asyncio.run(read())
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"\n\ntwo\r\n", [b"", b"", b"two\r"]),
        (b"a\x00\xff\nb", [b"a\x00\xff", b"b"]),
    ],
)
def test_lines_are_what_stands_between_their_ends(data: bytes, lines: list[bytes]) -> None:
    """Any bytes but the newline; an empty line is an empty value, and the last line needs no end."""
    assert lines == feed_lines(data)


def test_lines_longer_than_what_is_read_at_once_stay_whole(tmp_path: Path) -> None:
    """Their pieces come in several reads."""
    lines = [bytes([97 + number]) * (70_000 * number) for number in range(4)]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines))

    async def read(descriptor: int) -> list[bytes]:
        feed = LineFeed(descriptor, longest=1 << 20)
        found = [line async for line in feed.lines()]
        assert (path.stat().st_size, 4) == (feed.read_bytes, feed.read_lines)
        return found

    with path.open("rb") as file:
        assert lines == asyncio.run(read(file.fileno()))


def test_a_line_that_never_ends_is_not_collected_for_ever() -> None:
    """It could not be a record; the message says which one it is."""
    with pytest.raises(ConfigError, match="line 2: more than 1000 bytes"):
        feed_lines(b"fine\n" + b"x" * 2000)


def test_a_stopped_feed_gives_what_was_read_and_no_more() -> None:
    """Ctrl-C while the terminal waits: the lines are written, and half a line is none."""
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\nhalf")

    async def read() -> list[bytes]:
        feed = LineFeed(reading, longest=1000)
        found = []
        async for line in feed.lines():
            found.append(line)
            if line == b"two":
                feed.stop()
        return found

    try:
        assert [b"one", b"two"] == asyncio.run(read())
    finally:
        os.close(writing)
        os.close(reading)


def is_reading(thread: threading.Thread) -> bool:
    """Whether a thread has come to its next call of ``os.read``, before which it looks at nothing more."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and "os.read(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def test_a_feed_that_has_ended_reads_nothing_of_whoever_opens_something_next() -> None:
    """Its thread may still wait for input when the caller closes what it was given."""
    before = set(threading.enumerate())
    reading, writing = os.pipe()
    os.write(writing, b"fine\n")

    async def read() -> threading.Thread:
        async with aclosing(LineFeed(reading, longest=1000).lines()) as lines:
            assert b"fine" == await anext(lines)
            (thread,) = {one for one in threading.enumerate() if one.name == "read lines"} - before
            # it would end by itself, had the feed ended before that; nothing tells when a thread is in a system call
            while not is_reading(thread):  # noqa: ASYNC110
                await asyncio.sleep(0)
        return thread

    reader = asyncio.run(read())
    os.close(reading)
    others, ours = os.pipe()
    try:
        assert others == reading
        os.write(ours, b"mine")
        os.write(writing, b"the end of its wait")
        reader.join(10)
        assert not reader.is_alive()
        assert os.read(others, 100) == b"mine"
    finally:
        for descriptor in (others, ours, writing):
            os.close(descriptor)


@pytest.fixture
def lines(tmp_path: Path) -> str:
    path = tmp_path / "lines"
    path.write_bytes(b"a:b\nno key\n")
    return str(path)


def test_a_cluster_that_is_not_there_is_exit_code_3(lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As for every command; the address is named."""
    address = f"127.0.0.1:{free_port()}"
    assert 3 == main(["produce", "t", "--bootstrap", address, "--file", lines, "--timeout", "1"])
    error = capsys.readouterr().err
    assert "t: no broker could be asked about it within 1 s" in error
    assert address in error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--bootstrap", "nowhere"], "bootstrap: expected host:port, got 'nowhere'"),
        (["--bootstrap", "a:1", "--file", "/no/such/file"], "--file: /no/such/file cannot be read"),
        (["--bootstrap", "a:1", "--key-separator", "="], "line 1: no key, since '=' is not in it"),
        (["--bootstrap", "a:1", "--magic", "1"], "--magic: only with Kafka 0.6 and 0.7"),
        (["--bootstrap", "a:1", "--unknown", "fail"], "--unknown: only with Kafka 0.6 and 0.7"),
        (["--set", "cluster.request_timeout_ms=5"], "cluster.zookeeper"),
    ],
)
def test_what_cannot_work_is_exit_code_2(
    args: list[str], message: str, lines: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is connected to."""
    given = args if "--file" in args else [*args, "--file", lines]
    assert 2 == main(["produce", "t", *given])
    assert message in capsys.readouterr().err


def test_a_closed_stdin_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a service that was given none: a sentence, and no traceback."""
    monkeypatch.setattr(sys, "stdin", None)
    assert 2 == main(["produce", "t", "--bootstrap", "a:1"])
    assert "stdin is closed; give --file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ["--acks", "2"],
        ["--codec", "rar"],
        ["--key-separator", ""],
        ["--header", "nameless"],
        ["--bootstrap", "a:1", "-z", "b:2"],
    ],
)
def test_options_that_mean_nothing_are_refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By argparse, with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(["produce", "t", *args])
    assert 2 == caught.value.code
    assert "error: argument" in capsys.readouterr().err
