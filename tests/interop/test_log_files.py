# SPDX-License-Identifier: Apache-2.0
"""Our logs are Kafka's: its tools read what we write, and brokers and we take over each other's directories."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition
from tests.interop.conftest import ClusterFactory, require
from tests.support.kafka import CODECS, Cluster, Sent, four_letter, java_command
from tests.support.log_check import walk
from tests.support.logs import LogRig, read_records, record_set

pytestmark = pytest.mark.records

CODEC_NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}
MAGICS = {"0.8.2.2": 0, "0.9.0.1": 0, "0.10.2.2": 1, "0.11.0.3": 2, "1.1.1": 2}


def dump(release: str, folder: Path) -> str:
    """Have Kafka's DumpLogSegments read all files of a partition."""
    endings = ("*.log", "*.index") if release.startswith("0.8") else ("*.log", "*.index", "*.timeindex")
    files = ",".join(str(path) for ending in endings for path in sorted(folder.glob(ending)))
    command = java_command(
        release, "kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", files, brisk=True
    )
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=50).stdout


@pytest.mark.parametrize(
    ("reader", "magic"), [("0.8.2.2", 0), ("1.1.1", 0), ("1.1.1", 1), ("1.1.1", 2)], ids=lambda value: f"{value}"
)
def test_kafkas_own_tool_reads_what_we_write(tmp_path: Path, reader: str, magic: int) -> None:
    """Offsets, values and both indexes, in every codec of the format, over several segments."""
    require(reader)
    settings = LogSettings(segment_bytes=3000, index_interval_bytes=300, message_format=magic)
    rig = LogRig(files=OsLogFiles(), path=tmp_path, settings=settings)
    rig.open()
    for number in range(60):
        rig.now_ms += 7
        rig.append(1 + number % 4, size=60 + number, codec=number % 4 if number < 50 else 0)
    rig.close()
    assert len(list(rig.folder.glob("*.log"))) > 2
    text = dump(reader, rig.folder)
    found = re.findall(r"^(?:\| )?offset: (\d+) position: \d+ .*payload: (\S*)$", text, re.MULTILINE)
    assert [(str(offset), value.decode()) for offset, (_, value) in enumerate(rig.acknowledged)] == found
    assert "isvalid: false" not in text
    if magic:
        times = re.findall(r"CreateTime: (\d+) isvalid: true keysize", text)
        assert [str(timestamp) for timestamp, _ in rig.acknowledged] == times
    # the tool compares with the first message in a wrapper, whose offset cannot be known without reading it
    wrapped = (
        {unit.offset for path in rig.folder.glob("*.log") for unit in walk(path.read_bytes())} if magic < 2 else ()
    )
    for wrong in ("Mismatches in :", "out of order", "not found", "could not be found"):
        for line in _section(text, wrong):
            offsets = [int(number) for number in re.findall(r"\d+", line)]
            assert wrapped, line
            assert offsets[0] in wrapped, line


def _section(text: str, title: str) -> list[str]:
    """Return the lines below a title that the tool prints when it has found something wrong."""
    lines = text.splitlines()
    found: list[str] = []
    for number, line in enumerate(lines):
        if title in line:
            for following in lines[number + 1 :]:
                if not following.startswith("  "):
                    break
                found.append(following)
    return found


def open_log(cluster: Cluster, topic: str) -> tuple[LogDirectory, LogRig]:
    """Open the stopped broker's directory."""
    settings = LogSettings(
        segment_bytes=20_000, index_interval_bytes=500, message_format=MAGICS[cluster.release], max_message_bytes=15_000
    )
    rig = LogRig(files=OsLogFiles(), path=cluster.directory / "log-0", settings=settings)
    rig.directory = LogDirectory.open(rig.path, files=rig.files, now_ms=lambda: int(time.time() * 1000))
    partition = TopicPartition.modern(topic, 0)
    assert partition in rig.directory.find_partitions()
    rig.log = rig.directory.open_log(partition, settings)
    return rig.directory, rig


