# SPDX-License-Identifier: Apache-2.0
"""Writers in processes of their own, to be killed and raced: ``python -m tests.support.landing_process MODE KIND PATH``.

``dying``: one process after the other lands twenty records and is killed by SIGKILL before its n-th change of the disk,
n rising from 0, until one lives to its end. Prints how many were killed.
``succeeding``: the same, and each begins a chain of its own first, on a request three offsets back.
``racing``: lands what is missing of the first 400 records, beside others that do the same; half of the files at most, so that
of three processes two or more have a part, however late they come.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path

from consumerd.errors import RetriableSinkError
from consumerd.landing.filesystem import FileSystem
from consumerd.sinks.base import Start
from consumerd.sinks.chain_writer import ChainWriter
from tests.support.clocks import ManualClock
from tests.support.faulty_files import RecordingFileSystem
from tests.support.sinks import SinkRig, run_of

RACE_END = 400
RACE_FILE = 3
"""Records of each file of a race."""
RACE_SHARE = RACE_END // RACE_FILE // 2
"""Files that one process lands at most."""


def main() -> None:
    """Do what the command line says."""
    mode, kind, path = sys.argv[1:]
    rig = SinkRig(kind=kind, path=Path(path), clock=ManualClock())
    if mode in ("dying", "succeeding"):
        sys.stdout.write(str(_die_again_and_again(rig, requests=mode == "succeeding")))
    else:
        asyncio.run(_race(rig))


def _die_again_and_again(rig: SinkRig, *, requests: bool) -> int:
    if rig.kind == "parquet":
        run_of(0, 1).to_arrow()  # imports what it needs (pandas, too, where it is), once for all children
    rig.member()
    for number in itertools.count():
        child = os.fork()
        if child == 0:
            asyncio.run(_land_twenty(rig, number, f"r{number}" if requests else None))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return number
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"the writer killed before change {number} ended with status {status}")
    raise AssertionError("unreachable")


async def _land_twenty(rig: SinkRig, kill_before: int, request: str | None) -> None:
    changes = itertools.count()

    def kill(operation: str, name: str) -> None:
        if next(changes) == kill_before:
            os.kill(os.getpid(), signal.SIGKILL)

    if request is None:
        writer = await _open(rig, RecordingFileSystem(kill))
    else:
        writer = await rig.member(RecordingFileSystem(kill), name=f"process{os.getpid()}").open(rig.claim())
        back = max(0, (writer.resume_position or 0) - 3)
        await writer.start(Start(position=back, reason="request", new_chain=True, request_id=request))
    position = writer.resume_position or 0
    for start in (position, position + 10):
        await writer.write(run_of(start, start + 10))
        await writer.flush()


async def _race(rig: SinkRig) -> None:
    writer = await _open(rig, None)
    position = writer.resume_position or 0
    landed = 0
    while position < RACE_END and landed < RACE_SHARE:
        try:
            await writer.write(run_of(position, min(position + RACE_FILE, RACE_END)))
            position = await writer.flush()
            landed += 1
        except RetriableSinkError as error:
            if error.resume_position is not None:
                position = error.resume_position
    await rig.close()


async def _open(rig: SinkRig, files: FileSystem | None) -> ChainWriter:
    sink = rig.member(files, name=f"process{os.getpid()}")
    while True:
        writer = await sink.open(rig.claim())
        try:
            await writer.start(Start(position=writer.resume_position or 0, reason="committed"))
        except RetriableSinkError:
            continue  # another process has just removed our hidden record, as a new claim does
        return writer


if __name__ == "__main__":
    main()
