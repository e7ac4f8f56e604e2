# SPDX-License-Identifier: Apache-2.0
"""Daemons mirror partitions of a real cluster into another, and are killed, stopped and cut off meanwhile.

Kafka's own consumer reads both sides with read_committed. Whatever happened, the target has each record of the source
once, in order, with key, value, headers and timestamp; and the map translates each offset to that of its record.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.failpoints import MIRROR_POINTS
from consumerd.mirror.positions import open_mirror_positions
from consumerd.wire.apikeys import ApiKey
from tests.interop.conftest import FULL, ClusterFactory, Figure
from tests.support.committed import Committed, read_committed
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, Sent
from tests.support.kraft import make_cluster
from tests.support.load import SteadyLoad
from tests.support.lost_answers import LostAnswers
from tests.support.proxy_thread import ProxyThread
from tests.support.registry import Registry, open_registry
from tests.support.seeds import draw_seed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.drawn(parts=5)]

SOURCE: Final = "1.1.1"
FIRST_TARGET: Final = "0.11.0.3"
"""First release with transactions."""
TARGETS: Final = ("1.1.1", "4.3.1")
PARTITIONS: Final = 4
PER_PARTITION: Final = 40
SESSION_MS: Final = 3000
ROUNDS: Final = 4 if FULL else 1

WRITING: Final = (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN)
LOST: Final = 40 if FULL else 12

on_each_target = pytest.mark.parametrize(
    "target_release", [pytest.param(FIRST_TARGET, marks=pytest.mark.full), *TARGETS]
)


class Mirror:
    """A source topic under load, its copy, and the settings of the daemons that mirror it."""

    def __init__(self, source: Cluster, target: Cluster, name: str, bootstrap: str | None = None) -> None:
        self.source, self.target, self.name = source, target, name
        self.copy = f"{name}-copy"
        source.create_topic(name, PARTITIONS)
        target.create_topic(self.copy, PARTITIONS)
        self.settings: dict[str, Any] = settings_for(
            source.zookeeper,
            name,
            topics=(name,),
            sink={
                "type": "kafka",
                "bootstrap": bootstrap or target.bootstrap,
                "topic": "{topic}-copy",
                "flush_ms": 150,
                "batch_bytes": 700,
                "positions_topic": f"{name}-positions",
                "request_timeout_ms": 10_000,
                "transaction_timeout_ms": 30_000,
            },
            group={"session_timeout_ms": SESSION_MS},
            offsets={"commit_interval_ms": 300},
            log={"level": "info"},
        )

    @contextmanager
    def load(self) -> Iterator[None]:
        """Send records of all kinds to the source while the block runs."""
        producer = self.source.ledger_producer(linger_ms="5")
        producer.send(
            Sent(self.name, number % PARTITIONS, key, value, headers)
            for number, (key, value, headers) in enumerate(
                (key, value, headers)
                for key in (None, b"", b"key")
                for value in (None, b"", b"value" * 300)
                for headers in ((), (("a", b"1"), ("a", None), ("b", b"")))
            )
            if key is not None or value is not None
        )
        with SteadyLoad(producer, {self.name: PARTITIONS}, per_second=PER_PARTITION):
            yield
        self.written = len(producer.finish())

    def wait_done(self, registry: Registry, daemon: Daemon) -> None:
        """Wait until everything is mirrored and committed, and end the daemon."""
        ends: dict[int, int] = {}
        for one in read_committed(self.source.bootstrap, self.name, release=SOURCE):
            ends[one.partition] = one.offset + 1
        wait_until(
            lambda: {int(str(key)): end for key, end in registry.offsets(self.name, self.name).items()} == ends,
            "everything mirrored and committed",
            90,
            0.2,
        )
        assert daemon.terminate() == 0, daemon.log()[-3000:]

    def check(self) -> int:
        """Compare both sides; return the number of records."""
        source = read_committed(self.source.bootstrap, self.name, release=SOURCE)
        copy = read_committed(self.target.bootstrap, self.copy, release=self.target.release)
        assert self.written == len(source)
        for partition in range(PARTITIONS):
            assert contents(source, partition) == contents(copy, partition)
        asyncio.run(self._check_maps(source, copy))
        return len(copy)

    async def _check_maps(self, source: Sequence[Committed], copy: Sequence[Committed]) -> None:
        address = ClusterAddress(bootstrap=self.target.bootstrap, client_id="test")
        async with open_mirror_positions(address, f"{self.name}-positions") as positions:
            await positions.refresh()
            assert PARTITIONS == len(positions.list())
            for log in positions.list():
                state = positions.find(log)
                assert state is not None
                translation = state.offset_map()
                expected = [one.offset for one in copy if str(one.partition) == log.partition]
                offsets = [one.offset for one in source if str(one.partition) == log.partition]
                assert expected == [translation.translate(offset).offset for offset in offsets]
                assert offsets == [translation.translate_back(offset).offset for offset in expected]


def die_at(point: str, folder: Path, name: str, mirror: Mirror, dice: random.Random) -> None:
    """Start a daemon that kills itself at a point, and wait until it has."""
    # each partition begins once, and a victim beside another daemon has two of them
    count = dice.randint(1, 2 if point == "after_mirror_init" else 6)
    with Daemon(folder, name, mirror.settings, fail_points=f"{point}=kill@{count}") as victim:
        victim.wait_killed(60)


def contents(records: Sequence[Committed], partition: int) -> list[tuple[object, ...]]:
    """Return all but the offsets."""
    return [(one.key, one.value, one.timestamp_ms, one.headers) for one in records if one.partition == partition]


@pytest.fixture
def make_mirror(own_cluster: ClusterFactory, unique: Callable[[str], str]) -> Callable[[str], Mirror]:
    """Return a function that starts source and target; a target of the source's release is the same cluster."""

    def make(target_release: str) -> Mirror:
        source = own_cluster(SOURCE)
        return Mirror(source, source if target_release == SOURCE else own_cluster(target_release), unique("mirrored"))

    return make


