# SPDX-License-Identifier: Apache-2.0
"""Faults under daemons that mirror a topic: they, their ZooKeeper, their target and its brokers die, stall or are cut off.

Whatever happens, in the end the target has each record of the source once, in order, with key, value, headers and
timestamp; and the map translates each offset to that of the record with this content, and back. What the target has is
read by librdkafka, with read_committed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.mirror.positions import open_mirror_positions
from consumerd.mirror.positions_index import MirrorState
from tests.interop.conftest import FULL, ClusterFactory, Figure, require
from tests.support.daemon import Daemon, settings_for
from tests.support.jafka import JafkaCluster, jars
from tests.support.kafka import Cluster
from tests.support.kraft import make_cluster
from tests.support.mirror_sources import Found, JafkaSource, KafkaSource, MirrorSource, positions, read_records
from tests.support.proxy_thread import ProxyThread
from tests.support.registry import Registry, open_registry
from tests.support.seeds import draw_seed, some_of
from tests.support.tcp_proxy import Action
from tests.support.tools import require_jars
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.drawn(parts=5)]

JAFKA: Final = "jafka"
SOURCES: Final = (JAFKA, "0.8.2.2", "0.10.2.2", "1.1.1", "2.8.2")
FIRST_TARGETS: Final = ("0.11.0.3",) if FULL else ()
"""First release with transactions."""
TARGETS: Final = (*FIRST_TARGETS, "1.1.1", "4.0.2", "4.3.1")
MAIN_CELL: Final = ("1.1.1", "4.3.1")
CELLS: Final = [(source, target) for source in SOURCES for target in TARGETS]
DRAWN: Final = [cell for cell in CELLS if cell != MAIN_CELL]

SESSION_MS: Final = 3000
DAEMONS: Final = 3 if FULL else 2
ROUNDS: Final = 3 if FULL else 1


class Mirrors:
    """Daemons of one group that mirror a topic, each through a proxy of its own to ZooKeeper, and what may befall them."""

    def __init__(self, source: MirrorSource, target: Cluster, to_target: ProxyThread, folder: Path) -> None:
        self.source, self.target, self.to_target = source, target, to_target
        self.folder = folder
        self.group = source.topic
        self.copy = f"{source.topic}-copy"
        self.daemons: list[Daemon] = []
        self.done: list[str] = []
        self._stack = ExitStack()
        target.create_topic(self.copy, len(source.partitions))
        self._to_zookeeper = [self._stack.enter_context(ProxyThread(source.cluster.zk_port)) for _ in range(DAEMONS)]
        self._starts = 0

    @property
    def positions_topic(self) -> str:
        """The topic of the mirror's positions."""
        return f"{self.source.topic}-positions"

    def settings(self, number: int) -> dict[str, Any]:
        """Return the settings of a daemon."""
        return settings_for(
            f"{self._to_zookeeper[number].address}{self.source.cluster.chroot}",
            self.group,
            topics=(self.source.topic,),
            sink={
                "type": "kafka",
                "bootstrap": self.to_target.address,
                "topic": "{topic}-copy",
                "flush_ms": 200,
                "batch_bytes": 4000,
                "positions_topic": self.positions_topic,
                "request_timeout_ms": 10_000,
                "transaction_timeout_ms": 20_000,
            },
            group={"session_timeout_ms": SESSION_MS},
            offsets={"commit_interval_ms": 300},
        )

    def start(self, number: int) -> Daemon:
        """Start a daemon, with a new log."""
        self._starts += 1
        return self._stack.enter_context(Daemon(self.folder, f"mirror-{number}-{self._starts}", self.settings(number)))

    def __enter__(self) -> Self:
        self.daemons = [self.start(number) for number in range(DAEMONS)]
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    # -- what befalls them

    def kill_a_daemon(self, dice: random.Random) -> None:
        """SIGKILL, and another one in its place."""
        number = dice.randrange(DAEMONS)
        self.daemons[number].kill()
        self.daemons[number] = self.start(number)

    def stall_a_daemon(self, dice: random.Random) -> None:
        """SIGSTOP past its session; meanwhile others own its partitions, which the end of the pause shows."""
        sleeper = self.daemons[dice.randrange(DAEMONS)]
        others = [one for one in self.daemons if one is not sleeper]
        sleeper.stop()
        everything = {(self.source.topic, name) for name in self.source.partitions}

        def is_taken_over() -> bool:
            return everything == {
                (one["topic"], str(one["partition"])) for other in others for one in other.status()["partitions"]
            }

        try:
            wait_until(is_taken_over, "the others own everything", 60, 0.2)
        finally:
            sleeper.resume()

    def cut_from_zookeeper(self, dice: random.Random) -> None:
        """Nothing passes for a part of a session, or for longer."""
        proxy = self._to_zookeeper[dice.randrange(DAEMONS)]
        proxy.blackhole()
        pause(dice.uniform(0.3, 2.5) * SESSION_MS / 1000)
        proxy.heal()

    def cut_from_target(self, dice: random.Random) -> None:
        """All daemons: connections break at each request, or nothing passes."""
        if dice.random() < 0.5:
            self.to_target.decide(lambda *_: Action.CUT)
        else:
            self.to_target.blackhole()
        pause(dice.uniform(0.5, 5.0))
        self.to_target.heal()

    def kill_target_broker(self, _dice: random.Random) -> None:
        """SIGKILL in the middle of transactions."""
        self.target.kill_broker(0)
        self.target.restart_broker(0)

    def kill_source_broker(self, _dice: random.Random) -> None:
        """SIGKILL."""
        self.source.cluster.kill_broker(0)
        self.source.cluster.restart_broker(0)

    def suffer(self, dice: random.Random, registry: Registry) -> None:
        """Let everything befall them, in a random order, and have them go on after each fault."""
        faults = [self.kill_a_daemon, self.stall_a_daemon, self.cut_from_zookeeper, self.cut_from_target]
        faults += [self.kill_a_daemon, self.kill_target_broker]
        if isinstance(self.source, KafkaSource):
            faults.append(self.kill_source_broker)
        for _ in range(ROUNDS):
            for fault in dice.sample(faults, len(faults)):
                fault(dice)
                self.done.append(fault.__name__)
                before = sum(positions(registry, self.group, self.source.topic).values())
                self._wait(
                    lambda before=before: sum(positions(registry, self.group, self.source.topic).values()) > before
                )

    def _wait(self, condition: Callable[[], bool], timeout_s: float = 90) -> None:
        try:
            self.daemons[0].wait(condition, f"they go on after {self.done[-1:]}", timeout_s)
        finally:
            assert [None] * DAEMONS == [one.process.poll() for one in self.daemons], self.logs()

    def finish(self, registry: Registry) -> None:
        """Wait until everything is mirrored and committed, and end the daemons."""
        ends = self.source.ends()
        self._wait(lambda: positions(registry, self.group, self.source.topic) == ends)
        for one in self.daemons:
            # the others may finish before the last one has loaded its modules, while SIGTERM ends it with 143
            one.wait(lambda one=one: bool(one.events("http_started")), "it has started", 60)
        assert [0] * DAEMONS == [one.terminate() for one in self.daemons], self.logs()

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        return "\n".join(f"{one.name}: {one.log()[-2000:]}" for one in self.daemons)

    # -- what is in the target

    def check(self) -> int:
        """Compare both sides, and the map with both; return the number of records."""
        states = asyncio.run(self._read_states())
        assert set(self.source.partitions) == states.keys()
        total = 0
        for name, records in self.source.read().items():
            copies = read_records(self.target.bootstrap, self.copy, states[name].stored.target_partition)
            assert [one.content for one in records] == [one.content for one in copies], f"partition {name}"
            check_map(states[name], records, copies)
            total += len(copies)
        return total

    async def _read_states(self) -> Mapping[str, MirrorState]:
        address = ClusterAddress(bootstrap=self.target.bootstrap, client_id="test")
        async with open_mirror_positions(address, self.positions_topic) as stored:
            await stored.refresh()
            states = [stored.find(log) for log in stored.list()]
            return {state.log.partition: state for state in states if state is not None}


