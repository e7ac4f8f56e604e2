# SPDX-License-Identifier: Apache-2.0
"""Fencings of one partition's writer, though the partition is claimed here. Pure.

A daemon that had stalled, and begins once more, fences the partition's owner once, and then finds that its claim is
gone. If the owner is fenced again and again, another mirror of the same source has the same group id, and is no member
of the same group. Example: one registers in ZooKeeper. The other reads the source by its brokers alone
(``cluster.bootstrap`` with ``cluster.identities``), so it does not see the members in ZooKeeper.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_MOST: Final = 3
"""Number of fencings, within :data:`_WINDOW_S`, that one stalled daemon does not explain."""
_WINDOW_S: Final = 600.0


class Fencings:
    """Times at which a writer was fenced.

    Args:
        group: Group that mirrors, for advice.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._times: deque[float] = deque(maxlen=_MOST)

    def note(self, now: float) -> str:
        """Note a fencing; return advice if there were several.

        Args:
            now: Present time in seconds, by a monotonic clock.
        """
        self._times.append(now)
        if len(self._times) < _MOST or now - self._times[0] > _WINDOW_S:
            return ""
        return (
            f". Fenced {_MOST} times within {_WINDOW_S / 60:.0f} minutes, though the partition is claimed here: "
            f"another mirror of this source runs with group.id {self._group}, and is no member of the same group (one "
            "registers in ZooKeeper, the other at brokers). Stop one of both"
        )
