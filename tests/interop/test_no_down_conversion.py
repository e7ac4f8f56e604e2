# SPDX-License-Identifier: Apache-2.0
"""Brokers never convert for us: what they send is what is on their disk, byte for byte.

A broker that is asked for an older format than its log has reads, converts and checks message by message, an order of magnitude
slower than it sends a file; it computes fresh checksums over what may be corrupt, and leaves out headers. 1.0 and 1.1 count
what they convert (KIP-188, ``FetchMessageConversionsPerSec``), which 2.x forgets to do up to 3.4 (KAFKA-14295), but these can be
told to refuse it (KIP-283). An older client is the control: it gets other bytes, makes the metric move, or is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from consumerd.wire.errorcodes import ErrorCode
from tests.interop.conftest import require
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import CODECS, Cluster, Sent, compile_java, java_command, parse_release
from tests.support.raw_client import fetch, raw_client
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.records

Names = Callable[[str], str]

RELEASES: Final = ("0.10.2.2", "1.1.1", "2.8.2")
RECORDS: Final = 100
"""By codec."""

_METRIC: Final = ("kafka.server:type=BrokerTopicMetrics,name=FetchMessageConversionsPerSec", "Count")
_UNIT: Final = struct.Struct(">qi")


class Wire:
    """What a broker sent through a proxy."""

    def __init__(self, proxy: TcpProxy) -> None:
        self.sent = bytearray()
        proxy.on_frame = self._note

    def _note(self, direction: Direction, frame: bytes) -> Action:
        if direction is Direction.TO_CLIENT:
            self.sent += frame
        return Action.FORWARD


@pytest.mark.timeout(150)
@pytest.mark.parametrize("kafka", RELEASES)
async def test_the_daemon_gets_what_is_on_disk(kafka: str, unique: Names, tmp_path: Path) -> None:
    """In the release's own format, compressed and not, and, where there is another one, a log that is kept in the older."""
    require(kafka)
    cluster = Cluster(kafka)
    async with TcpProxy(cluster.ports[0]) as proxy:
        cluster.properties = {"advertised.port": str(proxy.port), "log.message.downconversion.enable": "false"}
        with contextlib.ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, cluster)
            topics = await asyncio.to_thread(_fill, cluster, unique)
            counted = await asyncio.to_thread(_count_conversions, cluster)
            wire = Wire(proxy)
            await asyncio.to_thread(_deliver, cluster, topics, unique("group"), tmp_path)
            for topic in topics:
                units = list(_units_on_disk(cluster, topic))
                assert len(units) > 1
                assert [unit for unit in units if unit not in wire.sent] == []
            await _ask_as_an_older_client(cluster, topics[0])
            if counted is not None:
                # that client's alone, once they were sent
                expected = counted + await asyncio.to_thread(_end_of, cluster, topics[0])
                await asyncio.to_thread(
                    wait_until, lambda: _count_conversions(cluster) == expected, f"{expected} conversions are counted"
                )


def _fill(cluster: Cluster, unique: Names) -> list[str]:
    """Return topics that are filled; the first is in the release's own format, in codecs that older ones have, too."""
    filled = {unique("own"): ["none", "gzip"]}
    if "zstd" in CODECS[cluster.release]:
        filled[unique("zstd")] = ["zstd"]
    for topic in filled:
        cluster.create_topic(topic)
    if _has_batches(cluster):
        filled[topic := unique("older")] = ["none"]
        cluster.create_topic(topic, message_format_version="0.10.2")
    for topic, codecs in filled.items():
        for codec in codecs:
            producer = cluster.ledger_producer(codec, linger_ms="20")
            values = (f"{codec} {number} {'x' * 200}".encode() for number in range(RECORDS))
            producer.send(Sent(topic=topic, partition=0, key=None, value=value) for value in values)
            producer.finish()
    return list(filled)


def _has_batches(cluster: Cluster) -> bool:
    return parse_release(cluster.release) >= (0, 11)


def _counts(cluster: Cluster) -> bool:
    return (1,) <= parse_release(cluster.release) < (2,)


def _refuses(cluster: Cluster) -> bool:
    """Whether it knows the setting by which it refuses to convert."""
    return parse_release(cluster.release) >= (2,)


def _deliver(cluster: Cluster, topics: list[str], group: str, folder: Path) -> None:
    """Run the daemon until it has delivered everything."""
    ends = {topic: _end_of(cluster, topic) for topic in topics}
    settings = settings_for(cluster.zookeeper, group, topics=tuple(topics), sink={"type": "null"})
    with Daemon(folder, "member", settings) as member:
        member.wait(
            lambda: {one["topic"]: one["position"] for one in member.status()["partitions"]} == ends,
            "everything is delivered",
        )
        assert member.terminate() == 0


def _end_of(cluster: Cluster, topic: str) -> int:
    answer = cluster.run_tool(
        "kafka.tools.GetOffsetShell", "--broker-list", cluster.bootstrap, "--topic", topic, "--time", "-1", brisk=True
    )
    return int(answer.strip().rpartition(":")[2])


def _units_on_disk(cluster: Cluster, topic: str) -> Iterator[bytes]:
    """Give the messages, wrappers and batches of a log, as they are stored."""
    for segment in cluster.segments(topic):
        data, at = segment.read_bytes(), 0
        while at < len(data):
            _, size = _UNIT.unpack_from(data, at)
            yield data[at : at + _UNIT.size + size]
            at += _UNIT.size + size


async def _ask_as_an_older_client(cluster: Cluster, topic: str) -> None:
    """Ask in the version before the one that brought the log's format."""
    version = 3 if _has_batches(cluster) else 1
    async with raw_client(cluster.ports[0]) as client:
        answer = await client.ask(fetch(topic), version)
    (partition,) = answer.topics[0].partitions
    received = bytes(partition.record_set or b"")
    if _refuses(cluster):
        assert (partition.error_code, received) == (ErrorCode.UNSUPPORTED_VERSION, b"")
    else:
        assert partition.error_code == 0
        assert len(received) > 0
        assert [unit for unit in _units_on_disk(cluster, topic) if unit in received] == []


def _count_conversions(cluster: Cluster) -> int | None:
    """Return how many records the broker has converted for those who fetch; None where it does not say."""
    if not _counts(cluster):
        return None
    classes = compile_java(cluster.release, [Path(__file__).with_name("BrokerMetric.java")])
    pid = str(cluster.processes["broker-0"].pid)
    command = java_command(cluster.release, "BrokerMetric", pid, *_METRIC, classes=classes, brisk=True)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return int(done.stdout)
