# SPDX-License-Identifier: Apache-2.0
"""How the time of a stop is divided: draining ends early enough for what must follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.config.load import load_settings
from consumerd.connector.member import plan_patience


@pytest.mark.parametrize(
    ("timeout_ms", "session_ms", "leave_s"),
    [
        (20_000, 6_000, 14.0),  # the defaults: a fifth for closing sinks and connections, 2 s for ending the session
        (60_000, 30_000, 38.0),
        (20_000, 60_000, 5.0),  # a quarter at least, or nothing would ever be flushed
    ],
)
def test_leaving_the_group_leaves_time_for_the_rest_of_a_stop(
    tmp_path: Path, timeout_ms: int, session_ms: int, leave_s: float
) -> None:
    """A drain that takes all of ``shutdown.timeout_ms`` ends in the supervisor's SIGKILL, with sinks half closed."""
    config = tmp_path / "config.yaml"
    config.write_text(
        f"cluster: {{zookeeper: 'localhost:1'}}\ngroup: {{id: g, session_timeout_ms: {session_ms}}}\n"
        "subscriptions: [{topics: [orders], sink: lake}]\n"
        f"sinks: {{lake: {{type: jsonl, path: {tmp_path / 'landing'}}}}}\n"
        f"shutdown: {{timeout_ms: {timeout_ms}}}\n"
    )

    assert leave_s == pytest.approx(plan_patience(load_settings(config=config, environment={})))
