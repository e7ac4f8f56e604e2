# SPDX-License-Identifier: Apache-2.0
"""sd_notify against a socket of the test's own: what a service manager hears, and when."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.daemon.service_manager import ServiceManager, find_service_manager, summarize
from tests.unit.daemon.test_status_surface import STATUS, always

PID = 4711
WATCHDOG_S = 0.2


class Listener:
    """The service manager's end of the socket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(f"\0{name[1:]}" if name.startswith("@") else name)

    async def hear(self) -> list[str]:
        """Return the lines of the next message."""
        return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode().split("\n")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@consumerd-test-{os.getpid()}"
    found = Listener(name)
    yield found
    found.close()


def find(listener: Listener, watchdog_s: float | None = WATCHDOG_S, stop_timeout_s: float = 20.0) -> ServiceManager:
    environment = {"NOTIFY_SOCKET": listener.name}
    if watchdog_s is not None:
        environment |= {"WATCHDOG_USEC": str(int(watchdog_s * 1e6)), "WATCHDOG_PID": str(PID)}
    manager = find_service_manager(environment, pid=PID, stop_timeout_s=stop_timeout_s)
    assert manager is not None
    return manager


@asynccontextmanager
async def reporting(manager: ServiceManager) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    async with alongside(manager.report(always(STATUS), stop), name="service manager"), timeout(10):
        yield stop


async def test_it_hears_of_the_start_of_the_state_and_of_the_watchdog(listener: Listener) -> None:
    """READY first: systemd counts the watchdog's time from there."""
    async with reporting(find(listener)):
        assert await listener.hear() == ["READY=1"]
        first, second = await listener.hear(), await listener.hear()

    assert first == second == ["WATCHDOG=1", "STATUS=ready, 1 partitions"]


async def test_it_hears_twice_within_the_watchdogs_time(listener: Listener) -> None:
    """One message that is late must not end the process."""
    manager = find(listener, 8.0)

    assert manager._interval_s == 4.0
    assert find(listener, 3600.0)._interval_s == 10.0, "the state is not older than that"
    assert find(listener, None)._interval_s == 10.0


async def test_it_hears_of_the_stop_with_the_time_that_it_may_take(listener: Listener) -> None:
    """And the watchdog is fed while what is in flight is flushed, which may take longer than the watchdog's time."""
    async with reporting(find(listener, 3600.0, stop_timeout_s=120.0)) as stop:
        assert await listener.hear() == ["READY=1"]
        await listener.hear()
        stop.set()
        stopping, after = await listener.hear(), await listener.hear()

    assert (stopping[0], stopping[-1]) == ("STOPPING=1", "EXTEND_TIMEOUT_USEC=130000000")
    assert after == ["WATCHDOG=1"]


async def test_a_service_manager_that_is_gone_is_told_of_once_and_harms_nothing(tmp_path: Path) -> None:
    """systemd makes the socket anew when it is restarted."""
    name = str(tmp_path / "notify")
    first = Listener(name)
    manager = find(first)
    first.close()
    Path(name).unlink()
    with structlog.testing.capture_logs() as logs:
        manager._send("WATCHDOG=1")
        manager._send("WATCHDOG=1")
        again = Listener(name)
        manager._send("WATCHDOG=1")
        heard = await again.hear()
        again.close()

    assert heard == ["WATCHDOG=1"]
    (told,) = logs
    assert (told["event"], told["socket"], told["reason"]) == (
        "service_manager_unreachable", name, "No such file or directory",
    )  # fmt: skip


async def test_a_socket_that_is_full_holds_nothing_up(listener: Listener) -> None:
    """Its queue is short, and systemd may be busy; the event loop must not wait for it."""
    manager = find(listener)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3000):
            manager._send("WATCHDOG=1", "STATUS=" + "x" * 1000)

    assert logs == []
    assert (await listener.hear())[0] == "WATCHDOG=1"


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"WATCHDOG_USEC": "1000000"}],
    ids=["nothing", "empty", "vsock", "a watchdog without a socket"],
)
def test_without_a_socket_of_this_machine_there_is_no_service_manager(environment: Mapping[str, str]) -> None:
    """A terminal, a container."""
    assert find_service_manager(environment, pid=PID, stop_timeout_s=20) is None


@pytest.mark.parametrize("microseconds", ["0", "", "soon", "-5"])
def test_a_watchdog_that_is_none_is_passed_over(microseconds: str) -> None:
    """The state is told all the same."""
    environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": microseconds}
    manager = find_service_manager(environment, pid=PID, stop_timeout_s=20)
    assert manager is not None
    assert manager._interval_s == 10.0


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    """A shell around the daemon hands its environment on."""
    environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(PID + 1)}
    manager = find_service_manager(environment, pid=PID, stop_timeout_s=20)
    assert manager is not None
    assert manager._interval_s == 10.0


def test_the_state_is_one_short_line() -> None:
    """`systemctl status` shows it; a line break would begin another assignment of the protocol."""
    waiting = replace(STATUS, ready=False, not_ready=("waiting for\nWATCHDOG=1 ZooKeeper", "more"))
    stopped = replace(STATUS, problems=("orders/1 is stopped: " + "x" * 1000,))

    assert summarize(waiting) == "not ready: waiting for WATCHDOG=1 ZooKeeper"
    assert summarize(stopped).startswith("ready, 1 partitions, problems: 1: orders/1 is stopped: xxx")
    assert len(summarize(stopped)) < 210
