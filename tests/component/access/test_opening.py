# SPDX-License-Identifier: Apache-2.0
"""How a process reaches its cluster."""

from __future__ import annotations

import socket
import time

import pytest

from consumerd.access.opening import make_zookeeper
from consumerd.config.settings import ClusterSection
from tests.support.waiting import until


async def test_the_lease_runs_on_a_clock_that_counts_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept through its session wakes up and must not take its lease for fresh."""
    asked: list[int] = []
    read = time.clock_gettime

    def spy(clock: int) -> float:
        asked.append(clock)
        return read(clock)

    monkeypatch.setattr(time, "clock_gettime", spy)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with make_zookeeper(ClusterSection(zookeeper=address), session_timeout_ms=6000):
            await until(lambda: time.CLOCK_BOOTTIME in asked)
