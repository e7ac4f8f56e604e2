# SPDX-License-Identifier: Apache-2.0
"""Notifications to systemd by its sd_notify protocol: start, status, stop and watchdog.

A message is one datagram of ``NAME=value`` lines to the Unix socket that ``NOTIFY_SOCKET`` names. A leading ``@`` means
an abstract socket. Source: systemd's manual page sd_notify(3). Without ``NOTIFY_SOCKET`` (a terminal, a container)
nothing is sent.

Start
    With ``Type=notify`` the unit is "active" after ``READY=1``. That is sent when the settings are accepted and the
    HTTP port listens. It does not wait for ZooKeeper, whose outage must neither fail the start of a host's services nor
    restart a waiting process. ``STATUS=`` has the reason of the wait.

Watchdog
    A task of the event loop sends ``WATCHDOG=1`` at least twice in ``WATCHDOG_USEC``. If the loop hangs, systemd
    restarts the process. ``Daemon.run`` keeps :meth:`ServiceManager.report` running until its last part has ended, so a
    long drain is not taken for a hang.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from consumerd.aio.timeouts import wait_set
from consumerd.daemon.status import DaemonStatus

_STATUS_S: Final = 10.0
"""Longest interval between two messages, in seconds."""
_SHOWN: Final = 200
"""Limit of ``STATUS=`` in characters; `systemctl status` shows it in one line."""
_STOP_MARGIN_S: Final = 10.0
"""Time, in seconds, that systemd allows a stop beyond ``shutdown.timeout_ms``: for threads and the interpreter."""

_log = structlog.get_logger(__name__)


class ServiceManager:
    """The service manager that started this process.

    Args:
        address: the socket's address, as ``socket.sendto`` takes it.
        watchdog_s: longest time between messages that the service manager accepts, in seconds; None for no watchdog.
        stop_timeout_s: time that an orderly stop may take, in seconds.
    """

    def __init__(self, address: str, *, watchdog_s: float | None, stop_timeout_s: float) -> None:
        self._address = address
        self._interval_s = _STATUS_S if watchdog_s is None else min(_STATUS_S, watchdog_s / 2)
        self._stop_timeout_s = stop_timeout_s
        self._silent = False

    async def report(self, read_status: Callable[[], Awaitable[DaemonStatus]], stop: asyncio.Event) -> None:
        """Notify systemd of the daemon's start, status and stop, until cancelled.

        Args:
            read_status: reads the daemon's current status.
            stop: set when the daemon begins to stop; that is reported then.
        """
        self._send("READY=1")
        while not stop.is_set():
            self._send("WATCHDOG=1", f"STATUS={summarize(await read_status())}")
            await wait_set(stop, self._interval_s)
        # a raised shutdown.timeout_ms may be longer than the unit's TimeoutStopSec=
        extension_us = int((self._stop_timeout_s + _STOP_MARGIN_S) * 1e6)
        self._send(
            "STOPPING=1", "STATUS=stopping: flushing, committing, leaving", f"EXTEND_TIMEOUT_USEC={extension_us}"
        )
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._interval_s)

    def _send(self, *lines: str) -> None:
        """Send one message; drop it if the socket is full, because the next repeats it."""
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
    """Return the service manager that started this process; None if there is none.

    Args:
        environment: the process's environment variables, such as ``NOTIFY_SOCKET``.
        pid: id of this process.
        stop_timeout_s: time that an orderly stop may take, in seconds.
    """
    name = environment.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):  # vsock addresses, which systemd knows too, are for virtual machines
        return None
    address = f"\0{name[1:]}" if name.startswith("@") else name
    return ServiceManager(address, watchdog_s=_read_watchdog(environment, pid), stop_timeout_s=stop_timeout_s)


def summarize(status: DaemonStatus) -> str:
    """Return the daemon's state in one line, for ``STATUS=`` of systemd.

    Example: ``ready, 12 partitions``. Long lines are cut.
    """
    if not status.ready:
        text = f"not ready: {status.not_ready[0]}"
    elif status.problems:
        text = f"ready, {status.owned} partitions, problems: {len(status.problems)}: {status.problems[0]}"
    else:
        text = f"ready, {status.owned} partitions"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _read_watchdog(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the watchdog's limit in seconds, None without one or if it is another process's."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or int(microseconds) == 0:
        return None
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(microseconds) / 1e6
