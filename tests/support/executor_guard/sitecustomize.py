# SPDX-License-Identifier: Apache-2.0
"""Refuses executors' Python whatever is below ``$CONSUMERD_DRIVERS_OWN``: on a real cluster the driver's disk is elsewhere.

Python runs this when it starts and finds it on its path. Executors have this folder there by ``spark.executorEnv.PYTHONPATH``; on the
driver, whose workers it may concern as well, it does nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_OWN = os.environ.get("CONSUMERD_DRIVERS_OWN", "")
_TOUCHING = frozenset(
    ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.link", "os.remove", "os.truncate")
)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _TOUCHING:
        return
    path = arguments[0] if arguments else None
    if isinstance(path, (str, bytes, os.PathLike)):
        absolute = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - a Path would ask the hook again
        if absolute == _OWN or absolute.startswith(f"{_OWN}{os.sep}"):
            raise PermissionError(f"{event} of {absolute}: an executor touches the driver's disk")


def _is_executor() -> bool:
    return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()


if _OWN and _is_executor():
    sys.addaudithook(_refuse)
