# SPDX-License-Identifier: Apache-2.0
"""A group on two brokers of Jafka: its nodes in ZooKeeper, shares by the rule, and what came out of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support import jafka
from tests.support.daemon import Daemon, settings_for
from tests.support.jafka import JafkaCluster, JafkaMember, dump
from tests.support.landing_reader import read_landing
from tests.support.tools import require_jars

GROUP: Final = "lake"
TOPIC: Final = "orders"
BROKERS: Final = 2
PARTITIONS: Final = 3
KEYS: Final = sorted(f"{broker}-{number}" for broker in range(BROKERS) for number in range(PARTITIONS))
"""All partitions of the topic, as ZooKeeper names them, in the order of the rule."""


@contextmanager
def running_brokers() -> Iterator[JafkaCluster]:
    """Start both brokers; without Jafka's jars, the test is skipped with the command that provides them."""
    with require_jars():
        jafka.jars()
    with JafkaCluster(BROKERS, partitions=PARTITIONS) as running:
        yield running


def children(cluster: JafkaCluster, path: str) -> dict[str, str]:
    """Return names and contents of a node's children."""
    nodes = dump(cluster.zookeeper, path)
    return {at.removeprefix(f"{path}/"): data.decode() for at, (data, _, _) in nodes.items() if at != path}


def owners(cluster: JafkaCluster) -> dict[str, str]:
    """Return the thread that owns each partition."""
    return children(cluster, f"/consumers/{GROUP}/owners/{TOPIC}")


def positions(cluster: JafkaCluster) -> dict[str, int]:
    """Return the position of each partition that has one."""
    return {name: int(text) for name, text in children(cluster, f"/consumers/{GROUP}/offsets/{TOPIC}").items()}


def assign(threads: Iterable[str], keys: Sequence[str]) -> dict[str, str]:
    """Return the owner of each partition, as the document says: chunks of the sorted names, the first ones larger."""
    names = sorted(threads)
    each, more = divmod(len(keys), len(names))
    counts = [each + (number < more) for number in range(len(names))]
    return dict(zip(keys, (name for name, count in zip(names, counts, strict=True) for _ in range(count)), strict=True))


def has_settled(cluster: JafkaCluster, daemons: int, streams: int, keys: Sequence[str] = KEYS) -> bool:
    """Return True if all partitions are owned as the algorithm says by this many of ours and this many Java streams."""
    ids = children(cluster, f"/consumers/{GROUP}/ids")
    threads = [f"{name}-{number}" for name, text in ids.items() for number in range(_count_streams(text))]
    return len(threads) == daemons + streams and owners(cluster) == assign(threads, keys)


def _count_streams(registration: str) -> int:
    """Return the number of streams that a member's node tells, in the JSON of 0.7."""
    return int(json.loads(registration)[TOPIC])


def make_settings(cluster: JafkaCluster, folder: Path) -> dict[str, Any]:
    """Return the settings of one of ours, with one stream."""
    return settings_for(
        cluster.zookeeper,
        GROUP,
        topics=(TOPIC,),
        sink={"type": "jsonl", "path": str(folder / "landed"), "roll_ms": 200},
        offsets={"commit_interval_ms": 100},
        group={"session_timeout_ms": 4000},
    )


def start(cluster: JafkaCluster, folder: Path, name: str) -> Daemon:
    """Start one of ours."""
    return Daemon(folder, name, make_settings(cluster, folder))


def count_values(java: Iterable[JafkaMember], folder: Path) -> Counter[str]:
    """Return how often each value came out: at the Java members, and in our files."""
    found = Counter(value for member in java for value in member.values())
    if (folder / "landed").exists():
        for partition in read_landing(folder / "landed").partitions.values():
            assert partition.problems == []
            found.update((record.value or b"").decode() for record in partition.records)
    return found
