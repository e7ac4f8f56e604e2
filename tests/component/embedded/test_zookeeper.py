# SPDX-License-Identifier: Apache-2.0
"""The embedded server: it comes up, keeps its data and its port, and never leaves a process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper, ZooKeeperFailed
from tests.support.waiting import until


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_serves_on_loopback_only_and_is_gone_afterwards(tmp_path: Path) -> None:
    """A demo must not open a port to the network, nor leave a process."""
    async with EmbeddedZooKeeper(tmp_path) as zookeeper:
        pid = zookeeper.pid
        assert zookeeper.connect_string == f"127.0.0.1:{zookeeper.port}"
        assert "Mode: standalone" in await zookeeper.ask("srvr")
        with pytest.raises(OSError):  # noqa: PT011 (refused, or no such address: both say it)
            await asyncio.open_connection("127.0.0.2", zookeeper.port)

    assert not _exists(pid)


async def test_it_restarts_on_its_port_with_its_data_even_when_paused_or_killed(tmp_path: Path) -> None:
    """Tests of lost servers need the same server back."""
    async with EmbeddedZooKeeper(tmp_path / "zk") as zookeeper:
        port, pid = zookeeper.port, zookeeper.pid
        zookeeper.pause()
        await zookeeper.restart()
        assert port == zookeeper.port
        assert not _exists(pid)
        await zookeeper.kill()
        assert not zookeeper.running
        await zookeeper.start()
        with pytest.raises(RuntimeError):
            await zookeeper.start()
    await zookeeper.stop()

    assert (tmp_path / "zk" / "data" / "version-2").is_dir()
    assert not zookeeper.running
    with pytest.raises(RuntimeError):
        _ = zookeeper.pid


async def test_server_left_by_a_killed_parent_is_replaced(tmp_path: Path) -> None:
    """A demo that was killed must start again on the same folder."""
    async with EmbeddedZooKeeper(tmp_path) as left, EmbeddedZooKeeper(tmp_path, port=left.port) as zookeeper:
        assert left.port == zookeeper.port
        await until(lambda: not left.running)


async def test_server_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """A test run that is killed leaves nothing behind."""
    program = f"""
import asyncio, os, pathlib
from consumerd.embedded.zookeeper import EmbeddedZooKeeper

async def main():
    async with EmbeddedZooKeeper(pathlib.Path({str(tmp_path)!r})) as zookeeper:
        print(zookeeper.pid, flush=True)
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    output, _ = await parent.communicate()

    await until(lambda: not _exists(int(output)), within_s=10)


async def test_foreign_process_with_a_stale_pid_is_left_alone(tmp_path: Path) -> None:
    """Pids are used again."""
    (tmp_path / "pid").write_text(str(os.getpid()))

    async with EmbeddedZooKeeper(tmp_path) as zookeeper:
        assert zookeeper.running


async def test_failure_to_start_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    """Whoever reads the error must see the server's own words."""
    async with EmbeddedZooKeeper(tmp_path / "taken") as taken:
        second = EmbeddedZooKeeper(tmp_path / "second", port=taken.port)
        with pytest.raises(ZooKeeperFailed, match="log ends"):
            async with second:
                pass

    assert not second.running


async def test_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C during start-up."""
    zookeeper = EmbeddedZooKeeper(tmp_path, tick_ms=500)
    async with asyncio.TaskGroup() as group:
        start = group.create_task(zookeeper.start())
        await until(lambda: zookeeper.running)
        pid = zookeeper.pid
        os.kill(pid, signal.SIGSTOP)
        start.cancel()

    assert start.cancelled()
    assert not _exists(pid)
