# SPDX-License-Identifier: Apache-2.0
"""``consumerd doctor`` beside a running daemon: the partitions that do not go on, and the folders that refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.registry import open_registry

GROUP = "ill"


def examine(daemon: Daemon, listen: str) -> dict[str, dict[str, Any]]:
    """Run the doctor with the daemon's own settings; findings by check, of which there is one each."""
    done = subprocess.run(
        [sys.executable, "-m", "consumerd", "doctor", "--config", f"{daemon.directory}/{daemon.name}.yaml",
         "--set", f"http.listen={listen}", "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.timeout(120)
def test_partitions_that_the_daemon_says_are_stopped_or_failing_are_told_with_since_and_why(
    cluster: EmbeddedThread, tmp_path: Path
) -> None:
    """The runbook sends people to the doctor: it says what the status page says, and which folder refuses."""
    landing = tmp_path / "landing"
    settings = settings_for(
        cluster.zookeeper, GROUP, topics=("fine", "refused", "stopped"), sink={"type": "jsonl", "path": str(landing)}
    )

    refusing = landing / "topic=refused" / "partition=0"
    refusing.parent.mkdir(parents=True)
    refusing.touch()  # refuses root, too
    for topic in ("fine", "refused", "stopped"):
        cluster.create_topic(topic)
        cluster.produce(topic, b"k\tv\n")
    with open_registry(cluster.zookeeper) as registry:
        registry.client.create(f"/consumers/{GROUP}/offsets/stopped/0", b"three", makepath=True)
        with Daemon(tmp_path, "ill", settings) as daemon:
            states = {"fine": "running", "refused": "failing", "stopped": "stopped"}
            daemon.wait(
                lambda: {one["topic"]: one["state"] for one in daemon.status()["partitions"]} == states, str(states)
            )
            listen = daemon.url.removeprefix("http://")
            found = examine(daemon, listen)
            said = {one["topic"]: one for one in daemon.status()["partitions"]}
            daemon.terminate()
        after = examine(daemon, listen)

    for topic, check, severity in (
        ("stopped", "partition-stopped", "error"),
        ("refused", "partition-failing", "warning"),
    ):
        assert (found[check]["where"], found[check]["severity"]) == (f"{topic}/0", severity)
        assert found[check]["what"] == f"{states[topic]} since {said[topic]['since']['at']}: {said[topic]['reason']}"
    assert str(refusing) in found["partition-folder-not-usable"]["what"]
    assert "stopped or failing is not known" in after["metrics-silent"]["what"]
    assert not {"partition-stopped", "partition-failing"} & after.keys()
    assert list(tmp_path.rglob(".consumerd-doctor-*")) == []
