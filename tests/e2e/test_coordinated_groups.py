# SPDX-License-Identifier: Apache-2.0
"""Daemons whose group a broker coordinates: members come, stop, stall and die under load, and every record lands once.

Judged as in ``test_group_of_daemons``: by an independent reader of the files against the ledger of a producer that is not
ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.coordinated_faults import acknowledged, owned
from tests.support.coordinated_faults import share as share_out
from tests.support.embedded import EmbeddedThread
from tests.support.foreign.aiokafka_client import AiokafkaMember
from tests.support.foreign.librdkafka import Librdkafka, LibrdkafkaMember
from tests.support.foreign.membership import Driven
from tests.support.landing_check import log_ends
from tests.support.landing_job import LandingJob
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad
from tests.support.seeds import some_of

pytestmark = pytest.mark.records

PARTITIONS: Final = 6
PER_PARTITION: Final = 40
COORDINATED: Final[dict[str, dict[str, Any]]] = {
    "group": {"membership": "kafka", "session_timeout_ms": 6000, "assignor": "roundrobin"},
    "offsets": {"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200},
}
FOREIGN: Final = {"aiokafka": AiokafkaMember, "confluent-kafka": LibrdkafkaMember}


share = partial(share_out, partitions=2 * PARTITIONS)


def load(job: LandingJob, producer: Ledger) -> SteadyLoad:
    # other clients' members read numbers
    return SteadyLoad(
        producer, dict.fromkeys(job.topics, PARTITIONS), per_second=PER_PARTITION, make_value=b"%d".__mod__
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize("client", some_of("clients of a mixed group", [*FOREIGN], 1))
def test_members_of_two_clients_come_go_and_die_and_each_record_lands_once(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path, client: str
) -> None:
    """Two daemons, a member of another client that commits nothing, a restart, a SIGKILL: each record lands once."""
    job = LandingJob.make(cluster, unique("coordinated"), tmp_path, partitions=PARTITIONS)
    producer = Ledger(cluster.bootstrap, "lz4")
    with contextlib.ExitStack() as running:
        one, two = (running.enter_context(job.daemon(name, **COORDINATED)) for name in ("one", "two"))
        with load(job, producer):
            share(one, two)
            foreign = Driven(partial(FOREIGN[client], cluster.bootstrap, job.group, job.parquet, "foreign"))
            foreign.wait(lambda: bool(foreign.assigned), "the other client has its share")
            share(one, two, partitions=2 * PARTITIONS - len(foreign.assigned))
            mine = {int(number) for topic, number in owned(one, two) if topic == job.parquet}
            assert not mine & foreign.assigned
            foreign.leave()
            share(one, two)
            assert one.terminate() == 0
            three = running.enter_context(job.daemon("three", **COORDINATED))
            share(two, three)
            two.kill()
            share(three)
            before = acknowledged(three)
            three.wait(lambda: acknowledged(three) > before + 200, "it goes on")
        ledger = producer.finish()
        job.wait_landed(ledger)
        status = three.status()
        assert three.terminate() == 0
    asked = Librdkafka(cluster.bootstrap)
    committed = {topic: asked.committed(job.group, topic, PARTITIONS) for topic in job.topics}

    assert job.find_faults(ledger) == []
    assert log_ends(ledger) == {(topic, one): at for topic in job.topics for one, at in committed[topic].items()}
    assert status["coordination"]["leader"]
    assert status["coordination"]["assignor"] == "roundrobin"
    assert status["coordination"]["phase"] == "fresh"
    assert status["consumer_id"] == status["coordination"]["member_id"]
    assert three.events("ownership_lost") == []


@pytest.mark.timeout(120)
def test_a_member_that_stalls_past_its_session_drops_all_and_repeats_nothing(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """SIGSTOP: the other one has gone on with its partitions, and it must find out before it writes or commits."""
    job = LandingJob.make(cluster, unique("frozen"), tmp_path, partitions=PARTITIONS)
    producer = Ledger(cluster.bootstrap)
    with job.daemon("stalled", **COORDINATED) as stalled, job.daemon("other", **COORDINATED) as other:
        with load(job, producer):
            share(stalled, other)
            before = acknowledged(stalled)
            stalled.wait(lambda: acknowledged(stalled) > before + 100, "it lands records")
            stalled.stop()
            share(other)
            before = acknowledged(other)
            other.wait(lambda: acknowledged(other) > before + 200, "the other goes on with all of them")
            stalled.resume()
            share(stalled, other)
        ledger = producer.finish()
        job.wait_landed(ledger)
        assert stalled.terminate() == 0
        assert other.terminate() == 0
        lost = stalled.events("ownership_lost")

    assert job.find_faults(ledger) == []
    assert len(lost) == PARTITIONS
    assert {"UNKNOWN_MEMBER_ID" in one["reason"] for one in lost} == {True}


@pytest.mark.timeout(90)
def test_a_member_in_zookeeper_waits_for_those_that_a_broker_coordinates(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Two kinds of members of one name would read everything twice."""
    job = LandingJob.make(cluster, unique("both"), tmp_path, partitions=PARTITIONS)
    with job.daemon("coordinated", **COORDINATED) as coordinated:
        share(coordinated)
        offsets = {"storage": "kafka", "dual_commit": False}
        with job.daemon("registered", offsets=offsets) as registered:
            registered.wait(
                lambda: "set group.membership: kafka" in "".join(registered.status()["not_ready"]), "it waits"
            )
            assert coordinated.terminate() == 0
            registered.wait(lambda: len(registered.owned()) == 2 * PARTITIONS, "it joins", 60)
            assert registered.terminate() == 0
