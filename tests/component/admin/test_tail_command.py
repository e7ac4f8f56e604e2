# SPDX-License-Identifier: Apache-2.0
"""``consumerd tail`` on a broker: what it prints, what it says on stderr, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest
from confluent_kafka import Producer

from consumerd.cli.main import main
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from tests.support.damage import flip_byte
from tests.support.embedded import EmbeddedThread
from tests.support.registry import open_registry
from tests.support.waiting import wait_until
from tests.support.zookeeper import run_server

FIRST_MS: Final = 1_714_564_800_000
"""2024-05-01T12:00:00Z; records are a minute apart."""


PATIENCE_S: Final = 60.0

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Output:
    """What a command has printed, and how it has ended."""

    code: int
    out: bytes
    err: str

    @property
    def places(self) -> list[tuple[int, int]]:
        """Partition and offset of each JSON line."""
        rows = map(json.loads, self.out.splitlines())
        return [(row["partition"], row["offset"]) for row in rows]


class Scene:
    """A cluster of one broker, and the command on it."""

    def __init__(self, cluster: EmbeddedThread, output: pytest.CaptureFixture[bytes]) -> None:
        self.cluster = cluster
        self._output = output

    def tail(self, *words: str) -> Output:
        """Run the command in this process to its end."""
        self._output.readouterr()
        code = main(["tail", *words, "-z", self.cluster.zookeeper])
        out, err = self._output.readouterr()
        return Output(code, out, err.decode())

    def start(self, *words: str, stdout: IO[bytes] | int, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the command as a process."""
        command = [sys.executable, "-m", "consumerd", "tail", *words, "-z", self.cluster.zookeeper]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """One broker for the module; each test has a topic of its own."""
    folder = tmp_path_factory.mktemp("tail")
    with run_server() as zookeeper, EmbeddedThread(folder, f"{zookeeper.connect_string}/tail") as cluster:
        yield cluster


@pytest.fixture
def scene(cluster: EmbeddedThread, capfdbinary: pytest.CaptureFixture[bytes]) -> Scene:
    """The command, and what it prints."""
    return Scene(cluster, capfdbinary)


def fill(
    scene: Scene, topic: str, count: int, *, partitions: int = 1, first: int = 0, keys: int = 0, **configs: str
) -> None:
    """Write ``count`` records to each partition: key ``k<n>``, value ``v<n>``, a minute after each other.

    ``keys``: how many different keys there are, if not one for each record.
    """
    if first == 0:
        scene.cluster.create_topic(topic, partitions, **configs)
    # batches that fit into the smallest segment
    producer = Producer({"bootstrap.servers": scene.cluster.bootstrap, "batch.num.messages": 10})
    for number in range(first, first + count):
        for partition in range(partitions):
            key = b"k%d" % (number % keys if keys else number)
            producer.produce(topic, b"v%d" % number, key, partition, timestamp=FIRST_MS + 60_000 * number)
    assert producer.flush(30) == 0


def test_the_last_records_of_each_partition_are_shown(scene: Scene) -> None:
    """Ten, unless more or fewer are asked for; as the sink stdout prints them; and nothing is left in ZooKeeper."""
    with open_registry(scene.cluster.zookeeper) as registry:
        fill(scene, "last", 25, partitions=2)
        before = registry.client.get_children("/consumers")
        shown = scene.tail("last")
        assert (shown.code, shown.err) == (0, "")
        assert sorted(shown.places) == [(partition, offset) for partition in (0, 1) for offset in range(15, 25)]
        assert json.loads(shown.out.splitlines()[0]).keys() >= {"topic", "timestamp", "headers", "key", "value"}
        assert sorted(scene.tail("last", "--from", "-2", "--partition", "1").places) == [(1, 23), (1, 24)]
        assert len(scene.tail("last", "--from", "EARLIEST", "--count", "33").places) == 33
        assert registry.client.get_children("/consumers") == before


def test_ranges_of_offsets_and_times(scene: Scene) -> None:
    """An end is left out itself."""
    fill(scene, "ranges", 30)
    assert scene.tail("ranges", "--from", "4", "--until", "6").places == [(0, 4), (0, 5)]
    hour = scene.tail("ranges", "--at", "2024-05-01T12:10:00Z", "--until", "2024-05-01T12:12:30Z")
    assert hour.places == [(0, 10), (0, 11), (0, 12)]
    assert scene.tail("ranges", "--at", str(FIRST_MS + 60_000 * 28)).places == [(0, 28), (0, 29)]
    late = scene.tail("ranges", "--at", "2024-05-02")
    assert (late.code, late.out) == (0, b"")
    assert late.err == "consumerd: no record in the range; the logs are: ranges/0 [0, 30)\n"


def test_formats(scene: Scene) -> None:
    """Bytes for programs, a line for people."""
    fill(scene, "formats", 3)
    last = ("formats", "--from", "-1", "--format")
    assert scene.tail(*last, "value").out == b"v2\n"
    assert scene.tail(*last, "key-value").out == b"k2\tv2\n"
    assert scene.tail(*last, "key-value", "--key-separator", ": ").out == b"k2: v2\n"
    assert scene.tail(*last, "text").out == b"formats/0\t2\t2024-05-01T12:02:00.000+00:00\tk2\tv2\n"


def test_what_is_not_there_is_told_with_what_is(scene: Scene) -> None:
    """A misspelt topic, a partition too many, an offset that was never given, a topic without a record."""
    fill(scene, "present", 3, partitions=2)
    scene.cluster.create_topic("vacant", 2)
    misspelt = scene.tail("presnt")
    assert (misspelt.code, misspelt.err) == (2, "consumerd: there is no topic presnt; did you mean present?\n")
    partition = scene.tail("present", "--partition", "2")
    assert (partition.code, partition.err) == (2, "consumerd: present has no partition 2; it has 0, 1\n")
    offset = scene.tail("present", "--from", "4", "--partition", "1")
    assert (offset.code, offset.out) == (1, b"")
    assert "present/1: offset 4 is outside the log: log_start_offset is 0, log_end_offset is 3" in offset.err
    vacant = scene.tail("vacant")
    assert (vacant.code, vacant.out) == (0, b"")
    assert vacant.err == "consumerd: vacant is empty: 2 partitions without a record\n"


def test_a_broker_that_does_not_answer_in_time_is_told_as_such(scene: Scene) -> None:
    """It is neither a full disk under stdout nor an empty topic."""
    fill(scene, "slow", 3)
    slow = scene.cluster.arm(lambda faults: faults.delay(ApiKey.METADATA, 10, times=10))
    try:
        shown = scene.tail("slow", "--timeout", "2")
    finally:
        scene.cluster.arm(lambda _: slow.remove())
    assert (shown.code, shown.out, shown.err) == (3, b"", "consumerd: no answer in time; raise --timeout\n")


def test_a_moved_log_start_is_where_the_earliest_record_is(scene: Scene) -> None:
    """Retention has removed whole segments; an offset in them is told with the new start."""
    fill(scene, "expired", 200, segment_bytes="2000", retention_bytes="4000")

    async def expire(cluster: EmbeddedCluster) -> int:
        log = cluster.broker.topics.find_log(TopicPartition.modern("expired", 0))
        assert log is not None
        log.apply_retention()
        return log.start_offset

    start = scene.cluster.do(expire)
    assert start > 0
    assert scene.tail("expired", "--from", "EARLIEST").places == [(0, offset) for offset in range(start, 200)]
    gone = scene.tail("expired", "--from", "0")
    assert gone.code == 1
    assert f"log_start_offset is {start}, log_end_offset is 200; use --from {start}" in gone.err


