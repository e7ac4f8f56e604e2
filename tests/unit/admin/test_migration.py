# SPDX-License-Identifier: Apache-2.0
"""Moving positions between two places: what is written, what is refused, and where a group is on the road."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.admin.migration import (
    Comparison,
    Migration,
    PartitionMigration,
    check_applied,
    explain_differences,
    other_place,
    plan_partition,
    wait_until_equal,
)
from consumerd.admin.migration_file import AppliedMigration, ReplacedOffset, encode_applied, parse_applied
from consumerd.admin.migration_steps import describe_road, list_steps
from consumerd.errors import ConfigError, OffsetError
from consumerd.model import Incarnation, LogRange, TopicPartition
from consumerd.offsets.kafka import KafkaOffset
from consumerd.offsets.positions import KeptPositions, OffsetNodeToken, Position, read_kafka_position
from consumerd.offsets.store import ZOOKEEPER_ONLY, Place, StoredOffset, Validity, judge
from tests.support import virtual_time

P, Q = (TopicPartition.modern("orders", number) for number in range(2))
MADE = Incarnation(100)
LOG = LogRange(earliest=0, latest=1000)
ZOOKEEPER, KAFKA = Place.ZOOKEEPER, Place.KAFKA


def in_zookeeper(position: int, *, mzxid: int = 200) -> Position:
    stored = StoredOffset(position=position, token=OffsetNodeToken(mzxid=mzxid, version=0))
    return Position(value=position, validity=judge(stored, MADE), token=stored.token, incarnation=MADE)


def in_kafka(position: int, *, czxid: int | None = None) -> Position:
    text = "" if czxid is None else f"consumerd czxid={czxid} id=1"
    return read_kafka_position(KafkaOffset(offset=position, metadata=text), MADE)


def compare(
    zookeeper: Position | None,
    kafka: Position | None,
    *,
    to: Place = KAFKA,
    log: LogRange | None = LOG,
    is_consumed: bool = False,
    replace_larger: bool = False,
    partition: TopicPartition = P,
    unknown: str = "",
) -> PartitionMigration:
    kept = KeptPositions(
        zookeeper={} if zookeeper is None else {partition: zookeeper},
        kafka={} if kafka is None else {partition: kafka},
        unknown=unknown,
    )
    return plan_partition(
        "lake",
        partition,
        kept,
        to,
        ZOOKEEPER_ONLY,
        incarnation=MADE,
        log=log,
        is_consumed=is_consumed,
        replace_larger=replace_larger,
    )


def read(*partitions: PartitionMigration, to: Place = KAFKA, members: int = 0) -> Migration:
    return Migration(group="lake", cluster="1-2", to=to, members=members, ids=None, obstacle="", partitions=partitions)


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "to", "comparison", "writes"),
    [
        (in_zookeeper(200), None, KAFKA, Comparison.MISSING, 200),
        (in_zookeeper(200), in_kafka(150), KAFKA, Comparison.SMALLER, 200),
        (in_zookeeper(200), in_kafka(200), KAFKA, Comparison.SAME, None),
        (None, in_kafka(200), KAFKA, Comparison.ONLY_TARGET, None),
        (None, None, KAFKA, Comparison.NONE, None),
        (in_zookeeper(200), in_kafka(900, czxid=99), KAFKA, Comparison.MISSING, 200),
        (in_zookeeper(900, mzxid=50), in_kafka(200), KAFKA, Comparison.ONLY_TARGET, None),
        (in_zookeeper(900, mzxid=50), None, KAFKA, Comparison.NONE, None),
        (None, in_kafka(200), ZOOKEEPER, Comparison.MISSING, 200),
        (in_zookeeper(150), in_kafka(200), ZOOKEEPER, Comparison.SMALLER, 200),
        (in_zookeeper(900, mzxid=50), in_kafka(200), ZOOKEEPER, Comparison.MISSING, 200),
        (in_zookeeper(200), in_kafka(900, czxid=99), ZOOKEEPER, Comparison.ONLY_TARGET, None),
    ],
)
def test_missing_and_smaller_positions_are_written(
    zookeeper: Position | None, kafka: Position | None, to: Place, comparison: Comparison, writes: int | None
) -> None:
    """A position of a deleted topic is none, in either place."""
    found = compare(zookeeper, kafka, to=to)

    assert (found.comparison, found.writes, found.refusal) == (comparison, writes, "")


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "said"),
    [
        (in_zookeeper(200), in_kafka(300), "moved back on purpose, write it over the other one: --replace-larger"),
        (in_zookeeper(200), in_kafka(1001), "Kafka holds 1001, above the log [0, 1000]: a position of a deleted topic"),
        (in_zookeeper(1001), None, "above the log [0, 1000]: it is of a deleted topic of the same name, or the log"),
        (in_zookeeper(1001), in_kafka(200), "consumerd offsets reset -g lake orders/0 --to earliest"),
    ],
)
def test_known_traps_are_refused_with_what_to_do(zookeeper: Position, kafka: Position | None, said: str) -> None:
    """Read from both places, the larger one counts, whatever it is."""
    found = compare(zookeeper, kafka)

    assert found.writes is None
    assert said in found.refusal
    assert said in read(found).find_refusal()


def test_a_larger_position_is_replaced_only_on_demand() -> None:
    """It may be newer, or may undo a rewind: an operator knows."""
    assert compare(in_zookeeper(200), in_kafka(300), replace_larger=True).writes == 200
    assert compare(in_zookeeper(200), in_kafka(1001), replace_larger=True).writes == 200
    assert compare(in_zookeeper(200), in_kafka(300), replace_larger=True, is_consumed=True).writes is None


def test_a_position_that_cannot_be_checked_is_not_written() -> None:
    """Without the log's end, and without Kafka's answer."""
    assert "its leader has not told" in compare(in_zookeeper(200), None, log=None).refusal
    assert "position in Kafka is unknown: no answer" in compare(in_zookeeper(200), None, unknown="no answer").refusal
    assert compare(in_zookeeper(200), in_kafka(200), log=None).refusal == ""


def test_partitions_that_members_consume_are_left_to_them() -> None:
    """A member may commit between our read and our write, and would be set back."""
    consumed = compare(in_zookeeper(200), in_kafka(150), is_consumed=True)
    ahead = compare(in_zookeeper(200), in_kafka(300), is_consumed=True, partition=Q)
    found = read(consumed, ahead, members=1)

    assert (found.writes, found.find_refusal()) == ([], "")
    assert "1 partition of topics that live members consume left alone (orders/0)" in found.explain_left()
    assert read(ahead, members=1).explain_left() == ""


def test_a_position_below_the_log_is_carried_as_it_is() -> None:
    """The policy of the members decides about it, in both places alike."""
    found = compare(in_zookeeper(5), None, log=LogRange(earliest=10, latest=1000))

    assert (found.writes, found.note) == (5, "below the log by 5")


def test_a_write_that_another_client_has_passed_is_noticed() -> None:
    """Kafka compares nothing, so the places are read again."""
    before = read(compare(in_zookeeper(200), None))

    check_applied(before, read(compare(in_zookeeper(200), in_kafka(200))))
    for zookeeper, kafka in ((200, 150), (200, 250), (210, 200)):
        with pytest.raises(OffsetError, match=r"orders/0: a client has committed .* alive elsewhere"):
            check_applied(before, read(compare(in_zookeeper(zookeeper), in_kafka(kafka))))


def wait(*reads: Migration, wait_s: float = 30.0) -> tuple[list[TopicPartition], float]:
    """Return the partitions that differ at the end, and the time that was waited."""
    left = list(reads)

    async def answer() -> Migration:
        return left.pop(0) if len(left) > 1 else left[0]

    async def play() -> tuple[list[TopicPartition], float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        _, differing = await wait_until_equal(answer, wait_s, loop.time)
        return [one.partition for one in differing], loop.time() - began

    return virtual_time.run(play())


def moving(zookeeper: int, kafka: int | None, members: int = 1) -> Migration:
    return read(
        compare(in_zookeeper(zookeeper), None if kafka is None else in_kafka(kafka), is_consumed=bool(members)),
        members=members,
    )


def test_places_agree_when_each_has_reached_what_the_other_one_held() -> None:
    """Under load they are never equal in one read."""
    assert wait(moving(200, 150), moving(260, 190), moving(300, 210)) == ([], 2.0)
    assert wait(moving(200, 300), moving(310, 300)) == ([], 1.0)
    assert wait(moving(200, 200)) == ([], 0.0)


def test_a_place_that_stands_still_differs_in_the_end() -> None:
    """Members that were not restarted commit to one place alone."""
    assert wait(moving(200, None), *(moving(200 + number, None) for number in range(40))) == ([P], 30.0)
    assert wait(moving(200, 150), *(moving(200 + number, 150) for number in range(40))) == ([P], 30.0)
    assert wait(moving(200, 150), wait_s=0.0) == ([P], 0.0)


def test_without_members_nothing_is_awaited() -> None:
    """Nobody commits."""
    assert wait(moving(200, 150, members=0)) == ([P], 0.0)


def test_what_prevents_the_last_step_is_named_with_its_setting() -> None:
    """Straight to one place, without its positions, members begin at auto.offset.reset."""
    missing, larger = compare(in_zookeeper(200), None), compare(in_zookeeper(200), in_kafka(300), partition=Q)

    text = explain_differences([missing, larger], KAFKA)

    assert "do not set offsets.dual_commit: false (Java: dual.commit.enabled=false) yet" in text
    assert "1 partition without the position in Kafka (orders/0)" in text
    assert "1 partition with a larger position in Kafka (orders/1)" in text
    back = compare(None, in_kafka(200), to=ZOOKEEPER)
    assert "do not set offsets.storage: zookeeper yet" in explain_differences([back], ZOOKEEPER)


def observe(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]], *, members: int = 2) -> str:
    """Return where a group is that has these positions in ZooKeeper and in Kafka, and these later."""
    first, second = (
        read(
            *(
                compare(in_zookeeper(one, mzxid=200 + one), in_kafka(two), partition=partition)
                for partition, (one, two) in zip((P, Q), positions, strict=True)
            ),
            members=members,
        )
        for positions in (before, after)
    )
    return describe_road(first, second, 60.0)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ([(20, 20), (30, 30)], "positions move in both places: members commit to both, and step 1 is done"),
        ([(20, 10), (30, 10)], "positions move in ZooKeeper alone: step 1 is to be done"),
        ([(10, 20), (10, 30)], "positions move in Kafka alone: step 3 is done"),
        ([(20, 20), (30, 10)], "in ZooKeeper alone: orders/1; in both: orders/0"),
        ([(20, 10), (10, 30)], "in ZooKeeper alone: orders/0; in Kafka alone: orders/1"),
        ([(10, 10), (10, 10)], "no position has moved in 60 s"),
    ],
)
def test_moving_positions_tell_where_members_commit(after: list[tuple[int, int]], said: str) -> None:
    """Settings of members are stored nowhere."""
    assert said in observe([(10, 10), (10, 10)], after)


def test_positions_that_move_without_members_here_are_of_members_elsewhere() -> None:
    """Another ZooKeeper, or another chroot, with the same brokers."""
    assert "alive elsewhere" in observe([(10, 10), (10, 10)], [(10, 20), (10, 20)], members=0)


@pytest.mark.parametrize(
    ("positions", "members", "said"),
    [
        ([(20, 20)], 0, "no member is alive"),
        ([(20, 20)], 1, "Both places hold the same positions"),
        ([(20, 10)], 1, "They commit to ZooKeeper alone, it seems: step 1 is to be done"),
        ([(10, 20)], 1, "They commit to Kafka alone, it seems: step 3 is done"),
        ([(20, 20), (20, 10)], 1, "1 partition with the same position in both places, 1 with a larger one in ZooKee"),
        ([], 1, "no positions yet"),
    ],
)
def test_one_look_tells_what_it_can(positions: list[tuple[int, int]], members: int, said: str) -> None:
    """Equal positions need not be committed to both."""
    found = [
        compare(in_zookeeper(one), in_kafka(two), partition=partition)
        for partition, (one, two) in zip((P, Q), positions, strict=False)
    ]

    assert said in describe_road(read(*found, members=members))


def test_the_steps_name_the_settings_of_both_kinds_of_members() -> None:
    """In the order in which nothing is lost; the last one depends on the direction."""
    there, back = list_steps(KAFKA), list_steps(ZOOKEEPER)

    assert there[0] == back[0]
    assert "offsets.storage=kafka and dual.commit.enabled=true" in there[0]
    assert "offsets.dual_commit: false (Java: offsets.storage=kafka and dual.commit.enabled=false)" in there[2]
    assert "offsets.storage: zookeeper (Java: offsets.storage=zookeeper)" in back[2]
    assert (other_place(KAFKA), other_place(ZOOKEEPER)) == (ZOOKEEPER, KAFKA)


# -- the file


OFFSETS = st.builds(
    ReplacedOffset,
    partition=st.builds(TopicPartition.modern, st.text(), st.integers(0, 2**31 - 1)),
    incarnation=st.none() | st.text(),
    before=st.none() | st.integers(0, 2**63 - 1),
    validity=st.sampled_from(Validity),
    written=st.integers(0, 2**63 - 1),
)
APPLIED = st.builds(
    AppliedMigration,
    group=st.text(),
    cluster=st.text(),
    to=st.sampled_from(Place),
    applied_ms=st.integers(0, 2**60),
    offsets=st.lists(OFFSETS),
)


@given(applied=APPLIED)
def test_a_file_is_read_as_it_was_written(applied: AppliedMigration) -> None:
    """What was kept before a migration is what it is undone with."""
    assert parse_applied(encode_applied(applied), "f") == applied


def test_the_file_holds_what_was_there_before() -> None:
    """Also where there was nothing."""
    found = read(compare(in_zookeeper(200), None), compare(in_zookeeper(200), in_kafka(150), partition=Q))

    applied = found.describe_applied(7)

    assert [(one.before, one.validity, one.written) for one in applied.offsets] == [
        (None, Validity.ABSENT, 200),
        (150, Validity.UNKNOWN_AGE, 200),
    ]
    assert {one.incarnation for one in applied.offsets} == {"100"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "consumerd offsets"}, "expected a document as `consumerd offsets migrate apply`"),
        ({"version": 2}, "newer release"),
        ({"to": "etcd"}, "to: expected zookeeper or kafka"),
        ({"group": None}, "expected group and cluster"),
        ({"offsets": {}}, "offsets: expected a list"),
        ({"offsets": [1]}, r"offsets\[0\]: expected an object"),
    ],
)
def test_what_is_no_file_of_ours_is_refused(change: dict[str, object], said: str) -> None:
    """Somebody gave another file, such as one of `offsets export`."""
    document = json.loads(encode_applied(read().describe_applied(1))) | change

    with pytest.raises(ConfigError, match=f"f: .*{said}"):
        parse_applied(json.dumps(document), "f")


@pytest.mark.parametrize(
    "change",
    [
        {"before": -1},
        {"before": True},
        {"written": None},
        {"written": "5"},
        {"validity": "fine"},
        {"topic": None},
        {"partition": "x"},
    ],
)
def test_one_position_that_makes_no_sense_refuses_the_file(change: dict[str, object]) -> None:
    """It was edited by hand; the place is named."""
    document = json.loads(encode_applied(read(compare(in_zookeeper(200), None)).describe_applied(1)))
    document["offsets"][0] |= change

    with pytest.raises(ConfigError, match=r"f: offsets\[0\]"):
        parse_applied(json.dumps(document), "f")


def test_an_obstacle_refuses_everything() -> None:
    """Members that brokers coordinate, or a broker that would write to ZooKeeper."""
    found = replace(read(compare(in_zookeeper(200), None)), obstacle="broker 1: of 0.8.1")

    assert found.find_refusal() == "broker 1: of 0.8.1"
