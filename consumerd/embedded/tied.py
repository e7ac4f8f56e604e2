# SPDX-License-Identifier: Apache-2.0
"""Commands of child processes that the kernel kills when this process ends."""

from __future__ import annotations

import os
import sys
from typing import Final

# PR_SET_PDEATHSIG, SIGKILL; a parent that ended before that call is detected by its process id
_LAUNCH: Final = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tied_command(*command: str) -> list[str]:
    """Return a command that the kernel kills when the thread that starts it ends.

    The program is given by its path.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
