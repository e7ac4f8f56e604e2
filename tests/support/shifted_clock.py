# SPDX-License-Identifier: Apache-2.0
"""A wrong clock for one process: its calendar time is shifted, its monotonic time is not."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.tools import require_tool

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *found) {
    int code = (int)syscall(SYS_clock_gettime, clock, found);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += atol(getenv("SHIFTED_CLOCK_S"));
    return code;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}
"""
"""What the C library says the time is, as a library that is loaded before it."""


def shift_clock(directory: Path, ahead_s: int) -> Mapping[str, str]:
    """Return what a program's environment must have, so that its clock is ``ahead_s`` seconds ahead; files are in the folder.

    Skips the test without a C compiler.
    """
    library = directory / "shifted_clock.so"
    if not library.exists():
        compiler = require_tool("cc", "gcc libc6-dev")
        command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=_SOURCE.encode(), check=True, capture_output=True)
    return {"LD_PRELOAD": str(library), "SHIFTED_CLOCK_S": str(ahead_s)}
