# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets`` while daemons run, and what comes of it in the files."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent
from tests.support.ledger import send_all
from tests.support.offset_commands import offsets, read_landed, rows
from tests.support.registry import open_registry

pytestmark = pytest.mark.records


def produce(cluster: EmbeddedThread, topic: str, partitions: int, count: int) -> None:
    send_all(cluster.bootstrap, (Sent(topic, one % partitions, None, b"value %d" % one) for one in range(count)))


@pytest.mark.timeout(120)
def test_a_partition_is_moved_back_and_forth_while_two_daemons_run(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Back: the records again, in a chain of their own. Ahead: a gap that says why. The other daemon does not notice."""
    topic, group = unique("moved"), unique("movers")
    cluster.create_topic(topic, 2)
    produce(cluster, topic, 2, 200)
    folder = tmp_path / "landing"
    settings = settings_for(
        cluster.zookeeper,
        group,
        topics=(topic,),
        sink={"type": "parquet", "path": str(folder), "roll_ms": 300},
        offsets={"commit_interval_ms": 200},
    )
    with (
        open_registry(cluster.zookeeper) as registry,
        Daemon(tmp_path, "one", settings) as one,
        Daemon(tmp_path, "two", settings) as two,
    ):
        one.wait(lambda: len(one.owned()) == len(two.owned()) == 1, "each has one")
        one.wait(lambda: registry.offsets(group, topic) == {0: 100, 1: 100}, "all is landed and committed")
        (back,) = rows(offsets(cluster.zookeeper, group, "set", f"{topic}/0=30", "--yes", "--json"))
        one.wait(lambda: registry.offsets(group, topic) == {0: 100, 1: 100}, "they are landed again")
        again = rows(offsets(cluster.zookeeper, group, "reset", topic, "--to", "latest", "--yes", "--json"))
        assert registry.client.get_children(f"/consumers/{group}/consumerd/requests/{topic}") == []
        assert one.terminate() == two.terminate() == 0
        produce(cluster, topic, 2, 100)
        (ahead,) = rows(offsets(cluster.zookeeper, group, "set", f"{topic}/1=140", "--yes", "--json"))
        with Daemon(tmp_path, "next", settings) as following:
            following.wait(lambda: registry.offsets(group, topic) == {0: 150, 1: 150}, "the rest is landed")
            assert following.terminate() == 0

    assert (back["effect"], back["outcome"]) == ("reads 70 again", "carried out")
    assert [row["target"] for row in again] == [100, 100]
    assert (ahead["effect"], ahead["outcome"]) == ("skips 40", "left for the next of ours that claims it")
    moved, other = read_landed(folder, topic, 0), read_landed(folder, topic, 1)
    assert [chain.origin for chain in moved.chains][:2] == [0, 30]
    assert moved.offsets == [*range(100), *range(30, 150)]
    assert other.offsets == [*range(100), *range(140, 150)]
    assert [(gap["start"], gap["end"], gap["reason"]) for gap in other.gaps] == [(100, 140, "reset")]


@pytest.mark.timeout(60)
def test_a_member_that_joins_while_the_question_stands_is_not_written_around(
    cluster: EmbeddedThread, unique: Callable[[str], str]
) -> None:
    """A person may think for as long as they like: what they have said yes to is looked at again before it is done."""
    topic, group = unique("asked"), unique("askers")
    cluster.create_topic(topic)
    produce(cluster, topic, 1, 10)
    ours, theirs = pty.openpty()
    command = ["offsets", "set", "-z", cluster.zookeeper, "-g", group, f"{topic}/0=3"]
    with open_registry(cluster.zookeeper) as registry:
        registry.client.create(f"/consumers/{group}/offsets/{topic}/0", b"7", makepath=True)
        with subprocess.Popen(
            [sys.executable, "-m", "consumerd", *command], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            os.close(theirs)
            assert process.stderr is not None
            asked = b""
            while b"[y/N]" not in asked:
                asked += (more := process.stderr.read1())
                assert more, asked
            registry.client.create(f"/consumers/{group}/ids/java", b"{}", ephemeral=True, makepath=True)
            os.write(ours, b"y\n")
            _, said = process.communicate(timeout=40)
        os.close(ours)
        left = registry.client.get(f"/consumers/{group}/offsets/{topic}/0")

    assert process.returncode == 1
    assert b"Java members carry no requests out" in said
    assert (left[0], left[1].version) == (b"7", 0)
