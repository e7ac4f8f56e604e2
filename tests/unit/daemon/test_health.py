# SPDX-License-Identifier: Apache-2.0
"""The image's health check: http and https, with a token, and daemons that do not answer."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from consumerd.daemon.health import Unhealthy, check
from consumerd.daemon.http_guard import ServerCertificate, TokenGuard
from consumerd.telemetry.hooks import Hooks
from tests.unit.daemon.test_http_guard import UNREADY, issue, served, write_secret

DOCKERFILE = (Path(__file__).resolve().parents[3] / "Dockerfile").read_text(encoding="utf-8")


def listening(address: tuple[str, int]) -> dict[str, str]:
    return {"CONSUMERD_HTTP__LISTEN": f"{address[0]}:{address[1]}"}


@pytest.mark.parametrize("tls", [False, True])
async def test_a_daemon_with_a_token_is_healthy_by_http_and_https(tmp_path: Path, tls: bool) -> None:
    """A container that is killed for its certificate would never serve; readiness is none of the check's business."""
    guard = TokenGuard(write_secret(tmp_path / "token", b"t0ken"), Hooks())
    # of an authority that nobody knows, and for another name than the container's
    certificate = ServerCertificate(*issue(trustme.CA(), tmp_path, "daemon.example"), Hooks()) if tls else None
    async with served(UNREADY, guard=guard, certificate=certificate) as address:
        assert "ok" == await asyncio.to_thread(check, listening(address))


async def test_what_the_image_asks_is_what_it_listens_on() -> None:
    """The command of the Dockerfile, as a process, with its variable: on all addresses it is asked at loopback."""
    (words,) = re.findall(r'^ +CMD \["python", (.*)\]$', DOCKERFILE, re.MULTILINE)
    (default,) = re.findall(r"(CONSUMERD_DEFAULT__HTTP__LISTEN)=0\.0\.0\.0:9309", DOCKERFILE)
    command = [sys.executable, *(word.strip('" ') for word in words.split(","))]
    async with served() as (_, port):
        environment = {**os.environ, default: f"0.0.0.0:{port}"}
        environment.pop("CONSUMERD_HTTP__LISTEN", None)
        run = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)

    assert (0, "ok\n", "") == (run.returncode, run.stdout, run.stderr)


async def test_a_daemon_that_has_gone_is_unhealthy() -> None:
    """Nobody listens."""
    async with served() as address:
        environment = listening(address)

    with pytest.raises(Unhealthy, match=r"^http://127\.0\.0\.1:.*refused"):
        await asyncio.to_thread(check, environment)


async def test_a_daemon_that_hangs_is_unhealthy_and_not_asked_twice() -> None:
    """Its port accepts and says nothing: Docker kills the check after 3 s, and both tries must fit in it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(Unhealthy, match="timed out"):
            await asyncio.to_thread(check, listening(silent.getsockname()[:2]), timeout_s=0.1)
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


async def test_another_server_on_the_port_is_unhealthy() -> None:
    """One that speaks neither protocol, and ends each connection."""

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        with pytest.raises(Unhealthy, match="no answer by http, nor by https"):
            await asyncio.to_thread(check, listening(server.sockets[0].getsockname()[:2]))


async def test_an_answer_that_is_not_ok_is_unhealthy() -> None:
    """The output of the check, which `docker inspect` shows, has it."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nlost")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        with pytest.raises(Unhealthy, match=r"/livez answers 500: lost"):
            await asyncio.to_thread(check, listening(server.sockets[0].getsockname()[:2]))


def test_a_port_that_is_switched_off_is_not_asked() -> None:
    """The operator wants none: a container must not be killed for it."""
    assert "http.listen is off: nothing is asked" == check({"CONSUMERD_HTTP__LISTEN": "off"})


@pytest.mark.parametrize("listen", ["9309", "0.0.0.0:", "a:b"])
def test_an_address_that_is_none_is_told(listen: str) -> None:
    """The daemon refuses it, too."""
    with pytest.raises(Unhealthy, match="expected host:port"):
        check({"CONSUMERD_HTTP__LISTEN": listen, "CONSUMERD_DEFAULT__HTTP__LISTEN": "127.0.0.1:9309"})


def test_the_check_imports_little() -> None:
    """It runs every ten seconds, in a container that may have a tenth of a processor."""
    program = "import sys, consumerd.daemon.health; print(*(n for n in sys.modules if n.startswith('consumerd')))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    expected = {"consumerd", "consumerd.daemon", "consumerd.daemon.health", "consumerd.net", "consumerd.net.address"}
    assert expected == set(run.stdout.split())
