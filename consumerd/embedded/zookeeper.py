# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper server as a child process: for the demo, tests and development.

Not for production. The server is taken from the jars in the ``pyspark`` package, so PyPI is the only source needed;
pyspark is not imported. It listens on the loopback address only, keeps its data in its own folder, is always stopped by
its own pid, and does not outlive the process that started it, even if that is killed. Writes are not synced to disk:
they survive a kill of the server, not a crash of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from consumerd.aio.timeouts import timeout
from consumerd.embedded.tied import tied_command
from consumerd.errors import ConfigError, ConsumerdError
from consumerd.installation import install_command
from consumerd.java import get_java

_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS: Final = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "log4j-*.jar",
    "metrics-core-*.jar",
    "netty-*.jar",
    "commons-io-*.jar",
    "commons-cli-*.jar",
    "snappy-java-*.jar",
    "audience-annotations-*.jar",
)
_JVM: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true")
# old releases run with reload4j today, which has no JMX beans
_SERVER: Final = (
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=4096",
    "-Dzookeeper.jmx.log4j.disable=true",
)
_COMMANDS: Final = "conf,srvr,ruok,cons,dump,mntr"
_HOST: Final = "127.0.0.1"
_LOG_TAIL_BYTES: Final = 2000
_PORT_TRIES: Final = 3


class ZooKeeperFailed(ConsumerdError):
    """The server did not start; the message ends with the last lines of its log."""


def get_zookeeper_jars() -> tuple[Path, ...]:
    """Return the jars of a server from the installed ``pyspark`` package. Raises ConfigError."""
    spec = importlib.util.find_spec("pyspark")
    folders = (spec and spec.submodule_search_locations) or ()
    for folder in folders:
        jars = tuple(sorted(jar for pattern in _JARS for jar in Path(folder, "jars").glob(pattern)))
        if any(jar.name.startswith("zookeeper-") for jar in jars):
            return jars
    where = f"no zookeeper jar in {', '.join(folders)}" if folders else "pyspark is not installed"
    raise ConfigError(f"the embedded ZooKeeper runs from the jars of pyspark ({where}): {install_command('demo')}")


