# SPDX-License-Identifier: Apache-2.0
"""Sinks of one process before anything flows: paths of others, volumes that are not mounted."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from consumerd.daemon.sinks import check_sinks
from consumerd.daemon.status import RecentEvents
from consumerd.errors import ConfigError
from consumerd.telemetry.hooks import Hooks
from tests.support.clocks import ManualClock
from tests.support.sinks import SinkRig


async def test_path_of_another_group_ends_the_start(tmp_path: Path):
    """Not the first partition finds it, perhaps hours later, but whoever starts the daemon."""
    rig = SinkRig(kind="jsonl", path=tmp_path / "landing", clock=ManualClock())
    await check_sinks({"lake": rig.member()}, Hooks())
    rig.group = "other"

    with pytest.raises(ConfigError, match="belongs to group 'lake'"):
        await check_sinks({"lake": rig.member()}, Hooks())
    await rig.close()


async def test_volume_that_is_not_mounted_is_told_and_waited_for(tmp_path: Path):
    """Mounting it heals, without a restart: the daemon must not end over it."""
    rig = SinkRig(kind="jsonl", path=tmp_path / "landing", clock=ManualClock())
    await check_sinks({"lake": rig.member()}, Hooks())
    rig.path.rename(tmp_path / "volume")

    recent = RecentEvents(lambda: 0.0)
    with capture_logs() as logs:
        await check_sinks({"lake": rig.member()}, recent)
    assert [(log["event"], log["sink"]) for log in logs] == [("sink_not_ready", "lake")]
    assert "mount the volume" in logs[0]["reason"]
    assert [(one.kind, one.what) for one in recent.events()] == [("sink not ready", f"sink lake: {logs[0]['reason']}")]
    await rig.close()
