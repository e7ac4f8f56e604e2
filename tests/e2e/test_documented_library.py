# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/library.md, run as they stand there, each as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.wire.compression import Codec
from tests.support.documents import DOCS, TOP, Block, find_blocks
from tests.support.embedded import EmbeddedThread
from tests.support.embedded_legacy import LegacyThread
from tests.support.waiting import wait_until

HERE: Final = "tests/e2e/test_documented_library.py"
BLOCKS: Final = list(find_blocks(DOCS / "library.md", test=HERE))
COUNT: Final = 100
"""Records of each topic, in partition 0 of ``orders``."""

pytestmark = pytest.mark.timeout(160)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program prints; one that does not end by itself is interrupted as soon as it has printed that."""

    says: str
    ends: bool = True
    code: int = 0


PROGRAMS: Final[Mapping[str, Program]] = {
    # the first line of main, or the last line of the program, tells them apart
    '"group": {"id": "invoices"}': Program(says=r"^0 99 b'k' b'value'$", ends=False),
    '"group": {"id": "columns"}': Program(says=r"^orders/0 0 \d{3} \d+ \[.*'offset'.*'value'", ends=False),
    '"group": {"id": "workers"}': Program(says=r"(?=.*^clicks 0 99$)(?=.*^orders 0 99$)", ends=False),
    '"group": {"id": "without-zookeeper"': Program(says=r"^0 99 b'value'$", ends=False),
    'PartitionKey.parse("0-1")': Program(says=r"^0 1 0 0 b'value-0'$.*^0 1 \d+ 2 b'value-99'$.*^go on at \d+$"),
    "open_simple_consumer": Program(
        says=r"^from 0 to \d+, segments begin at \[0\]$.*^0 b'k' b'value'$.*^go on at \d+ of \d+$.*"
        r"^1 fetched, \['Fetch at broker .*OFFSET_OUT_OF_RANGE.*'\]$.*^OFFSET_OUT_OF_RANGE$"
    ),
    "by_zookeeper": Program(says=r"^orders/\d at \d+$.*^100 acknowledged$"),
    "transactional_id": Program(says=r"^transaction 0 has ended$.*^transaction 2 has ended$"),
    "secured": Program(says=""),
    "open_envelope": Program(says=r"^orders/3 at 120: {\"order\": 17}$.*^120$"),
}


@pytest.fixture(scope="module")
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """A broker with the topics of the page."""
    with EmbeddedThread(tmp_path_factory.mktemp("library"), f"{zookeeper.connect_string}/library") as broker:
        _fill(broker)
        yield broker


@pytest.fixture(scope="module")
def legacy_cluster(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LegacyThread]:
    """A broker of Kafka 0.7 with messages in partition 1 of ``orders``, of which the last three are one compressed."""
    chroot = f"{zookeeper.connect_string}/legacy-library"
    values = [b"value-%d" % number for number in range(COUNT)]
    with LegacyThread(tmp_path_factory.mktemp("legacy"), chroot, nodes=1, num_partitions=2) as brokers:
        brokers.send("orders", values[:-3], partition=1)
        brokers.send("orders", values[-3:], partition=1, codec=Codec.GZIP)
        yield brokers


@pytest.fixture(scope="module")
def kraft_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """A broker of a cluster without ZooKeeper, with the same topics."""
    with EmbeddedThread(tmp_path_factory.mktemp("kraft"), None) as broker:
        _fill(broker)
        yield broker


def _fill(broker: EmbeddedThread) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for topic, partitions in {"orders": 2, "clicks": 1}.items():
        broker.create_topic(topic, partitions)
        for _ in range(COUNT):
            producer.produce(topic, b"value", b"k", partition=0)
    assert producer.flush(60) == 0


def find_program(block: Block) -> Program:
    return next(program for mark, program in PROGRAMS.items() if mark in block.text)


def fill_in(request: pytest.FixtureRequest, text: str) -> str:
    """Return a program with the addresses of the cluster that it is written for."""
    if "PartitionKey.parse" in text:
        legacy: LegacyThread = request.getfixturevalue("legacy_cluster")
        return text.replace("zk1:2181/kafka", legacy.zookeeper)
    is_without_zookeeper = '"cluster": {"bootstrap"' in text
    cluster: EmbeddedThread = request.getfixturevalue("kraft_cluster" if is_without_zookeeper else "cluster")
    return text.replace("zk1:2181/kafka", cluster.zookeeper).replace("broker1:9092", cluster.bootstrap)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_documented_programs_do_what_they_say(request: pytest.FixtureRequest, block: Block, tmp_path: Path) -> None:
    """What a reader copies runs."""
    program = find_program(block)
    text = fill_in(request, block.text)
    (tmp_path / "program.py").write_text(text)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CONSUMERD_")}
    environment |= {"PYTHONPATH": str(TOP), "PYTHONUNBUFFERED": "1"}
    out, errors = tmp_path / "out", tmp_path / "err"

    def has_said() -> bool:
        return re.search(program.says, out.read_text(), re.MULTILINE | re.DOTALL) is not None

    with out.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "program.py"], env=environment, cwd=tmp_path, stdout=stdout, stderr=stderr
        )
        try:
            if program.ends:
                process.wait(100)
            else:
                wait_until(lambda: has_said() or process.poll() is not None, "the program says it", timeout_s=100)
                process.send_signal(signal.SIGINT)
            # Python ends a process that SIGINT has interrupted by the same signal
            code = process.wait(40)
        except (TimeoutError, subprocess.TimeoutExpired) as slow:
            raise AssertionError(f"{slow}\n{out.read_text()[-2000:]}\n{errors.read_text()[-4000:]}") from slow
        finally:
            process.kill()
            process.wait()

    told = errors.read_text()
    assert code == (0 if program.ends else -signal.SIGINT), told[-2000:]
    assert has_said(), f"{out.read_text()[-2000:]}\n{told[-2000:]}"
    assert "Traceback" not in told or "KeyboardInterrupt" in told


def test_each_expectation_is_of_a_program() -> None:
    """One that the page has no more says nothing."""
    assert len(PROGRAMS) == len(BLOCKS)
    assert [mark for mark in PROGRAMS if not any(mark in block.text for block in BLOCKS)] == []
