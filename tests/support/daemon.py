# SPDX-License-Identifier: Apache-2.0
"""``consumerd run`` as a process of its own, as users run it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.kafka import nice_command
from tests.support.waiting import wait_until


class DaemonFailed(Exception):
    """The process ended, or did not come to what was waited for; carries the end of its log."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One record as the stdout sink printed it, and when it was read here (monotonic seconds)."""

    at: float
    topic: str
    partition: int
    offset: int
    line: bytes


@dataclass
class Daemon:
    """One process. Its stdout is read by a thread, so that a full pipe never stops it."""

    directory: Path
    name: str
    settings: Mapping[str, Any]
    arguments: tuple[str, ...] = ()
    keep_output: bool = True
    niceness: int = 0
    python_path: tuple[str, ...] = ()
    fail_points: str = ""
    """What ``consumerd.failpoints`` is told: where the process stops, dies or fails by itself."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of the test's own environment, of which it gets no variable of ours."""
    command: str = "run"
    """The command: ``run`` or ``mirror``."""
    process: subprocess.Popen[bytes] = field(init=False)
    deliveries: list[Delivery] = field(default_factory=list)
    _stops: int = field(init=False, default=0)
    _url: str = field(init=False, default="")
    """Once it is known: to search a long log for it again takes the time of those that share this process."""

    def __post_init__(self) -> None:
        self.log_path = self.directory / f"{self.name}.log"
        config = self.directory / f"{self.name}.yaml"
        merged = {"http": {"listen": "127.0.0.1:0"}, "log": {"format": "json", "level": "debug"}, **self.settings}
        config.write_text(yaml.safe_dump(merged))
        command = [
            *nice_command(self.niceness),
            sys.executable,
            "-m",
            "consumerd",
            self.command,
            "--config",
            str(config),
            *self.arguments,
        ]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CONSUMERD_")}
        if self.python_path:
            environment["PYTHONPATH"] = os.pathsep.join(self.python_path)
        if self.fail_points:
            environment["CONSUMERD_FAIL_POINTS"] = self.fail_points
        environment |= self.environment
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self.directory,
            )
        self._reader = threading.Thread(target=self._read, name=f"stdout of {self.name}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self._reader.join(10)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                now = time.monotonic()
                if self.keep_output and line.endswith(b"\n"):
                    record = json.loads(line)
                    self.deliveries.append(
                        Delivery(now, record["topic"], int(record["partition"]), record["offset"], line)
                    )

    # -- what it says

    def log(self) -> str:
        """Return its log so far."""
        return self.log_path.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log entries of one event."""
        entries = []
        for line in self.log().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("event") == name:
                    entries.append(entry)
        return entries

    @property
    def url(self) -> str:
        """Where its HTTP surface listens; waits until it does."""
        if not self._url:
            self.wait(lambda: bool(self.events("http_started")), "the HTTP surface")
            self._url = str(self.events("http_started")[0]["url"])
        return self._url

    def get(self, path: str) -> tuple[int, str]:
        """Return status code and body of a GET."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def status(self) -> dict[str, Any]:
        """Return /api/v1/status."""
        status: dict[str, Any] = json.loads(self.get("/api/v1/status")[1])
        return status

    def owned(self) -> set[tuple[str, int]]:
        """Return the partitions that it says it owns."""
        return {(one["topic"], int(one["partition"])) for one in self.status()["partitions"]}

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        """Wait for a condition while the process lives. Raises DaemonFailed with the end of the log."""

        def holds() -> bool:
            if condition():
                return True
            if self.process.poll() is not None:
                raise DaemonFailed(f"{self.name} ended with {self.process.returncode}:\n{self.log()[-4000:]}")
            return False

        try:
            wait_until(holds, what, timeout_s)
        except TimeoutError as error:
            raise DaemonFailed(f"{self.name}: {error}\n{self.log()[-4000:]}") from None

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until /readyz says so."""
        self.wait(lambda: self.get("/readyz")[0] == 200, "ready", timeout_s)

    # -- what is done to it

    def terminate(self, timeout_s: float = 30.0) -> int:
        """SIGTERM; wait for the end and return the exit code."""
        self.process.terminate()
        return self.wait_end(timeout_s)

    def wait_end(self, timeout_s: float = 30.0) -> int:
        """Wait for the end and return the exit code."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DaemonFailed(f"{self.name} did not end within {timeout_s} s:\n{self.log()[-4000:]}") from None
        self._reader.join(10)
        return code

    def wait_killed(self, timeout_s: float = 30.0) -> None:
        """Wait until a fail point has killed the process. Raises DaemonFailed for any other end, and for none."""
        code = self.wait_end(timeout_s)
        if code != -signal.SIGKILL:
            raise DaemonFailed(f"{self.name} ended with {code}, not by its fail point:\n{self.log()[-4000:]}")

    def wait_stopped(self, timeout_s: float = 30.0) -> str:
        """Wait until a fail point has stopped the process, and return the point; :meth:`resume` goes on."""

        def stopped() -> bool:
            # tells of each stop once, and leaves the end of the process to others
            with contextlib.suppress(ChildProcessError):
                return os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG) is not None
            return False

        self.wait(stopped, "stopped at a fail point", timeout_s)
        # in their order: another thread may have come to the next point, and stops there once this one goes on
        point = self.events("fail_point_reached")[self._stops]["point"]
        self._stops += 1
        return str(point)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)

    def stop(self) -> None:
        """SIGSTOP: a process that stalls, as in a paused virtual machine."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)


def settings_for(
    zookeeper: str | None,
    group: str,
    /,
    *,
    topics: tuple[str, ...] = (),
    pattern: str | None = None,
    sink: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> dict[str, Any]:
    """Return settings for one subscription and one sink (stdout by default); ``sections`` are merged over them.

    Without ZooKeeper, ``sections`` say where the cluster is.
    """
    subscription: dict[str, Any] = {"sink": "out", **({"topics": list(topics)} if topics else {"pattern": pattern})}
    settings: dict[str, Any] = {
        "cluster": {"zookeeper": zookeeper},
        "group": {"id": group},
        "subscriptions": [subscription],
        "sinks": {"out": dict(sink or {"type": "stdout"})},
        "offsets": {"commit_interval_ms": 500},
    }
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section}
    return settings
