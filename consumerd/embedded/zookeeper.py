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
import signal
import socket
from collections.abc import Mapping, Sequence
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
_SASL_PROVIDER: Final = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
_DIGEST_LOGIN: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_COMMANDS: Final = "conf,srvr,ruok,cons,dump,mntr"
_HOST: Final = "127.0.0.1"
_LOG_TAIL_BYTES: Final = 2000
_PORT_TRIES: Final = 3
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 5.0


class ZooKeeperFailed(ConsumerdError):
    """The server did not start; the message ends with the last lines of its log."""


def get_zookeeper_jars() -> tuple[Path, ...]:
    """Return the jar files of a ZooKeeper server in the installed ``pyspark`` package.

    Raises ConfigError if they are missing.
    """
    spec = importlib.util.find_spec("pyspark")
    folders = (spec and spec.submodule_search_locations) or ()
    for folder in folders:
        jars = tuple(sorted(jar for pattern in _JARS for jar in Path(folder, "jars").glob(pattern)))
        if any(jar.name.startswith("zookeeper-") for jar in jars):
            return jars
    where = f"no zookeeper jar in {', '.join(folders)}" if folders else "pyspark is not installed"
    raise ConfigError(f"the embedded ZooKeeper runs from the jars of pyspark ({where}): {install_command('demo')}")


class EmbeddedZooKeeper:
    """A ZooKeeper server on a free loopback port; ``async with`` starts and stops it.

    The port is chosen at the first start. Port and data are kept over :meth:`stop`, :meth:`kill` and :meth:`restart`.
    Session timeouts from 2 to 120 times ``tick_ms`` are granted.

    Args:
        directory: Keeps the data between runs; created if it is missing.
        jars: The jars of another release than pyspark's.
        users: Passwords of the users that may authenticate by SASL (DIGEST-MD5); None for a server without SASL. Others
            are served, too, as ``world:anyone``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        jars: Sequence[Path] | None = None,
        port: int | None = None,
        tick_ms: int = 500,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._users = users
        self._jars = jars
        self._java: Path | None = None
        self._port = port
        self._tick_ms = tick_ms
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """The TCP port on which the server listens. Raises RuntimeError before the first start."""
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
        """True while the server's process exists, also if it is paused."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the server, and wait at most 30 seconds until it serves.

        Raises ConfigError without jars or Java, ZooKeeperFailed if the server does not start, and RuntimeError if it
        runs already. No process is left behind if the start fails or is cancelled.
        """
        if self.running:
            raise RuntimeError("the server runs already")
        jars = self._jars or get_zookeeper_jars()
        if self._java is None:
            self._java = await asyncio.to_thread(get_java)
        java = self._java
        self._prepare_directory()
        if self._port is not None:
            await self._launch(java, jars, self._port)
            return
        for attempt in range(1, _PORT_TRIES + 1):
            port = _free_port()
            try:
                await self._launch(java, jars, port)
            except ZooKeeperFailed:
                # another process may have taken the port between our check and the server's bind
                if attempt == _PORT_TRIES:
                    raise
            else:
                self._port = port
                return

    async def stop(self) -> None:
        """Stop the server; after 5 seconds, kill it. Idempotent.

        Sessions of clients are kept in the server's data, and continue after a new start.
        """
        process = self._process
        if process is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                async with timeout(_STOP_TIMEOUT_S):
                    await process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Kill the server (SIGKILL), and wait for the end of its process. Idempotent.

        A paused server is killed, too.
        """
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            # unbounded: no process survives SIGKILL
            await process.wait()
            (self._directory / "pid").unlink(missing_ok=True)

    async def restart(self) -> None:
        """Stop and start the server, with the same port and data."""
        await self.stop()
        await self.start()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open without responses, clocks run on."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a server that :meth:`pause` has frozen."""
        os.kill(self.pid, signal.SIGCONT)

    async def ask(self, command: str) -> str:
        """Return the server's response to a four-letter command, within two seconds.

        Commands are conf, srvr, ruok, cons, dump and mntr. Raises OSError, including TimeoutError.
        """
        return await _ask(self.port, command)

    async def _launch(self, java: Path, jars: Sequence[Path], port: int) -> None:
        directory = self._directory
        configuration = directory / "zoo.cfg"
        configuration.write_text(self._configuration(port))
        try:
            with (directory / "zookeeper.log").open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *server_command(java, jars, configuration, logins=self._write_logins()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=directory,
                    # Ctrl-C on a terminal must not reach the server: we stop it ourselves
                    start_new_session=True,
                )
            (directory / "pid").write_text(str(self._process.pid))
            async with timeout(_START_TIMEOUT_S):
                await _wait_serving(self._process, directory, port)
        except TimeoutError as error:
            await self.kill()
            raise ZooKeeperFailed(_failure(directory, port, f"not up within {_START_TIMEOUT_S} s")) from error
        except BaseException:
            await self.kill()
            raise

    def _prepare_directory(self) -> None:
        (self._directory / "data").mkdir(parents=True, exist_ok=True)
        self._directory = self._directory.resolve()
        _kill_leftover(self._directory)

    def _write_logins(self) -> Path | None:
        """Write the server's JAAS file; None without users."""
        if self._users is None:
            return None
        path = self._directory / "jaas.conf"
        path.touch(mode=0o600)
        users = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        path.write_text(f"Server {{\n {_DIGEST_LOGIN} required {users};\n}};\n")
        return path

    def _configuration(self, port: int) -> str:
        settings = {
            "dataDir": self._directory / "data",
            "clientPort": port,
            "clientPortAddress": _HOST,
            "tickTime": self._tick_ms,
            "minSessionTimeout": 2 * self._tick_ms,
            "maxSessionTimeout": 120 * self._tick_ms,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": _COMMANDS,
        }
        if self._users is not None:
            settings["authProvider.1"] = _SASL_PROVIDER
        return "".join(f"{key}={value}\n" for key, value in settings.items())


async def _wait_serving(process: asyncio.subprocess.Process, directory: Path, port: int) -> None:
    """Wait until this server responds, not another one on its port.

    The caller sets a timeout. Raises ZooKeeperFailed if the process ends.
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


def server_command(java: Path, jars: Sequence[Path], configuration: Path, *, logins: Path | None = None) -> list[str]:
    """Return the command that runs a ZooKeeper server.

    The kernel kills the server when the thread that starts it ends.

    Args:
        logins: JAAS file of a server with SASL; None without.
    """
    classpath = os.pathsep.join(map(str, jars))
    sasl = () if logins is None else (f"-Djava.security.auth.login.config={logins}",)
    return tied_command(str(java), *_JVM, *_SERVER, *sasl, "-cp", classpath, _MAIN_CLASS, str(configuration))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _kill_leftover(directory: Path) -> None:
    """Kill a server on this folder that an earlier, killed broker process left running.

    Its pid may have been reused, so only a process whose command line names our file is killed.
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
