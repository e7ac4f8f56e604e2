# SPDX-License-Identifier: Apache-2.0
"""What only an ensemble shows: a follower that has lost its leader goes on answering reads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from consumerd.aio.timeouts import timeout
from consumerd.embedded.zookeeper import server_command
from consumerd.java import get_java
from consumerd.zk.port import LeasePhase
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client, server_jars


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


async def mode(port: int) -> str:
    """Return leader, follower, or nothing while it does not serve."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"srvr")
        answer = (await reader.read()).decode()
        writer.close()
        return answer.partition("Mode: ")[2].split("\n")[0]
    return ""


@contextlib.asynccontextmanager
async def ensemble(root: Path, links: list[TcpProxy]) -> AsyncIterator[list[int]]:
    """Run three servers; the first reaches the others, and thus its leader, through ``links`` only.

    Gives the client ports. Election traffic goes direct: what is cut is what carries sessions.
    """
    clients, elections = free_ports(3), free_ports(3)
    quorum = [*free_ports(1), *(link.target_port for link in links)]
    java, jars = await asyncio.to_thread(get_java), server_jars()
    processes = []
    try:
        for number, client in enumerate(clients, start=1):
            folder = root / str(number)
            (folder / "data").mkdir(parents=True)
            (folder / "data" / "myid").write_text(str(number))
            ways = [quorum[0], *(link.port for link in links)] if number == 1 else quorum
            members = [
                f"server.{i}=127.0.0.1:{way}:{election}"
                for i, (way, election) in enumerate(zip(ways, elections, strict=True), start=1)
            ]
            settings = [
                f"dataDir={folder / 'data'}",
                f"clientPort={client}",
                "clientPortAddress=127.0.0.1",
                "tickTime=250",
                "initLimit=40",
                "syncLimit=40",
                "maxSessionTimeout=60000",
                "admin.enableServer=false",
                "4lw.commands.whitelist=srvr",
            ]
            (folder / "zoo.cfg").write_text("\n".join(settings + members))
            with (folder / "log").open("wb") as log:
                command = server_command(java, jars, folder / "zoo.cfg")
                processes.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, cwd=folder))

        async def ready() -> bool:
            modes = [await mode(client) for client in clients]
            return modes[0] == "follower" and sorted(modes) == ["follower", "follower", "leader"]

        await until(ready, within_s=30)
        yield clients
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def test_follower_cut_off_from_its_leader_does_not_renew_the_lease(tmp_path: Path) -> None:
    """It answers reads long after the leader has given the claim away: here 10 s, in the wild as long as its syncLimit."""
    second, third = free_ports(2)
    async with (
        TcpProxy(second, framed=False) as one,
        TcpProxy(third, framed=False) as two,
        ensemble(tmp_path, [one, two]) as clients,
        make_client(f"127.0.0.1:{clients[0]}", session_timeout_s=3) as zk,
        make_client(f"127.0.0.1:{clients[2]}") as other,
    ):
        await zk.create("/claim", b"", ephemeral=True)
        state = zk.state
        one.blackhole()
        two.blackhole()
        async with timeout(6):
            while state.phase is not LeasePhase.SUSPENDED:
                state = await zk.wait_state(state)
        assert await other.exists("/claim") is not None

        async def given_away() -> bool:
            return await other.exists("/claim") is None

        await until(given_away, within_s=8)
        assert zk.state.phase is LeasePhase.SUSPENDED
        one.heal()
        two.heal()
        async with timeout(15):
            while state.epoch == 1 or state.phase is not LeasePhase.FRESH:
                state = await zk.wait_state(state)

        assert await zk.exists("/claim") is None
        assert state.epoch == 2
