# SPDX-License-Identifier: Apache-2.0
"""The sink http in the installed command: nothing is lost over a kill, and what comes twice can be told by its key."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.http_receiver import HttpReceiverThread, Received, Reply

pytestmark = pytest.mark.records

PARTITIONS = 2
COUNT = 4_000


def coordinates(one: Received) -> list[tuple[int, int]]:
    return [(record["partition"], record["offset"]) for record in one.records]


def list_records(received: list[Received]) -> list[tuple[int, int]]:
    return [coordinate for one in list(received) for coordinate in coordinates(one)]


def read_positions(cluster: EmbeddedThread, group: str, topic: str) -> list[int]:
    with closing(KazooClient(cluster.zookeeper)) as client:
        client.start()
        folder = f"/consumers/{group}/offsets/{topic}"
        found = [
            int(client.get(f"{folder}/{number}")[0]) if client.exists(f"{folder}/{number}") else 0
            for number in range(PARTITIONS)
        ]
        client.stop()
    return found


@pytest.mark.timeout(180)
def test_kill_loses_nothing_and_repeats_only_what_was_not_acknowledged(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The last request was received, and its response lost: it comes again with the same key and the same records."""
    topic, group = unique("http"), unique("http")
    cluster.create_topic(topic, PARTITIONS)
    cluster.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(COUNT)))
    answered, held = 0, asyncio.Event()

    def answer(_: Received) -> Reply:
        nonlocal answered
        answered += 1
        if answered % 5 == 0:
            return Reply(status=503)
        return Reply(until=held if answered > 12 else None)

    with HttpReceiverThread(rule=answer) as thread:
        receiver = thread.receiver
        settings = settings_for(
            cluster.zookeeper,
            group,
            topics=(topic,),
            # the time of a request is over only at the end of the topic, so that keys are repeated exactly
            sink={"type": "http", "url": receiver.url, "batch_records": 100, "batch_ms": "20s", "compression": "gzip"},
            offsets={"commit_interval_ms": 100},
        )
        with Daemon(tmp_path, "killed", settings) as daemon:
            daemon.wait(lambda: answered > 12 and receiver.in_flight > 0, "a request under way")
            daemon.kill()
        thread.set(held)
        positions = read_positions(cluster, group, topic)
        before = list(receiver.received)
        receiver.rule = lambda _: Reply()
        with Daemon(tmp_path, "next", settings) as daemon:
            daemon.wait(lambda: len(set(list_records(receiver.accepted))) == COUNT, "all records", timeout_s=90)
            daemon.wait(lambda: [one["lag"] for one in daemon.status()["partitions"]] == [0, 0], "everything committed")
            scrape = daemon.get("/metrics")[1]
            assert daemon.terminate() == 0
        after = receiver.received[len(before) :]

    counts = Counter(list_records(receiver.accepted))
    values = {record["value"] for one in receiver.accepted for record in one.records}
    assert values == {f"v{number}" for number in range(COUNT)}
    repeated = {coordinate for coordinate, count in counts.items() if count > 1}
    assert repeated
    # not below the committed positions
    assert all(offset >= positions[partition] for partition, offset in repeated)
    known = {one.key: coordinates(one) for one in before}
    for one in after:
        # a request that holds a repeated record is one that came before, as a whole
        if repeated & set(coordinates(one)):
            assert known[one.key] == coordinates(one)
    for partition in range(PARTITIONS):
        first = [offset for one in after for number, offset in coordinates(one) if number == partition]
        assert first == list(range(positions[partition], first[-1] + 1))
    assert 'consumerd_sink_request_seconds_count{result="2xx",sink="out"}' in scrape
    assert 'consumerd_sink_requests_in_flight{sink="out"} 0.0' in scrape
    told = "".join((tmp_path / f"{name}.log").read_text() for name in ("killed", "next"))
    assert "SECRET" not in told
    assert "sink_faulted" not in told
