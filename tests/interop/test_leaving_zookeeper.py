# SPDX-License-Identifier: Apache-2.0
"""A real cluster's recorded identities, and a daemon that has the brokers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.interop.conftest import ClusterFactory
from tests.support.coordinated_faults import acknowledged
from tests.support.kafka import Sent
from tests.support.landing_job import LandingJob
from tests.support.leaving_zookeeper import Leaving
from tests.support.ledger import Ledger

pytestmark = [pytest.mark.records, pytest.mark.timeout(300), pytest.mark.drawn]

PARTITIONS: Final = 3
EACH: Final = 200


def test_chains_and_positions_go_on_with_the_recorded_identities(
    shared_clusters: ClusterFactory, tmp_path: Path
) -> None:
    """Every record lands once, in the chain that was begun with ZooKeeper.

    Brokers of 2.8 write topic ids to ZooKeeper.
    """
    cluster = shared_clusters("2.8.2")
    job = LandingJob.make(cluster, "leaving", tmp_path, partitions=PARTITIONS)  # type: ignore[arg-type]  # as Embedded
    leaving = Leaving(job=job, bootstrap=cluster.bootstrap)
    producer = Ledger(cluster.bootstrap, "lz4")

    def send() -> None:
        for topic in job.topics:
            producer.send(Sent(topic, number % PARTITIONS, b"k", b"%d" % number) for number in range(EACH))

    send()
    with leaving.with_zookeeper() as member:
        member.wait(lambda: acknowledged(member) == 2 * EACH, "all has landed", 60)
        assert 0 == member.terminate()
    before = [leaving.chains(topic) for topic in job.topics]
    file = leaving.record()
    send()
    ledger = producer.finish()
    with leaving.without_zookeeper("after", file) as member:
        member.wait(lambda: acknowledged(member) == 4 * EACH, "it goes on", 60)
        assert 0 == member.terminate()

    assert set(job.topics) <= {one["topic"] for one in json.loads(file.read_text())["topics"]}
    assert job.find_faults(ledger) == []
    assert before == [leaving.chains(topic) for topic in job.topics]
    assert {1} == {len(chains) for topic in before for chains in topic}
