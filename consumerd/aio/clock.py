# SPDX-License-Identifier: Apache-2.0
"""Clocks, as functions to be passed in. Seconds, as floats; never the calendar."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since boot, counting time in suspend: what leases run on, so that a laptop lid or a paused virtual
    machine cannot stretch one. Where the system has no such clock, the monotonic one.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


monotonic = time.monotonic
