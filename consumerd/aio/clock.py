# SPDX-License-Identifier: Apache-2.0
"""Clocks that other modules get passed as functions: seconds as floats, never calendar time."""

from __future__ import annotations

import time


def boottime() -> float:
    """Return seconds since boot, including time in suspend.

    Leases use this clock: the time in which a laptop lid is closed, or a virtual machine suspended, counts against a
    lease. Systems without such a clock use the monotonic one.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


monotonic = time.monotonic
