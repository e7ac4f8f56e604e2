# SPDX-License-Identifier: Apache-2.0
"""Notifications to systemd by its sd_notify protocol: started, status, stopping, and the watchdog.

A message is one datagram of ``NAME=value`` lines to the Unix socket that ``NOTIFY_SOCKET`` names; ``@`` at its beginning stands
for the zero byte of an abstract socket. Source: systemd's manual page sd_notify(3). With ``Type=notify`` the unit is
"active" from ``READY=1`` on. Without ``NOTIFY_SOCKET`` (a terminal, a container) nothing is sent.

Started, for systemd, means that the settings are accepted and the HTTP port listens. It does not wait for ZooKeeper: an
outage must neither fail the start of a host's services nor restart a process that waits. ``STATUS=`` says what it waits for.

Watchdog: ``WATCHDOG=1`` is sent by a task of the event loop, at least twice in ``WATCHDOG_USEC``. A loop that stands still
sends nothing, and systemd ends and restarts the process.

Ownership: ``Daemon.run`` runs :meth:`ServiceManager.report` beside the daemon until its last part has ended, so that the
watchdog is fed while a stop drains.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from consumerd.aio.timeouts import timeout
from consumerd.daemon.status import DaemonStatus

_STATUS_S: Final = 10.0
"""Longest interval between two messages, in seconds."""
_SHOWN: Final = 200
"""Characters of a reason in ``STATUS=``, which `systemctl status` shows in one line."""
_STOP_MARGIN_S: Final = 10.0
"""Time that a stop may take beyond ``shutdown.timeout_ms``, as told to systemd: ending threads, and the interpreter."""

_log = structlog.get_logger(__name__)


class ServiceManager:
    """The service manager that started this process.

    Args:
        address: The socket's address, as ``socket.sendto`` takes it.
        watchdog_s: Longest silence that the service manager accepts, in seconds; None: it has no watchdog.
        stop_timeout_s: Time that an orderly end may take, in seconds.
    """

    def __init__(self, address: str, *, watchdog_s: float | None, stop_timeout_s: float) -> None:
        self._address = address
        self._interval_s = _STATUS_S if watchdog_s is None else min(_STATUS_S, watchdog_s / 2)
        self._stop_timeout_s = stop_timeout_s
        self._silent = False

    async def report(self, read_status: Callable[[], Awaitable[DaemonStatus]], stop: asyncio.Event) -> None:
        """Tell of the start, then of the status and of ``stop``, until cancelled."""
        self._send("READY=1")
        while not stop.is_set():
            self._send("WATCHDOG=1", f"STATUS={summarize(await read_status())}")
            with suppress(TimeoutError):
                async with timeout(self._interval_s):
                    await stop.wait()
        # A stop may take longer than the unit's TimeoutStopSec=, where shutdown.timeout_ms was raised.
        extension_us = int((self._stop_timeout_s + _STOP_MARGIN_S) * 1e6)
        self._send(
            "STOPPING=1", "STATUS=stopping: flushing, committing, leaving", f"EXTEND_TIMEOUT_USEC={extension_us}"
        )
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._interval_s)

    def _send(self, *lines: str) -> None:
        """Send one message, or drop it where the socket is full: the next one says the same."""
        message = "\n".join(lines).encode(errors="backslashreplace")
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            ) as sender:
                sender.sendto(message, self._address)
        except BlockingIOError:
            return
        except OSError as error:
            if not self._silent:
                _log.warning("service_manager_unreachable", socket=self._address, reason=error.strerror or str(error))
            self._silent = True
        else:
            self._silent = False


def find_service_manager(environment: Mapping[str, str], *, pid: int, stop_timeout_s: float) -> ServiceManager | None:
    """Return the service manager that the environment names, or None. ``pid`` is this process's."""
    name = environment.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):  # systemd knows vsock addresses, too: for virtual machines, not for services
        return None
    address = f"\0{name[1:]}" if name.startswith("@") else name
    return ServiceManager(address, watchdog_s=_read_watchdog(environment, pid), stop_timeout_s=stop_timeout_s)


def summarize(status: DaemonStatus) -> str:
    """Return the state of the daemon in one line."""
    if not status.ready:
        text = f"not ready: {status.not_ready[0]}"
    elif status.problems:
        text = f"ready, {status.owned} partitions, problems: {len(status.problems)}: {status.problems[0]}"
    else:
        text = f"ready, {status.owned} partitions"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _read_watchdog(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the watchdog's limit in seconds, or None where there is none, or where it is another process's."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or int(microseconds) == 0:
        return None
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(microseconds) / 1e6
