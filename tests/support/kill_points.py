# SPDX-License-Identifier: Apache-2.0
"""Members that kill themselves at a named point in their own code (``consumerd.failpoints``), while records flow."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon

REPEATED_POINTS = 6
"""Files are synced and linked all the time: which of the first so many is the last one, is drawn."""


def die_at(
    point: str, folder: Path, name: str, settings: dict[str, Any], dice: random.Random, *, by_join: bool
) -> None:
    """Start a member that kills itself at a point, and wait until it has. It releases since it leaves or, ``by_join``, in
    a rebalance, since another one comes to take some of its partitions.
    """
    often = not point.endswith(("register", "claim", "release"))
    count = dice.randint(1, REPEATED_POINTS) if often else 1
    with Daemon(folder, name, settings, fail_points=f"{point}=kill@{count}") as victim:
        if point.endswith("release"):
            victim.wait(lambda: bool(victim.events("delivery_started")), "owns something", 60)
            if by_join:
                with Daemon(folder, f"{name}-heir", settings) as heir:
                    victim.wait_killed(60)
                    assert heir.terminate() == 0, heir.log()[-3000:]
                return
            victim.process.send_signal(signal.SIGTERM)
        victim.wait_killed(60)
