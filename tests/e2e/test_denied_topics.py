# SPDX-License-Identifier: Apache-2.0
"""Topics that ZooKeeper's ACLs keep a whole daemon from: told everywhere, with the lag as it is, and nobody else is held up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.registry import Registry, open_registry

pytestmark = pytest.mark.drawn

GROUP, DENIED, OPEN = "acl", "denied", "open"
READ_ONLY = [make_digest_acl("root", "secret", all=True), make_acl("world", "anyone", read=True)]
OFFSETS = f"/consumers/{GROUP}/offsets"
FOLDER = f"{OFFSETS}/{DENIED}"
ALL = [make_acl("world", "anyone", all=True)]


@pytest.fixture
def broker(zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path) -> Iterator[EmbeddedThread]:
    """A broker below a chroot of its own, with two topics of ten records."""
    with EmbeddedThread(tmp_path / "broker", f"{zookeeper.connect_string}/{unique('denied')}") as broker:
        for topic in (DENIED, OPEN):
            broker.create_topic(topic)
            broker.produce(topic, b"k\tv\n" * 10)
        yield broker


@pytest.fixture
def registry(broker: EmbeddedThread) -> Iterator[Registry]:
    """A client of another make, as a user that all ACLs of the test let in."""
    with open_registry(broker.zookeeper) as registry:
        registry.client.add_auth("digest", "root:secret")
        yield registry


def command(broker: EmbeddedThread, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command about the group."""
    return subprocess.run(
        [sys.executable, "-m", "consumerd", *words, "--zookeeper", broker.zookeeper, "--group", GROUP],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def partition_of(daemon: Daemon, topic: str) -> dict[str, object] | None:
    """Return what the daemon says of a topic's one partition."""
    return next((one for one in daemon.status()["partitions"] if one["topic"] == topic), None)


def lag_of(broker: EmbeddedThread, topic: str) -> object:
    """Return what the command says of a topic's lag."""
    done = command(broker, "lag", "--json")
    return next(one["lag"] for one in map(json.loads, done.stdout.splitlines()) if one["topic"] == topic)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("subscribed", "registered"),
    [({"topics": (DENIED, OPEN)}, OPEN), ({"pattern": "denied|open"}, "(?!(?:denied)$)(?:denied|open)")],
    ids=["names", "pattern"],
)
def test_a_topic_that_is_denied_from_the_beginning_is_left_to_others(
    broker: EmbeddedThread, registry: Registry, tmp_path: Path, subscribed: dict[str, Any], registered: str
) -> None:
    """A member that registers for what it cannot commit starves those that can; its other topics flow."""
    registry.client.ensure_path(OFFSETS)
    registry.client.create(FOLDER, b"", acl=READ_ONLY)
    settings = settings_for(broker.zookeeper, GROUP, **subscribed)
    with Daemon(tmp_path, "d", settings) as daemon:
        daemon.wait(lambda: len(daemon.deliveries) == 10, "the open topic is delivered")
        (member,) = registry.members(GROUP).values()
        assert list(member["subscription"]) == [registered]
        assert partition_of(daemon, DENIED) is None
        told = daemon.status()["denied_topics"][DENIED]
        assert FOLDER in told
        assert FOLDER in daemon.get("/")[1]
        assert "consumerd_denied_topics 1.0" in daemon.get("/metrics")[1]
        assert lag_of(broker, DENIED) == 10, "of a partition without a position"
        found = command(broker, "doctor")
        assert (1, True) == (found.returncode, FOLDER in found.stdout), found.stdout + found.stderr
        daemon.wait(lambda: registry.offsets(GROUP, OPEN) == {0: 10}, "what is open is committed")
        assert {one.topic for one in daemon.deliveries} == {OPEN}
        assert daemon.terminate() == 0


@pytest.mark.timeout(180)
def test_a_topic_that_is_denied_later_is_told_given_up_and_taken_back(
    broker: EmbeddedThread, registry: Registry, tmp_path: Path
) -> None:
    """Records that cannot be committed would be delivered again and again: whoever may commit them is to have them.

    All rights are looked at again when another topic is denied. That this happens from time to time as well takes half a
    minute, and is shown on virtual time by tests/unit/group/test_rights.py.
    """
    settings = settings_for(broker.zookeeper, GROUP, topics=(DENIED, OPEN))
    with Daemon(tmp_path, "d", settings) as daemon:
        daemon.wait(lambda: registry.offsets(GROUP, DENIED) == {0: 10}, "committed as long as it may be")
        for path in (f"{FOLDER}/0", FOLDER):
            registry.client.set_acls(path, READ_ONLY)
        for topic in (DENIED, OPEN):
            broker.produce(topic, b"k\tv\n" * 10)
        daemon.wait(lambda: DENIED in daemon.status()["denied_topics"], "the topic is told as denied")
        assert FOLDER in daemon.status()["denied_topics"][DENIED]
        assert FOLDER in daemon.get("/")[1]
        assert "consumerd_denied_topics 1.0" in daemon.get("/metrics")[1]
        assert any(FOLDER in one["reason"] for one in daemon.events("topic_not_permitted"))
        daemon.wait(lambda: partition_of(daemon, DENIED) is None, "given up")
        assert lag_of(broker, DENIED) == 10, "of the position that whoever takes it begins at"
        found = command(broker, "doctor")
        assert (1, True) == (found.returncode, FOLDER in found.stdout), found.stdout + found.stderr
        daemon.wait(lambda: registry.offsets(GROUP, OPEN) == {0: 20}, "what is open is committed")

        for path, rights in ((FOLDER, ALL), (f"{OFFSETS}/{OPEN}", READ_ONLY)):
            registry.client.set_acls(path, rights)
            registry.client.set_acls(f"{path}/0", rights)
        broker.produce(OPEN, b"k\tv\n" * 10)
        daemon.wait(lambda: registry.offsets(GROUP, DENIED) == {0: 20}, "taken back, and committed", 90)
        daemon.wait(lambda: [*daemon.status()["denied_topics"]] == [OPEN], "the other one is denied instead")
        assert registry.offsets(GROUP, OPEN) == {0: 20}
        assert daemon.terminate() == 0
