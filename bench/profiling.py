# SPDX-License-Identifier: Apache-2.0
"""Profile of the daemon by stage: ``python -m bench --profile CASE``.

py-spy samples all threads, native frames included, of each reader of the case that is the daemon: with the null sink,
without the native kernel, and with the Parquet sink. It pauses the process for each sample, so rates are lower than in
the benchmark. A sample counts for the stage of the innermost frame that a pattern of :data:`STAGES` matches.

Waiting threads are left out; the samples of threads that waited for the interpreter lock are printed separately. Also
printed are the cores that the process used, and how much of that was system time (mostly copying out of the socket).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from bench.cases import Case, Reader
from bench.filling import fill
from bench.measuring import scratch
from bench.peers import STARTERS
from bench.readers.running import ReaderFailed, Running, Source
from tests.support.kafka import Cluster

STAGES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (stage, re.compile(pattern))
    for stage, pattern in (
        ("CRC", r"crc32|crc32c|_crc"),
        ("decompression", r"decompress|inflate|snappy_uncompress|LZ4_.*decompress|RawUncompress|libcramjam|_cramjam"),
        ("compression", r"ZSTD_|ZSTDMT_|RawCompress|LZ4_compress|deflate"),
        ("Parquet encoding", r"libparquet|parquet::|pyarrow/parquet"),
        ("Arrow", r"libarrow|pyarrow|_kernel[./]gather|wire/arrow\.py|arrow_pieces\.py"),
        ("fold", r"_kernel[./]fold|sinks/null\.py"),
        ("decode", r"_kernel[./](records|messages)|wire/modern/|wire/columns\.py|wire/records\.py"),
        ("hand-over between threads", r"_(write_to|read_from)_self|call_soon_threadsafe|concurrent/futures|sem_post"),
        (
            "socket",
            (
                r"\brecv\b|recv_into|recvmsg|\bread_until\b|selector_events\.py|net/(stream|frames|connection)\.py|"
                r"_kernel[./]memory"
            ),
        ),
        ("fetch", r"consumerd/fetch/|consumerd/net/|consumerd/wire/"),
        ("delivery", r"consumerd/(delivery|sinks)/"),
        ("ZooKeeper and group", r"consumerd/(group|zk|offsets|cluster)/|aiozk/"),
        ("metrics and HTTP", r"prometheus_client|aiohttp|consumerd/(telemetry|daemon)/"),
        ("event loop", r"asyncio/|uvloop|concurrent/futures|epoll"),
    )
)
"""Stages, and patterns of their frames: ``function (file:line)``, or ``symbol (library)``.

The first stage that matches a frame counts.
"""

_WAITS: Final = (
    (LOCKED := "waiting for the interpreter's lock", re.compile(r"pthread_cond_timedwait")),
    (WAITING := "waiting", re.compile(r"PyThread_acquire_lock|epoll_wait|clock_nanosleep|\bsem_(timed)?wait|\bpoll\b")),
)
"""Patterns of threads that wait, for the last three frames of a stack. They are tried before all stages."""

_RATE_HZ: Final = 200
_REST: Final = "interpreter and the rest"


def stage_of(frames: Iterable[str]) -> str:
    """Return the stage of a stack, whose frames are given outermost first.

    The result can also be :data:`WAITING` or :data:`LOCKED`.
    """
    stack = list(frames)
    for stage, pattern in _WAITS:
        if any(pattern.search(frame) for frame in stack[-3:]):
            return stage
    for frame in reversed(stack):
        for stage, pattern in STAGES:
            if pattern.search(frame):
                return stage
    return _REST


def count_stages(raw: str) -> Counter[str]:
    """Return the number of samples of each stage in py-spy's raw output.

    A line of the output is ``outermost;...;innermost count``.
    """
    stages: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        stages[stage_of(stack.split(";"))] += int(count)
    return stages


def count_frames(raw: str) -> Counter[str]:
    """Return the number of samples of each innermost frame, without threads that wait."""
    frames: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        names = stack.split(";")
        if stage_of(names) not in {WAITING, LOCKED}:
            frames[names[-1]] += int(count)
    return frames


def show_shares(raw: str, frames: int = 15) -> str:
    """Return a text of the stages by share, and of the most frequent innermost frames."""
    stages = count_stages(raw)
    locked = stages.pop(LOCKED, 0)
    stages.pop(WAITING, 0)
    text = ""
    for title, counted in (("stage", stages), ("innermost frame", count_frames(raw))):
        total = max(1, counted.total())
        text += f"  {title}, of {total} samples of threads that work\n"
        text += "".join(f"    {100 * count / total:5.1f} %  {name}\n" for name, count in counted.most_common(frames))
    return f"{text}  beside them {locked} samples of threads that waited for the interpreter's lock\n"


def profile_case(case: Case, records: int, cluster_of: Callable[[str], Cluster]) -> None:
    """Profile the daemon's readers of a case, and print the results.

    Args:
        records: the topic gets twice as many, divided by the case's ``Filling.fewer``.
        cluster_of: returns a cluster of a release, not started yet.
    """
    with cluster_of(case.filling.release) as cluster:
        total = fill(cluster, case.filling, 2 * records // case.filling.fewer)
        source = Source(cluster=cluster, topic=case.filling.topic, records=total)
        for reader in (Reader.DAEMON, Reader.PURE, Reader.PARQUET):
            if reader in case.readers:
                print(f"{case.name}, {reader}")
                with scratch() as folder, STARTERS[reader](source, folder) as running:
                    _profile(running, total, folder / "samples")


def _profile(running: Running, total: int, path: Path) -> None:
    while not running.series() or running.series()[-1][1] == 0:
        time.sleep(0.01)
    program = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    command = [program, "record", "--pid", str(running.pid), "--native", "--rate", str(_RATE_HZ)]
    began, first = time.monotonic(), _user_and_system(running.pid)
    sampler = subprocess.Popen(
        [*command, "--duration", "600", "--format", "raw", "--output", str(path)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    while (series := running.series())[-1][1] < 0.9 * total and time.monotonic() - began < 30:
        time.sleep(0.05)
    seconds, last = time.monotonic() - began, _user_and_system(running.pid)
    sampler.send_signal(signal.SIGINT)
    _, said = sampler.communicate(timeout=60)
    if not path.exists():
        raise ReaderFailed(f"py-spy wrote nothing: {said.decode()[-1000:]}")
    user, system = ((b - a) / seconds for a, b in zip(first, last, strict=True))
    print(f"  {user + system:.2f} cores, {system:.2f} of them the system's; {series[-1][1]} of {total} records")
    print(show_shares(path.read_text()), flush=True)


def _user_and_system(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks
