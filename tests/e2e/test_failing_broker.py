# SPDX-License-Identifier: Apache-2.0
"""A broker that answers late, wrongly, half or not at all while records are landed: each is landed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from consumerd.embedded.faults import ArmedFault, BrokerFaults
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent
from tests.support.landing_check import check_landed_with_resent
from tests.support.landing_job import LandingJob
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad

pytestmark = pytest.mark.records

PARTITIONS = 2
PER_PARTITION = 100
NOBODY = BrokerId(7)

Arm = Callable[[BrokerFaults], ArmedFault]


def cut(byte: int) -> Arm:
    return lambda faults: faults.close_at(ApiKey.FETCH, byte)


def refuse(code: ErrorCode) -> Arm:
    return lambda faults: faults.error(ApiKey.FETCH, code, times=3)


AT_A_FETCH: Final[dict[str, Arm]] = {
    **{f"cut after {byte} bytes": cut(byte) for byte in (0, 3, 7, 8, 60, 150)},
    "another request's answer": lambda faults: faults.wrong_correlation_id(ApiKey.FETCH),
    "no frame has that size": lambda faults: faults.oversize(ApiKey.FETCH),
    "a size below zero": lambda faults: faults.oversize(ApiKey.FETCH, -5),
    "a byte of a record changed": lambda faults: faults.corrupt(ApiKey.FETCH),
    "late": lambda faults: faults.delay(ApiKey.FETCH, 0.7),
    **{
        code.name: refuse(code)
        for code in (
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
    },
}
"""What goes wrong with an answer to Fetch; ``test_cut_answers.py`` cuts it at every byte."""

AT_THE_NEXT_CONNECTION: Final[dict[str, Arm]] = {
    "versions cut": lambda faults: faults.close_at(ApiKey.API_VERSIONS, 9),
    "versions of another request": lambda faults: faults.wrong_correlation_id(ApiKey.API_VERSIONS),
    "metadata cut": lambda faults: faults.close_at(ApiKey.METADATA, 20),
    "metadata refused": lambda faults: faults.error(ApiKey.METADATA, ErrorCode.LEADER_NOT_AVAILABLE),
}
"""What goes wrong when the client, which has lost its connection or its leader, looks for them."""


@pytest.fixture
def healed(cluster: EmbeddedThread) -> Iterator[EmbeddedThread]:
    """The broker, which nothing is wrong with afterwards."""
    yield cluster
    cluster.arm(lambda faults: faults.clear())


def acknowledged(member: Daemon) -> dict[tuple[str, str], int]:
    return {(one["topic"], one["partition"]): one["acknowledged"] or 0 for one in member.status()["partitions"]}


def wait_for_more(member: Daemon, what: str) -> None:
    """Wait until each partition has landed more records than it has now."""
    before = acknowledged(member)

    def come_on() -> bool:
        now = acknowledged(member)
        return len(now) == 2 * PARTITIONS and all(now[one] > before.get(one, 0) + 10 for one in now)

    member.wait(come_on, f"it goes on after: {what}")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_whatever_is_wrong_with_an_answer_each_record_lands_once(
    healed: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """One fault after the other, under load; each partition goes on after each."""
    job = LandingJob.make(healed, unique("failing"), tmp_path, partitions=PARTITIONS, roll_ms=200)
    producer = Ledger(healed.bootstrap, "lz4")
    with job.daemon("member", cluster={"metadata_backoff_ms": 50}) as member:
        with SteadyLoad(producer, dict.fromkeys(job.topics, PARTITIONS), per_second=PER_PARTITION):
            wait_for_more(member, "nothing")
            for name, arm in AT_A_FETCH.items():
                fault = healed.arm(arm)
                member.wait(lambda fault=fault: fault.left == 0, name)
                wait_for_more(member, name)
            for name, arm in AT_THE_NEXT_CONNECTION.items():
                fault = healed.arm(arm)
                healed.arm(cut(0))
                healed.arm(refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
                member.wait(lambda fault=fault: fault.left == 0, name)
                wait_for_more(member, name)
            errors = member.get("/metrics")[1]
        ledger = producer.finish()
        job.wait_landed(ledger)
        assert member.get("/readyz")[0] == 200
        assert member.terminate() == 0

    assert job.find_faults(ledger) == []
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE):
        assert f'error="{code.name}"' in errors
    assert member.events("range_skipped") == []


@pytest.mark.timeout(90)
def test_a_leader_that_has_moved_to_a_broker_that_is_not_there_is_waited_for(
    healed: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Its partition pauses, the others do not, and it goes on where it was."""
    job = LandingJob.make(healed, unique("elsewhere"), tmp_path, partitions=PARTITIONS, roll_ms=200)
    flowing, paused = Ledger(healed.bootstrap), Ledger(healed.bootstrap)
    with job.daemon("member") as member:
        with SteadyLoad(flowing, {job.parquet: PARTITIONS}, per_second=PER_PARTITION):
            paused.send(Sent(job.jsonl, 0, None, b"before %d" % one) for one in range(50))
            before = dict(paused.finish())
            member.wait(lambda: acknowledged(member).get((job.jsonl, "0")) == 50, "what came before has landed")
            healed.arm(lambda faults: faults.pretend_leader(TopicPartition.modern(job.jsonl, 0), NOBODY))
            member.wait(lambda: "NOT_LEADER_OR_FOLLOWER" in member.get("/metrics")[1], "it hears of it")
            landed = acknowledged(member)[job.parquet, "0"]
            member.wait(lambda: acknowledged(member)[job.parquet, "0"] > landed + 100, "the others go on")
            healed.arm(lambda faults: faults.clear())
            paused.send(Sent(job.jsonl, 0, None, b"behind %d" % one) for one in range(50))
            ledger = {**before, **paused.finish()}
        ledger |= flowing.finish()
        job.wait_landed(ledger)
        assert member.terminate() == 0

    assert job.find_faults(ledger) == []


@pytest.mark.timeout(90)
def test_a_broker_that_is_restarted_is_found_again(
    healed: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """In the middle of everything: connections end, its node goes and comes, its logs are recovered."""
    job = LandingJob.make(healed, unique("restarted"), tmp_path, partitions=PARTITIONS)
    producer = Ledger(healed.bootstrap, "gzip", max_in_flight="1", retry_backoff_ms="100")
    with job.daemon("member") as member:
        with SteadyLoad(producer, dict.fromkeys(job.topics, PARTITIONS), per_second=PER_PARTITION):
            wait_for_more(member, "nothing")
            for number in range(2):
                healed.restart()
                wait_for_more(member, f"restart {number}")
            assert member.get("/readyz")[0] == 200, "a dead broker must not make the group member unready"
        ledger = producer.finish()
        job.wait_landed(ledger)
        assert member.terminate() == 0

    for topic in job.topics:
        check_landed_with_resent(job.landing(topic), {place: ledger[place] for place in ledger if place[0] == topic})
