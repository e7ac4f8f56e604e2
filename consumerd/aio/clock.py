# SPDX-License-Identifier: Apache-2.0
"""Clocks to be passed in as functions: seconds as floats, never calendar time."""

from __future__ import annotations

import time


def boottime() -> float:
    """Return seconds since boot, including time in suspend.

    Leases use this clock, so that a closed laptop lid or a paused virtual machine cannot extend one. Systems without
    such a clock use the monotonic one.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


monotonic = time.monotonic