class EmbeddedZooKeeper:
    """A server on a free loopback port; ``async with`` starts and stops it.

    The port is chosen at the first start. Port and data are kept over :meth:`stop`, :meth:`kill` and :meth:`restart`.
    Session timeouts from 2 to 120 ticks are granted.

    Args:
        directory: Keeps the data between runs. Without it, a temporary folder is created, and removed on leaving.
        jars: The jars of another release than pyspark's.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        java: Path | None = None,
        jars: Sequence[Path] | None = None,
        port: int | None = None,
        tick_ms: int = 500,
        start_timeout_s: float = 30.0,
        stop_timeout_s: float = 5.0,
    ) -> None:
        self._given = directory
        self._directory: Path | None = directory
        self._java = java
        self._jars = jars
        self._port = port
        self._tick_ms = tick_ms
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._remove_temporary()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            self._remove_temporary()

    @property
    def port(self) -> int:
        """The port it listens on. Raises RuntimeError before the first start."""
        if self._port is None:
            raise RuntimeError("the server has no port before its first start")
        return self._port

    @property
    def connect_string(self) -> str:
        """The connect string for clients: ``127.0.0.1:<port>``."""
        return f"{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id. Raises RuntimeError while it does not run."""
        if not self.running:
            raise RuntimeError("the server does not run")
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while the process exists."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the server and wait until it serves, at most ``start_timeout_s`` seconds.

        Raises ConfigError (no jars, no Java), ZooKeeperFailed; RuntimeError if it runs already. Leaves no process
        behind if it fails or is cancelled.
        """
        if self.running:
            raise RuntimeError("the server runs already")
        jars = self._jars or get_zookeeper_jars()
        if self._java is None:
            self._java = await asyncio.to_thread(get_java)
        directory = self._prepare_directory()
        if self._port is not None:
            await self._launch(jars, directory, self._port)
            return
        for attempt in range(1, _PORT_TRIES + 1):
            port = _free_port()
            try:
                await self._launch(jars, directory, port)
            except ZooKeeperFailed:
                # another process may have taken the port between our check and the server's bind
                if attempt == _PORT_TRIES:
                    raise
            else:
                self._port = port
                return

    async def stop(self) -> None:
        """Stop the server, by force after ``stop_timeout_s`` seconds. Idempotent.

        Its sessions live on in its data.
        """
        process = self._process
        if process is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                async with timeout(self._stop_timeout_s):
                    await process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Kill the server, also if paused; returns when the process has ended. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            # unbounded: no process survives SIGKILL
            await process.wait()
            assert self._directory is not None
            (self._directory / "pid").unlink(missing_ok=True)

    async def restart(self) -> None:
        """Stop and start the server, with the same port and data."""
        await self.stop()
        await self.start()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open without responses, clocks run on."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        os.kill(self.pid, signal.SIGCONT)

    async def ask(self, command: str) -> str:
        """Return the response to a four-letter command, within two seconds.

        Commands are conf, srvr, ruok, cons, dump and mntr. Raises OSError, including TimeoutError.
        """
        return await _ask(self.port, command)

    async def _launch(self, jars: Sequence[Path], directory: Path, port: int) -> None:
        assert self._java is not None
        configuration = directory / "zoo.cfg"
        configuration.write_text(self._configuration(directory, port))
        try:
            with (directory / "zookeeper.log").open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *server_command(self._java, jars, configuration),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=directory,
                    # Ctrl-C on a terminal must not reach the server: we stop it ourselves
                    start_new_session=True,
                )
            (directory / "pid").write_text(str(self._process.pid))
            async with timeout(self._start_timeout_s):
                await _wait_serving(self._process, directory, port)
        except TimeoutError as error:
            await self.kill()
            raise ZooKeeperFailed(_failure(directory, port, f"not up within {self._start_timeout_s} s")) from error
        except BaseException:
            await self.kill()
            raise

    def _prepare_directory(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="consumerd-zookeeper-"))
        (self._directory / "data").mkdir(parents=True, exist_ok=True)
        self._directory = self._directory.resolve()
        _kill_leftover(self._directory)
        return self._directory

    def _remove_temporary(self) -> None:
        if self._given is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _configuration(self, directory: Path, port: int) -> str:
        settings = {
            "dataDir": directory / "data",
            "clientPort": port,
            "clientPortAddress": _HOST,
            "tickTime": self._tick_ms,
            "minSessionTimeout": 2 * self._tick_ms,
            "maxSessionTimeout": 120 * self._tick_ms,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": _COMMANDS,
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())


async def _wait_serving(process: asyncio.subprocess.Process, directory: Path, port: int) -> None:
    """Wait until this very server responds. Bounded by the caller.

    Raises ZooKeeperFailed if the process ends.
    """
    ours = f"dataDir={directory / 'data' / 'version-2'}"
    while True:
        if process.returncode is not None:
            raise ZooKeeperFailed(_failure(directory, port, f"the server ended with code {process.returncode}"))
        with contextlib.suppress(OSError):
            # another server may own the port, which ours has not noticed yet
            if ours in (await _ask(port, "conf")).splitlines() and "Mode: standalone" in await _ask(port, "srvr"):
                return
        await asyncio.sleep(0.05)


def _failure(directory: Path, port: int, what: str) -> str:
    log = (directory / "zookeeper.log").read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    return f"embedded ZooKeeper on {_HOST}:{port}: {what}; its log ends:\n{log}"


async def _ask(port: int, command: str) -> str:
    async with timeout(2):
        reader, writer = await asyncio.open_connection(_HOST, port)
        try:
            writer.write(command.encode())
            return (await reader.read()).decode(errors="replace")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def server_command(java: Path, jars: Sequence[Path], configuration: Path) -> list[str]:
    """Return the server's command; the kernel kills it when the starting thread ends."""
    classpath = os.pathsep.join(map(str, jars))
    return tied_command(str(java), *_JVM, *_SERVER, "-cp", classpath, _MAIN_CLASS, str(configuration))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _kill_leftover(directory: Path) -> None:
    """Kill a server left running on this folder by a killed process of ours.

    Its pid may have been reused: only a process whose command line names our file is ours.
    """
    note = directory / "pid"
    try:
        pid = int(note.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return
    if os.fsencode(directory / "zoo.cfg") in command.split(b"\0"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    note.unlink(missing_ok=True)
