# SPDX-License-Identifier: Apache-2.0
"""Fails the run for tasks, futures and callbacks whose failure nobody heard of: hooks of pytest, for ``conftest``.

asyncio logs such a failure when it is collected. That is told by the test that is running then; what is left after the last
test fails the run as a whole. Under xdist each worker sends what it has left to the controller, whose exit code counts.
"""

from __future__ import annotations

import gc
import logging
from typing import Any, Final

import pytest

_WORKER_KEY: Final = "consumerd_unseen"


class Unseen(logging.Handler):
    """Keeps what asyncio logs of failures that nobody awaited."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line with its exception."""
        self.found.append(f"{record.getMessage()} ({record.exc_info[1]!r})" if record.exc_info else record.getMessage())

    def take(self) -> list[str]:
        """Return what was logged since the last call."""
        found, self.found = self.found, []
        return found


UNSEEN: Final = Unseen()
logging.getLogger("asyncio").addHandler(UNSEEN)

_of_workers: Final[list[str]] = []


def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a worker has left, on the controller. xdist ignores its workers' exit codes."""
    _of_workers.extend(getattr(node, "workeroutput", {}).get(_WORKER_KEY, ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Collect garbage once more, and fail the run for what that shows."""
    gc.collect()
    left = UNSEEN.take()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_WORKER_KEY] = left
        return
    if left := [*left, *_of_workers]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.get_terminal_writer().line("\nnobody heard of this in the last tests: " + "; ".join(left))
