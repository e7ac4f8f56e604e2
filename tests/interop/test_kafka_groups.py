# SPDX-License-Identifier: Apache-2.0
"""Groups that a real broker coordinates: our daemons beside Java's newer consumer, librdkafka and aiokafka."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from tests.interop.conftest import FULL, ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.foreign.aiokafka_client import AiokafkaMember
from tests.support.foreign.client import Member
from tests.support.foreign.java_modern import JavaMember
from tests.support.foreign.librdkafka import Librdkafka, LibrdkafkaMember
from tests.support.foreign.membership import Driven
from tests.support.kafka import Cluster
from tests.support.landing_check import find_faults, log_ends
from tests.support.load import SteadyLoad
from tests.support.waiting import wait_until

PARTITIONS: Final = 10
RATE: Final = 500
SECONDS: Final = 60 if FULL else 30
RELEASES: Final = ("0.10.2.2", "1.1.1", "2.8.2", "4.0.2", "4.3.1")


def on_releases(*always: str) -> pytest.MarkDecorator:
    """Have a test's scene on each release; on those that are not named, with the full matrix only."""
    cells = [pytest.param(one, marks=[] if one in always else pytest.mark.full) for one in RELEASES]
    return pytest.mark.parametrize("scene", cells, indirect=True)


class Scene:
    """A topic, a group, a folder, and who is a member. The cluster may be of either kind; Java's member is its release's."""

    def __init__(self, cluster: Cluster, group: str, topic: str, folder: Path, stack: ExitStack) -> None:
        self.cluster, self.group, self.topic, self.folder = cluster, group, topic, folder
        self.daemons: list[Daemon] = []
        self.others: dict[str, Driven] = {}
        self._stack = stack
        self._make: Mapping[str, Callable[[], Member]] = {
            "java": partial(JavaMember, folder, cluster.bootstrap, group, topic, "java", release=cluster.release),
            "confluent-kafka": partial(LibrdkafkaMember, cluster.bootstrap, group, topic, "confluent-kafka"),
            "aiokafka": partial(
                AiokafkaMember, cluster.bootstrap, group, topic, "aiokafka", assignors=(RangePartitionAssignor,)
            ),
        }
        cluster.create_topic(topic, PARTITIONS)

    def start(self) -> Daemon:
        """Start a daemon."""
        name = f"daemon-{len(self.daemons)}"
        settings: dict[str, Any] = settings_for(
            None,
            self.group,
            cluster=self.cluster.cluster_settings,
            topics=(self.topic,),
            sink={"type": "jsonl", "path": str(self.folder / "landing"), "roll_ms": 500},
            group={"membership": "kafka", "session_timeout_ms": 6000},
            offsets={"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200},
        )
        daemon = self._stack.enter_context(Daemon(self.folder, name, settings))
        self.daemons.append(daemon)
        return daemon

    @property
    def running(self) -> list[Daemon]:
        """The daemons that run."""
        return [one for one in self.daemons if one.process.poll() is None]

    def join(self, client: str) -> None:
        """Have a member of another client; it commits nothing, so the daemons land its partitions in the end."""
        self.others[client] = Driven(self._make[client])
        self._stack.callback(self.others[client].leave)

    def leave(self, client: str) -> None:
        """Have it leave."""
        self.others.pop(client).leave()

    @property
    def clients(self) -> Iterable[str]:
        """The other clients."""
        return self._make

    def owners(self) -> list[int]:
        """Return the partitions of all members, each as often as a member has it."""
        ours = [int(one["partition"]) for daemon in self.running for one in daemon.status()["partitions"]]
        return sorted(ours + [number for other in self.others.values() for number in other.assigned])

    def wait_shared(self) -> None:
        """Wait until each partition has one owner, and each member has some."""

        def shared() -> bool:
            everybody = all(one.status()["owned"] for one in self.running) and all(
                other.assigned for other in self.others.values()
            )
            return everybody and self.owners() == list(range(PARTITIONS))

        wait_until(shared, f"each partition has one owner, not {self.owners()}", 90, 0.3)


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> Iterable[Scene]:
    """A real broker of the release."""
    cluster = shared_clusters(request.param)
    with ExitStack() as stack:
        yield Scene(cluster, unique("kafkas"), unique("shared"), tmp_path, stack)


def describe_at_rest(scene: Scene, daemons: Iterable[Daemon]) -> tuple[str, dict[str, set[int]]]:
    """Return what Kafka's tool says of the group, and our members' partitions by member id, of one generation.

    A member that stalls on a busy machine makes the group rebalance while the tool's JVM starts: then both are read anew.
    """
    for _ in range(5):
        scene.wait_shared()
        before = [daemon.status() for daemon in daemons]
        said = scene.cluster.describe_group(scene.group)
        after = [daemon.status() for daemon in daemons]
        if {one["coordination"]["generation"] for one in before} == {
            one["coordination"]["generation"] for one in after
        }:
            return said, {
                one["coordination"]["member_id"]: {int(p["partition"]) for p in one["partitions"]} for one in after
            }
    raise AssertionError("the group has not come to rest")


@on_releases("1.1.1", "4.3.1")
@pytest.mark.timeout(300)
def test_one_group_of_four_clients_shares_the_partitions_and_is_described(scene: Scene) -> None:
    """Two daemons, Java, librdkafka and aiokafka: each partition has one owner, by all accounts."""
    one, two = scene.start(), scene.start()
    for client in scene.clients:
        scene.join(client)
    said, ours = describe_at_rest(scene, (one, two))
    rows = [line.split() for line in said.splitlines() if f" {scene.topic} " in f" {line} "]
    described: dict[str, set[int]] = {}
    for row in rows:
        at = row.index(scene.topic)
        # columns of 0.10.2 have a fixed width: a long member id runs into the host
        member = next(cell for cell in row[at + 2 :] if "-" in cell and len(cell) > 30)
        described.setdefault(member.partition("/")[0], set()).add(int(row[at + 1]))
    for client in list(scene.others):
        scene.leave(client)
    scene.wait_shared()

    assert ours.items() <= described.items()
    assert sorted(number for numbers in described.values() for number in numbers) == list(range(PARTITIONS))
    assert len(described) == 5
    assert [daemon.terminate() for daemon in (one, two)] == [0, 0]


@on_releases("1.1.1")
@pytest.mark.slow
@pytest.mark.records
@pytest.mark.timeout(400)
def test_churn_in_a_group_of_four_clients_lands_each_record_once(scene: Scene) -> None:
    """Members of all clients join, leave and die under load; what the daemons have landed is each record once."""
    dice = random.Random(20261126)
    producer = scene.cluster.ledger_producer(linger_ms="5")
    with SteadyLoad(producer, {scene.topic: PARTITIONS}, per_second=RATE / PARTITIONS, make_value=b"%d".__mod__):
        scene.start()
        scene.start()
        scene.wait_shared()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            change(scene, dice)
            pause = time.monotonic() + dice.uniform(1.5, 4.0)
            wait_until(lambda pause=pause: time.monotonic() > pause, "the next change", 10)  # type: ignore[misc]
        for client in list(scene.others):
            scene.leave(client)
        scene.wait_shared()
    ledger = producer.finish()
    ends = log_ends(ledger)
    committed = Librdkafka(scene.cluster.bootstrap)

    def is_committed() -> bool:
        found = committed.committed(scene.group, scene.topic, PARTITIONS)
        return {(scene.topic, number): at for number, at in found.items()} == ends

    wait_until(is_committed, "all is committed", 90, 0.5)
    codes = [daemon.terminate() for daemon in scene.running]

    assert find_faults(scene.folder / "landing", ledger) == []
    assert set(codes) == {0}


def change(scene: Scene, dice: random.Random) -> None:
    """Change the group: a daemon starts, stops or dies; a member of another client joins or leaves."""
    away = [client for client in scene.clients if client not in scene.others]
    choices: list[Callable[[], object]] = [lambda client=client: scene.leave(client) for client in scene.others]  # type: ignore[misc]
    choices += [lambda client=client: scene.join(client) for client in away]  # type: ignore[misc]
    choices.append(scene.start)
    if len(scene.running) > 2:
        daemon = dice.choice(scene.running)
        choices = [daemon.terminate, daemon.kill]
    dice.choice(choices)()
