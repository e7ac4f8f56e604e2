# SPDX-License-Identifier: Apache-2.0
"""Fail points: named places where a test can kill, stop or fail the process.

``CONSUMERD_FAIL_POINTS`` is read once, when the process starts: ``<point>=<action>[@<n>]``, separated by commas. The
action happens when the point is reached for the ``n``-th time (1 by default), and only then::

    CONSUMERD_FAIL_POINTS=before_link=kill@3,after_commit=stop

``kill`` is SIGKILL, ``stop`` SIGSTOP (a test continues the process with SIGCONT), ``fail`` raises an OSError, which
only file operations handle. Before its action, a point is reported on standard error. Call sites read ::

    if failpoints.ENABLED:
        failpoints.reach("before_link")

so that a process without the variable only reads a constant. A point ``before_X`` is reached before step X, a point
``after_X`` when step X has succeeded.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

from consumerd.errors import ConfigError

MemberPoint = Literal[
    "before_register",
    "after_register",
    "before_claim",
    "after_claim",
    "before_fsync",
    "after_fsync",
    "before_link",
    "after_link",
    "before_folder_sync",
    "after_folder_sync",
    "before_commit",
    "after_commit",
    "before_release",
    "after_release",
]
"""Names of the fail points that a member of a group reaches."""
TablePoint = Literal[
    "before_table_file",
    "after_table_file",
    "before_table_links",
    "after_table_link",
    "before_table_commit",
    "after_table_commit",
]
"""Names of the fail points that a job which changes a table reaches."""
MirrorPoint = Literal[
    "after_mirror_init",
    "after_mirror_records",
    "after_mirror_positions",
    "before_mirror_commit",
    "after_mirror_commit",
]
"""Names of the fail points that a mirror into another cluster reaches."""
Point = Literal[MemberPoint, TablePoint, MirrorPoint]

VARIABLE: Final = "CONSUMERD_FAIL_POINTS"
MEMBER_POINTS: Final[tuple[MemberPoint, ...]] = get_args(MemberPoint)
MIRROR_POINTS: Final[tuple[MirrorPoint, ...]] = get_args(MirrorPoint)
TABLE_POINTS: Final[tuple[TablePoint, ...]] = get_args(TablePoint)
POINTS: Final[tuple[Point, ...]] = get_args(Point)

_ENTRY = re.compile(r"(?P<point>[a-z_]+)=(?P<action>[a-z]+)(?:@(?P<count>[1-9][0-9]*))?")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    # sent to this thread: sent to the process, it might let this thread take its next step before it stops
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _fail() -> None:
    raise OSError(errno.EIO, "a fail point was reached")


_ACTIONS: Final[Mapping[str, Callable[[], None]]] = {"kill": _kill, "stop": _stop, "fail": _fail}


def _announce(point: str) -> None:
    os.write(2, f'{{"event": "fail_point_reached", "point": "{point}"}}\n'.encode())


class FailPoints:
    """The fail points that ``CONSUMERD_FAIL_POINTS`` sets, and the number of times each was reached.

    Thread-safe: files are synced and linked in threads.

    Args:
        text: Value of the variable: ``<point>=<action>@<n>``, several separated by commas. The action is taken when the
            point is reached for the n-th time; without ``@<n>``, for the first time. Example: ``before_link=kill@3``.
            A text that cannot be parsed raises ConfigError.
        actions: Functions by the name of the action: ``kill`` (SIGKILL), ``stop`` (SIGSTOP), ``fail`` (raises an
            error).
        announce: Reports a point before its action, which may end the process.
    """

    def __init__(
        self,
        text: str,
        *,
        actions: Mapping[str, Callable[[], None]] = _ACTIONS,
        announce: Callable[[str], None] = _announce,
    ) -> None:
        self._announce = announce
        self._turn = threading.Lock()
        self._left: dict[str, tuple[int, Callable[[], None]]] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            match = _ENTRY.fullmatch(entry)
            if match is None or match["point"] not in POINTS or match["action"] not in actions:
                raise ConfigError(
                    f"{VARIABLE}: {entry!r}, expected POINT=ACTION[@N]; points: {', '.join(POINTS)}; "
                    f"actions: {', '.join(actions)}"
                )
            self._left[match["point"]] = (int(match["count"] or 1), actions[match["action"]])

    def reach(self, point: Point) -> None:
        """Count that a fail point was reached; act at the count that is set.

        The action kills, stops or fails the process. Does nothing for a point that the variable does not name.
        """
        with self._turn:
            count, action = self._left.get(point, (0, _kill))
            if count == 0:
                return
            self._left[point] = (count - 1, action)
        if count == 1:
            self._announce(point)
            action()


_FROM_ENVIRONMENT: Final = FailPoints(os.environ.get(VARIABLE, ""))

ENABLED: Final = VARIABLE in os.environ
"""True if ``CONSUMERD_FAIL_POINTS`` is set in this process."""

reach: Final = _FROM_ENVIRONMENT.reach
