# SPDX-License-Identifier: Apache-2.0
"""A topic that is deleted and created again behind a group's back, and what each command says of its positions.

Runs on any cluster, real or embedded: topics are deleted as Kafka's TopicCommand does, by kazoo.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

import pytest

from consumerd.cli.main import CONFIGURATION, FAILED, main
from tests.support.registry import Registry, open_registry
from tests.support.waiting import wait_until


class RunningCluster(Protocol):
    """The part of a cluster that the scenario uses."""

    @property
    def zookeeper(self) -> str:
        """The connect string."""

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, and wait until it is served."""

    def produce(self, topic: str, lines: bytes) -> None:
        """Send ``key<TAB>value`` lines and wait until they are acknowledged."""


class Asked:
    """Runs commands on one group, in this process."""

    def __init__(self, zookeeper: str, group: str) -> None:
        self._at = ["-z", zookeeper, "-g", group, "--timeout", "20"]

    def __call__(self, command: str, *arguments: str) -> int:
        """Run a command and return its exit code; what it prints is pytest's to capture."""
        return main([*command.split(), *self._at, *arguments])


def prepare(cluster: RunningCluster, topic: str, group: str, saved: Path) -> tuple[str, str]:
    """Let the group commit 30 of 50 records, export that, delete the topic, and create it again with 80 records.

    Returns the incarnations before and after. Position 30 lies within the new log, so nothing is out of range.
    """
    cluster.create_topic(topic)
    cluster.produce(topic, b"k\tv\n" * 50)
    with open_registry(cluster.zookeeper) as registry:
        before = _incarnation(registry, topic)
        registry.client.create(f"/consumers/{group}/offsets/{topic}/0", b"30", makepath=True)
        assert Asked(cluster.zookeeper, group)("offsets export", "--output", str(saved)) == 0
        registry.client.create(f"/admin/delete_topics/{topic}")
        nodes = [f"/brokers/topics/{topic}", f"/admin/delete_topics/{topic}"]
        wait_until(lambda: not any(map(registry.client.exists, nodes)), f"{topic} is deleted", 60)
        cluster.create_topic(topic)
        cluster.produce(topic, b"k\tv\n" * 80)
        return before, _incarnation(registry, topic)


def _incarnation(registry: Registry, topic: str) -> str:
    stat = registry.client.exists(f"/brokers/topics/{topic}")
    assert stat is not None
    return str(stat.czxid)


def lines_of(output: str) -> list[dict[str, object]]:
    """Read the rows that a command has printed with ``--json``."""
    return [json.loads(line) for line in output.splitlines()]


def check_commands(
    cluster: RunningCluster, topic: str, group: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that every command tells the old position, and that none of them uses it."""
    saved = folder / "saved.json"
    before, after = prepare(cluster, topic, group, saved)
    ask = Asked(cluster.zookeeper, group)
    capsys.readouterr()
    old = "position 30 is of a deleted topic of the same name"

    assert ask("lag", "--json") == 0
    [row] = lines_of(capsys.readouterr().out)
    assert (None, 0, 80, 80) == (row["position"], row["earliest"], row["latest"], row["lag"])
    assert str(row["note"]).startswith(old)

    assert ask("offsets show", "--json") == 0
    [row] = lines_of(capsys.readouterr().out)
    assert (30, "of another incarnation") == (row["position"], row["validity"])
    assert str(row["note"]).startswith(old)

    # a backup of every group does not fail for one old topic; naming the topic asks for its positions
    assert ask("offsets export") == 0
    shown = capsys.readouterr()
    assert [] == json.loads(shown.out)["offsets"]
    assert f"{topic}/0 left out: {old}" in shown.err
    assert ask("offsets export", topic) == CONFIGURATION
    assert f"has no positions of {topic}; what is stored is of a deleted topic" in capsys.readouterr().err

    assert ask("offsets set", "--from-file", str(saved), "--yes") == CONFIGURATION
    assert f"deleted and re-created since the export (incarnation {before}, now {after})" in capsys.readouterr().err

    assert ask("doctor", "--json") == FAILED
    [finding] = [row for row in lines_of(capsys.readouterr().out) if row["check"] == "position-of-older-topic"]
    assert old in str(finding["what"])