@on_each_target
def test_daemons_killed_at_each_step_of_a_transaction_mirror_each_record_once(
    make_mirror: Callable[[str], Mirror], target_release: str, tmp_path: Path, figure: Figure
) -> None:
    """Each victim shares the partitions with a steady daemon, which takes over what the victim leaves half done."""
    mirror = make_mirror(target_release)
    dice = random.Random(draw_seed(f"mirror into {target_release}"))
    deaths = [point for _ in range(ROUNDS) for point in dice.sample(MIRROR_POINTS, len(MIRROR_POINTS))]
    deaths += ["before_commit", "after_commit"]
    with (
        open_registry(mirror.source.zookeeper) as registry,
        Daemon(tmp_path, "steady", mirror.settings) as steady,
    ):
        with mirror.load():
            steady.wait(lambda: bool(registry.offsets(mirror.name, mirror.name)), "the first commits", 60)
            for number, point in enumerate(deaths):
                die_at(point, tmp_path, f"victim-{number}", mirror, dice)
                assert steady.process.poll() is None, steady.log()[-3000:]
        mirror.wait_done(registry, steady)
    figure("deaths", len(deaths))
    figure("records", mirror.check())


@on_each_target
def test_a_lone_daemon_killed_again_and_again_goes_on_where_its_last_transaction_ended(
    make_mirror: Callable[[str], Mirror], target_release: str, tmp_path: Path, figure: Figure
) -> None:
    """Its successor of the same host begins at once, while the target still ends the transaction."""
    mirror = make_mirror(target_release)
    dice = random.Random(draw_seed(f"lone mirror into {target_release}"))
    deaths = [point for _ in range(2 * ROUNDS) for point in dice.sample(MIRROR_POINTS, len(MIRROR_POINTS))]
    with open_registry(mirror.source.zookeeper) as registry:
        with mirror.load():
            for number, point in enumerate(deaths):
                die_at(point, tmp_path, f"victim-{number}", mirror, dice)
            with Daemon(tmp_path, "last", mirror.settings) as last:
                last.wait(lambda: bool(registry.offsets(mirror.name, mirror.name)), "the first commits", 60)
        with Daemon(tmp_path, "heir", mirror.settings) as heir:
            mirror.wait_done(registry, heir)
    figure("deaths", len(deaths))
    figure("records", mirror.check())


