# SPDX-License-Identifier: Apache-2.0
"""Child processes of the demo: consumerd commands, each with a log file.

They run in sessions of their own, so that Ctrl-C on the terminal reaches only the demo, and the kernel kills them when
the demo ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from consumerd.aio.timeouts import timeout
from consumerd.embedded.tied import tied_command
from consumerd.errors import ConsumerdError

_LOG_TAIL_BYTES: Final = 1500


class ChildFailed(ConsumerdError):
    """Raised if a child process ended unexpectedly or was too slow.

    The message has the end of its log.
    """


class Child:
    """``python -m consumerd ...`` (or another module) as a child process.

    ``async with`` starts it, and kills it at the end if it still runs. Its stderr goes to ``<folder>/<name>.log``.
    """

    def __init__(self, name: str, *arguments: str, folder: Path, module: str = "consumerd") -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._arguments = ("-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None
        self._expected = False

    async def __aenter__(self) -> Self:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CONSUMERD_")}
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied_command(sys.executable, *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self.log.parent,
                env=environment,
                start_new_session=True,
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.kill()

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The running child process. Raises RuntimeError before it is started."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    @property
    def running(self) -> bool:
        """True while the child process exists."""
        return self._process is not None and self._process.returncode is None

    def check(self) -> None:
        """Raise ChildFailed if the child process has ended without :meth:`stop` or :meth:`kill`."""
        if not self._expected and self.process.returncode is not None:
            raise ChildFailed(f"{self.name} ended with {_describe(self.process.returncode)}{self._tail()}")

    def fail(self, what: str) -> ChildFailed:
        """Return a ChildFailed error that says ``what`` the child process did not do.

        The error's message also has the end of the child's log.
        """
        return ChildFailed(f"{self.name} {what}{self._tail()}")

    async def read_line(self, timeout_s: float) -> str:
        """Return the next line of the child's stdout.

        Raises ChildFailed at its end or on timeout.
        """
        line = await self.find_line(timeout_s)
        self.check()
        return line or ""

    async def find_line(self, timeout_s: float) -> str | None:
        """Return the next line of the child's stdout, None at its end.

        Raises ChildFailed on timeout.
        """
        assert self.process.stdout is not None
        try:
            async with timeout(timeout_s):
                line = await self.process.stdout.readline()
                if not line:
                    await self.process.wait()
        except TimeoutError:
            raise self.fail(f"said nothing for {timeout_s:.0f} s") from None
        return line.decode().rstrip("\n") if line else None

    async def stop(self, timeout_s: float) -> None:
        """Send SIGTERM to the child process and wait for its end.

        Raises ChildFailed on timeout, and for an exit code other than 0.
        """
        self._expected = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with timeout(timeout_s):
                code = await self.process.wait()
        except TimeoutError:
            await self.kill()
            raise self.fail(f"did not end within {timeout_s:.0f} s of SIGTERM") from None
        if code != 0:
            raise self.fail(f"ended with {_describe(code)} on SIGTERM")

    async def kill(self) -> None:
        """Send SIGKILL to the child process and wait for its end. Idempotent."""
        self._expected = True
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # it leads the only process group of its session, which includes its own children
                os.killpg(self._process.pid, signal.SIGKILL)
        # unbounded: no process survives SIGKILL
        await self._process.wait()

    def _tail(self) -> str:
        text = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return f"; its log ({self.log}) ends:\n{text}" if text else ""


def _describe(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
