# SPDX-License-Identifier: Apache-2.0
"""Commands for children that do not outlive us, however we end."""

from __future__ import annotations

import os
import sys
from typing import Final

# PR_SET_PDEATHSIG, SIGKILL; a parent that was gone before that is found out by its number
_LAUNCH: Final = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tied_command(*command: str) -> list[str]:
    """Return a command (its program by path) that the kernel kills when the thread that starts it is gone."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