def test_a_compacted_log_shows_as_many_records_as_were_asked_for(scene: Scene) -> None:
    """And says which offsets have none."""
    fill(scene, "compacted", 100, keys=5, cleanup_policy="compact", segment_bytes="1000")

    async def compact(cluster: EmbeddedCluster) -> bool:
        log = cluster.broker.topics.find_log(TopicPartition.modern("compacted", 0))
        assert log is not None
        return log.compact(min_ratio=0)

    assert scene.cluster.do(compact)
    every = scene.tail("compacted", "--from", "EARLIEST").places
    assert len(every) < 100
    shown = scene.tail("compacted", "--from", f"-{len(every) - 1}")
    assert (shown.code, shown.places) == (0, every[1:])
    assert "no record in the log: compacted, or never assigned" in scene.tail("compacted", "--from", "EARLIEST").err


def test_damage_is_left_out_and_told(scene: Scene) -> None:
    """What is around it is shown; exit code 1."""
    for first in range(0, 30, 10):
        fill(scene, "damaged", 10, first=first)
    (segment,) = scene.cluster.segments("damaged")
    unit = flip_byte(segment, b"v15")
    shown = scene.tail("damaged", "--from", "EARLIEST")
    offsets = [offset for _, offset in shown.places]
    assert offsets == [offset for offset in range(30) if not unit.first <= offset < unit.end]
    assert shown.code == 1
    assert "damaged/0: offset" in shown.err
    assert "left out: " in shown.err


def test_following_shows_new_records_until_it_is_interrupted(scene: Scene, tmp_path: Path) -> None:
    """A broker that restarts, and a leader that moves, hold it up and no more; Ctrl-C is its end."""
    fill(scene, "followed", 5)
    out, err = tmp_path / "out", tmp_path / "err"

    def has(count: int) -> bool:
        return out.read_bytes().count(b"\n") >= count

    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = scene.start("followed", "--from", "-2", "--follow", "--format", "value", stdout=stdout, stderr=stderr)
        try:
            wait_until(lambda: has(2), "the last records", PATIENCE_S)
            fill(scene, "followed", 5, first=5)
            wait_until(lambda: has(7), "new records", PATIENCE_S)
            scene.cluster.restart()
            fill(scene, "followed", 5, first=10)
            wait_until(lambda: has(12), "records after a restart", PATIENCE_S)
            partition = TopicPartition.modern("followed", 0)
            moved = scene.cluster.arm(lambda faults: faults.pretend_leader(partition, BrokerId(7)))
            wait_until(lambda: b"followed/0: waiting: " in err.read_bytes(), "the missing leader is told", PATIENCE_S)
            moved.remove()
            fill(scene, "followed", 5, first=15)
            wait_until(lambda: has(17), "records after a move", PATIENCE_S)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
    assert out.read_bytes() == b"".join(b"v%d\n" % number for number in range(3, 20))
    assert b"followed/0: goes on" in err.read_bytes()
    assert b"Traceback" not in err.read_bytes()


def test_a_reader_that_goes_ends_it_quietly(scene: Scene, tmp_path: Path) -> None:
    """As ``| head`` does, also while no record comes; nothing is said."""
    fill(scene, "piped", 5)
    err = tmp_path / "err"
    with err.open("wb") as stderr:
        process = scene.start("piped", "--follow", stdout=subprocess.PIPE, stderr=stderr)
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b'{"topic":"piped"')
            process.stdout.close()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
    assert err.read_bytes() == b""


def test_an_interrupted_look_that_is_not_over_has_a_code_of_its_own(scene: Scene, tmp_path: Path) -> None:
    """What it printed is not all; a full pipe does not hold up the end."""
    fill(scene, "interrupted", 2000)
    err = tmp_path / "err"
    with err.open("wb") as stderr:
        process = scene.start("interrupted", "--from", "EARLIEST", stdout=subprocess.PIPE, stderr=stderr)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
        finally:
            process.kill()
            process.communicate()
    assert err.read_bytes() == b""