def check_same(rig: LogRig, ledger: Mapping[int, tuple[bytes | None, bytes | None]]) -> None:
    """See that the log has what was acknowledged, and finds it by time as a look at every record does."""
    there = list(read_records(rig.log, max_bytes=3000))
    assert ledger == {record.offset: (record.key, record.value) for record in there}
    if rig.settings.message_format:
        for wanted in {record.timestamp for record in there[::37]}:
            first = next((one.timestamp, one.offset) for one in there if one.timestamp >= wanted)
            assert first == rig.log.find_offset(wanted)


def append_ours(rig: LogRig, ledger: dict[int, tuple[bytes | None, bytes | None]], name: str, release: str) -> None:
    """Append in every codec that the release reads."""
    for number in range(60):
        codec = CODEC_NUMBERS[CODECS[release][number % len(CODECS[release])]]
        keys = [f"{name}{number}.{index}".encode() for index in range(5)]
        values = [key * 40 for key in keys]
        times = [int(time.time() * 1000)] * 5
        appended = rig.log.append(
            record_set(values, keys=keys, magic=rig.settings.message_format, codec=codec, timestamps=times)
        )
        ledger.update(enumerate(zip(keys, values, strict=True), appended.base_offset))


def consume(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """Read a topic from its beginning with the release's console consumer; returns the values."""
    text = cluster.run_tool(
        "kafka.tools.ConsoleConsumer", "--zookeeper", cluster.zookeeper, "--topic", topic, "--from-beginning",
        "--max-messages", str(count), brisk=True,
    )  # fmt: skip
    return [line.encode() for line in text.splitlines() if not line.startswith("Processed a total")]


def wait_unregistered(cluster: Cluster) -> None:
    """Wait until the session of a killed broker has expired: another one cannot register before."""
    deadline = time.monotonic() + 20
    while b"/brokers/ids/0" in four_letter(cluster.zk_port, b"dump"):
        assert time.monotonic() < deadline, "the session of the killed broker goes on"
        time.sleep(0.05)


@pytest.mark.timeout(150)
def test_brokers_and_we_take_over_each_others_directories(
    release: str, own_cluster: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """Whatever wrote a log, and however it ended, the other one goes on with it: nothing is lost, nothing is rebuilt."""
    cluster = own_cluster(release, properties={"zookeeper.session.timeout.ms": "1500"})
    topic = unique("handed")
    cluster.create_topic(topic, segment_bytes="20000", index_interval_bytes="500")
    ledger: dict[int, tuple[bytes | None, bytes | None]] = {}

    def produce(codec: str, name: str) -> None:
        producer = cluster.ledger_producer(codec)
        producer.send(
            Sent(topic, 0, f"{name}{number}".encode(), f"{name}{number}".encode() * 40) for number in range(400)
        )
        ledger.update((key[2], (sent.key, sent.value)) for key, sent in producer.finish().items())

    for codec in CODECS[release]:
        produce(codec, f"theirs-{codec}-")
    cluster.stop("broker-0", timeout_s=30)
    directory, rig = open_log(cluster, topic)
    assert rig.log.segment_count > 2
    check_same(rig, ledger)
    append_ours(rig, ledger, "ours", release)
    check_same(rig, ledger)
    directory.close()

    cluster.start_broker(0)
    cluster.wait_topic(topic, 1)
    assert sorted(value for _, value in ledger.values()) == sorted(consume(cluster, topic, len(ledger)))
    log = cluster.log_of("broker-0").lower()
    assert "corrupt" not in log
    assert "rebuil" not in log
    produce("none", "again")
    cluster.kill_broker(0)

    directory, rig = open_log(cluster, topic)
    check_same(rig, ledger)
    append_ours(rig, ledger, "unclean", release)
    rig.log.discard()  # as if we were killed
    with pytest.raises(ExceptionGroup):
        directory.close()
    assert not (rig.path / ".kafka_cleanshutdown").exists()

    wait_unregistered(cluster)
    cluster.start_broker(0)
    cluster.wait_topic(topic, 1)
    assert sorted(value for _, value in ledger.values()) == sorted(consume(cluster, topic, len(ledger)))