def check_map(state: MirrorState, records: Sequence[Found], copies: Sequence[Found]) -> None:
    """Translate each offset both ways."""
    translation = state.offset_map()
    pairs = [(record.offset, copy.offset) for record, copy in zip(records, copies, strict=True)]
    assert pairs == [(source, translation.translate(source).offset) for source, _ in pairs]
    assert pairs == [(translation.translate_back(target).offset, target) for _, target in pairs]


def pause(seconds: float) -> None:
    """Let time pass: a fault lasts."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "the end of a fault", seconds + 10)


@contextmanager
def running_target(release: str) -> Iterator[tuple[Cluster, ProxyThread]]:
    """Start a target behind a proxy."""
    require(release)
    target = make_cluster(release)
    with ProxyThread(target.ports[0]) as proxy:
        target.advertise(proxy.port)
        with target:
            yield target, proxy


@contextmanager
def running_source(release: str, topic: str, own_cluster: ClusterFactory) -> Iterator[MirrorSource]:
    """Start a source, and create its topic."""
    if release != JAFKA:
        yield KafkaSource(own_cluster(release), topic)
        return
    with require_jars():
        jars()
    # a broker whose session lapses on a loaded machine ends its sender, which then finds no partition
    with JafkaCluster(1, partitions=4, properties={"zk.sessiontimeout.ms": "60000"}) as cluster:
        yield JafkaSource(cluster, topic)


def endure(
    cell: tuple[str, str], own_cluster: ClusterFactory, unique: Callable[[str], str], folder: Path, figure: Figure
) -> None:
    source_release, target_release = cell
    dice = random.Random(draw_seed(f"mirror of {source_release} into {target_release}"))
    with (
        running_source(source_release, unique("mirrored"), own_cluster) as source,
        running_target(target_release) as (target, proxy),
        open_registry(source.cluster.zookeeper) as registry,
        Mirrors(source, target, proxy, folder) as mirrors,
    ):
        with source.load():
            mirrors.daemons[0].wait(
                lambda: len(positions(registry, mirrors.group, source.topic)) == len(source.partitions), "commits", 90
            )
            mirrors.suffer(dice, registry)
        mirrors.finish(registry)
        figure("faults", len(mirrors.done))
        figure("records", mirrors.check())


def test_mirror_endures_faults_on_every_side(
    own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Of daemons, of ZooKeeper, of both clusters: each record once."""
    endure(MAIN_CELL, own_cluster, unique, tmp_path, figure)


@pytest.mark.parametrize("cell", some_of("cells of the mirror", DRAWN, 1), ids="-".join)
def test_mirror_between_other_releases_endures_faults_on_every_side(
    cell: tuple[str, str],
    own_cluster: ClusterFactory,
    unique: Callable[[str], str],
    tmp_path: Path,
    figure: Figure,
) -> None:
    """From 0.7 on, into all that have transactions."""
    endure(cell, own_cluster, unique, tmp_path, figure)
