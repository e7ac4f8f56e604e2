# SPDX-License-Identifier: Apache-2.0
"""The demo's processes: their ends are told from their deaths, and none outlives the demo."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from consumerd.demo.children import Child, ChildFailed
from tests.support.kafka import free_port
from tests.support.waiting import until

ARGUMENTS = ("run", "--set=group.id=g", "--topics=t", "--set=http.listen=off")


def member(folder: Path) -> Child:
    """A daemon that waits for a ZooKeeper which never comes."""
    return Child("one", *ARGUMENTS, f"--set=cluster.zookeeper=127.0.0.1:{free_port()}", folder=folder)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_leaving_the_block_leaves_no_process(tmp_path: Path) -> None:
    """Whatever went wrong inside."""
    with pytest.raises(ZeroDivisionError):
        async with member(tmp_path) as child:
            assert exists(child.process.pid)
            raise ZeroDivisionError

    assert not child.running
    assert not exists(child.process.pid)


async def test_an_orderly_end_is_no_failure(tmp_path: Path) -> None:
    """What we have asked for."""
    async with member(tmp_path) as child:
        await until(lambda: b"zookeeper" in child.log.read_bytes())
        child.check()
        await child.stop(20)
        child.check()

    assert child.process.returncode == 0


async def test_a_death_is_a_failure_that_shows_the_log(tmp_path: Path) -> None:
    """The one thing that helps whoever sees it."""
    async with member(tmp_path) as child:
        await until(lambda: b"zookeeper" in child.log.read_bytes())
        os.kill(child.process.pid, signal.SIGKILL)
        await child.process.wait()

        with pytest.raises(ChildFailed, match=r"(?s)one ended with SIGKILL; its log .*one\.log.* ends:.*zookeeper"):
            child.check()


async def test_a_kill_of_ours_is_no_failure(tmp_path: Path) -> None:
    """The demo kills one on purpose."""
    async with member(tmp_path) as child:
        await child.kill()

        child.check()


async def test_settings_that_are_refused_are_told(tmp_path: Path) -> None:
    """Not a wait for a line that never comes."""
    async with Child("one", "run", "--set=group.id=a b", folder=tmp_path) as child:
        with pytest.raises(ChildFailed, match=r"(?s)one ended with exit code 2.*group\.id"):
            await child.read_line(30)


async def test_silence_is_told(tmp_path: Path) -> None:
    """Every wait has an end."""
    async with member(tmp_path) as child:
        with pytest.raises(ChildFailed, match="said nothing for 0 s"):
            await child.read_line(0.1)


async def test_it_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    """A demo that is itself killed cleans up nothing."""
    program = (
        "import asyncio, sys, pathlib\n"
        "from consumerd.demo.children import Child\n"
        "async def main():\n"
        "    async with Child('one', *sys.argv[2:], folder=pathlib.Path(sys.argv[1])) as child:\n"
        "        print(child.process.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    arguments = (str(tmp_path), *ARGUMENTS, f"--set=cluster.zookeeper=127.0.0.1:{free_port()}")
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert exists(pid)

    parent.kill()
    await parent.wait()

    await until(lambda: not exists(pid))