@on_each_target
def test_a_daemon_stopped_at_each_step_past_its_session_is_fenced(
    make_mirror: Callable[[str], Mirror], target_release: str, tmp_path: Path, figure: Figure
) -> None:
    """It goes on in the middle of a transaction when another daemon has mirrored on: nothing of its own is visible."""
    mirror = make_mirror(target_release)
    stops = 0
    with (
        open_registry(mirror.source.zookeeper) as registry,
        Daemon(tmp_path, "heir", mirror.settings) as heir,
    ):
        with mirror.load():
            heir.wait(lambda: len(heir.owned()) == PARTITIONS, "the heir owns everything", 60)
            for point in MIRROR_POINTS:
                with Daemon(tmp_path, point, mirror.settings, fail_points=f"{point}=stop") as sleeper:
                    assert point == sleeper.wait_stopped(60)
                    heir.wait(lambda: len(heir.owned()) == PARTITIONS, "the heir owns everything again", 60)
                    before = registry.offsets(mirror.name, mirror.name)
                    heir.wait(
                        lambda before=before: all(
                            end > before[key] for key, end in registry.offsets(mirror.name, mirror.name).items()
                        ),
                        "the heir has mirrored on",
                        60,
                    )
                    sleeper.resume()
                    sleeper.wait(lambda: bool(sleeper.owned()), "the sleeper is a member again", 60)
                    stops += 1
                    assert sleeper.terminate() == 0, sleeper.log()[-3000:]
        mirror.wait_done(registry, heir)
    figure("stops", stops)
    figure("records", mirror.check())


@on_each_target
def test_a_target_that_is_killed_and_comes_back_gets_each_record_once(
    make_mirror: Callable[[str], Mirror], target_release: str, tmp_path: Path, figure: Figure
) -> None:
    """In the middle of transactions, as far as it has written them down."""
    mirror = make_mirror(target_release)
    with (
        open_registry(mirror.source.zookeeper) as registry,
        Daemon(tmp_path, "mirror", mirror.settings) as daemon,
    ):
        with mirror.load():
            daemon.wait(lambda: bool(registry.offsets(mirror.name, mirror.name)), "the first commits", 60)
            if mirror.source is not mirror.target:
                mirror.target.kill_broker(0)
            mirror.target.restart_broker(0)
            before = registry.offsets(mirror.name, mirror.name)
            daemon.wait(lambda: registry.offsets(mirror.name, mirror.name) != before, "it goes on", 90)
        mirror.wait_done(registry, daemon)
    figure("records", mirror.check())


@on_each_target
def test_lost_answers_of_every_request_repeat_nothing(
    own_cluster: ClusterFactory, unique: Callable[[str], str], target_release: str, tmp_path: Path, figure: Figure
) -> None:
    """Also those of EndTxn, after which it is not known if the transaction was committed."""
    source, target = own_cluster(SOURCE), make_cluster(target_release)
    with ProxyThread(target.ports[0]) as proxy:
        target.advertise(proxy.port)
        with target:
            mirror = Mirror(source, target, unique("cut"), proxy.address)
            lost = LostAnswers(17, *WRITING)
            with (
                open_registry(source.zookeeper) as registry,
                Daemon(tmp_path, "mirror", mirror.settings) as daemon,
            ):
                with mirror.load():
                    proxy.decide(lost)
                    wait_until(lambda: lost.lost >= LOST, "answers are lost", 120)
                    proxy.heal()
                mirror.wait_done(registry, daemon)
            figure("answers lost", lost.lost)
            figure("records", mirror.check())
