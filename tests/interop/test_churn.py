# SPDX-License-Identifier: Apache-2.0
"""Members come, go and die under load, and the landed files hold every record once.

Judged by an independent reader of the files (pyarrow and json, none of our code) against the producer's own ledger.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import FULL, ClusterFactory
from tests.support.churn import Members
from tests.support.landing_check import find_faults, log_ends
from tests.support.landing_reader import read_landing
from tests.support.load import SteadyLoad
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 12
RATE = 2000
SECONDS = 60 if FULL else 30


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sink", ["parquet", "jsonl"] if FULL else ["parquet"])
def test_churn_loses_nothing_and_doubles_nothing(
    release: str, sink: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Promises 1 and 2: members started, stopped (SIGTERM) and killed (SIGKILL) every few seconds, for SECONDS."""
    cluster = shared_clusters(release)
    topic, group = unique("churn"), unique("churners")
    cluster.create_topic(topic, PARTITIONS)
    members = Members(cluster.zookeeper, group, topic, tmp_path, sink)
    dice = random.Random(20261121)
    try:
        producer = cluster.ledger_producer(linger_ms="5")
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=RATE / PARTITIONS):
            members.start()
            members.start()
            members.churn(dice, SECONDS)
        ledger = producer.finish()
        wait_until(
            lambda: chain_ends(tmp_path / "landed", topic) == log_ends(ledger),
            "chains that end where logs do",
            60,
            0.5,
        )
    finally:
        members.close()

    assert find_faults(tmp_path / "landed", ledger) == []


def chain_ends(landing: Path, topic: str) -> dict[tuple[str, int], int]:
    """Return where each partition's landed files end, by their metadata."""
    if not landing.exists():
        return {}
    partitions = read_landing(landing).partitions
    return {(one.topic, int(one.partition)): one.end for one in partitions.values() if one.topic == topic and one.end}
