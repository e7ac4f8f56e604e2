# SPDX-License-Identifier: Apache-2.0
"""Where a partition starts and goes on: each rule of the policy, as a table."""

import uuid

import pytest

from consumerd.delivery.policy import (
    EarlierAttempt,
    OffsetPolicy,
    PreviousClaim,
    Reposition,
    StartAt,
    StartAtEnd,
    StartFacts,
    StartReason,
    Stop,
    StopCause,
    TryAgain,
    in_log,
    plan_out_of_range,
    plan_start,
)
from consumerd.errors import OffsetOutOfRange
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.offsets.commit_metadata import format_metadata
from consumerd.offsets.positions import KafkaOffsetToken, OffsetNodeToken
from consumerd.offsets.store import StoredOffset, Validity, judge

TOPIC = Incarnation(100)


def stored(position, mzxid=200, malformed=None):
    return StoredOffset(position=position, token=OffsetNodeToken(mzxid=mzxid, version=0), malformed=malformed)


def plan(*, offset=None, resume=None, newborn=False, earlier=None, on_missing="earliest"):
    facts = StartFacts(incarnation=TOPIC, stored=offset, resume=resume, newborn=newborn, earlier=earlier)
    return plan_start(facts, OffsetPolicy(on_missing=on_missing))


def test_a_committed_offset_is_where_a_sink_without_a_record_starts():
    """The common case: exactly at the committed position, nothing twice and nothing skipped."""
    assert StartAt(position=50, committed=50, reason=StartReason.COMMITTED) == plan(offset=stored(50))


def test_a_committed_offset_ahead_of_the_landed_end_leaves_a_gap_with_its_reason():
    """A Java member consumed in between: those records are not ours to land, and whoever audits must see why."""
    expected = StartAt(
        position=80,
        committed=80,
        reason=StartReason.CONSUMED_ELSEWHERE,
        gap=Gap(50, 80, GapReason.CONSUMED_ELSEWHERE),
    )
    assert expected == plan(offset=stored(80), resume=50)
    assert GapReason.CONSUMED_ELSEWHERE.value == StartReason.CONSUMED_ELSEWHERE.value


def test_the_landed_end_wins_over_a_committed_offset_behind_it():
    """A commit was lost after publishing: what is landed must not be landed twice."""
    assert StartAt(position=50, committed=30, reason=StartReason.LANDED, behind=True) == plan(
        offset=stored(30), resume=50
    )


@pytest.mark.parametrize("offset", [None, stored(50), stored(70, mzxid=90), stored(-1, malformed="junk")])
def test_the_landed_end_is_the_start_when_no_valid_offset_is_ahead(offset):
    """A missing, equal, outdated or unreadable offset takes nothing away from what is landed."""
    start = plan(offset=offset, resume=50)
    assert (start.position, start.reason, start.behind) == (50, StartReason.LANDED, False)


def test_a_position_with_the_id_of_the_present_topic_is_no_late_commit():
    """Another member has consumed the new topic since; our own late commit would name the old one."""
    old, new = (Incarnation.of_topic_id(uuid.UUID(int=number)) for number in (7, 8))

    def plan_after(named):
        text = format_metadata(named, "ab")
        facts = StartFacts(
            incarnation=new,
            stored=StoredOffset(position=450, token=KafkaOffsetToken(offset=450, metadata=text)),
            resume=None,
            newborn=False,
            previous=PreviousClaim(incarnation=old, committed=400, acknowledged=500),
        )
        return plan_start(facts, OffsetPolicy())

    assert StartAt(position=450, committed=450, reason=StartReason.COMMITTED) == plan_after(new)
    assert StartAtEnd(end="earliest", reason=StartReason.NEW_INCARNATION) == plan_after(old)


@pytest.mark.parametrize("end", ["earliest", "latest"])
def test_without_any_position_on_missing_decides(end):
    """The reset of a group that begins."""
    assert StartAtEnd(end=end, reason=StartReason.ON_MISSING) == plan(on_missing=end)


def test_without_any_position_on_missing_can_stop():
    """Some would rather be asked than guess."""
    decided = plan(on_missing="stop")
    assert isinstance(decided, Stop)
    assert StopCause.NO_OFFSET is decided.cause


@pytest.mark.parametrize("on_missing", ["earliest", "latest", "stop"])
def test_a_partition_younger_than_the_group_starts_at_its_earliest(on_missing):
    """Records written between a topic's growth and its first rebalance were never anybody's to skip."""
    expected = StartAtEnd(end="earliest", reason=StartReason.NEW_PARTITION)
    assert expected == plan(newborn=True, on_missing=on_missing)


@pytest.mark.parametrize("on_missing", ["earliest", "latest", "stop"])
def test_an_offset_of_a_deleted_topic_of_that_name_counts_for_nothing(on_missing):
    """The Java consumer takes it, is out of range or, worse, is not, and skips what the new topic holds."""
    expected = StartAtEnd(end="earliest", reason=StartReason.NEW_INCARNATION)
    assert expected == plan(offset=stored(9000, mzxid=100), on_missing=on_missing)


def test_an_offset_counts_from_the_transaction_after_the_one_that_made_the_topic():
    """The boundary of the rule, and the topic's own transaction is no offset's."""
    assert Validity.ANOTHER_INCARNATION is judge(stored(1, mzxid=100), TOPIC)
    assert Validity.VALID is judge(stored(1, mzxid=101), TOPIC)


def test_a_position_of_unknown_age_is_believed():
    """Kafka tells no age of a Java member's commit, and delivery goes on from there."""

    class TokenWithoutAge:
        mark = 17

        def is_newer_than(self, incarnation):
            return None

    decided = plan(offset=StoredOffset(position=50, token=TokenWithoutAge()))
    assert isinstance(decided, StartAt)
    assert (decided.position, decided.reason) == (50, StartReason.COMMITTED)


def test_text_that_is_no_offset_stops_the_partition_and_says_so():
    """It is not "no offset": a reset would repeat or skip everything for a typing error."""
    decided = plan(offset=stored(-1, malformed="12x"))
    assert StopCause.MALFORMED_OFFSET is decided.cause
    assert "'12x'" in decided.advice


def test_the_same_claim_goes_on_where_it_had_got():
    """After a failure the store may still hold an older commit of our own."""
    earlier = EarlierAttempt(acknowledged=70, committed=60)
    for offset in (stored(60), stored(70)):
        start = plan(offset=offset, earlier=earlier)
        assert (start.position, start.reason) == (70, StartReason.RESUMED)
    assert plan(offset=stored(60), earlier=earlier, resume=75).position == 75


def test_an_offset_that_an_operator_wrote_meanwhile_is_heard():
    """A stopped partition is freed by committing another offset."""
    start = plan(offset=stored(500), earlier=EarlierAttempt(acknowledged=70, committed=70))
    assert (start.position, start.reason) == (500, StartReason.COMMITTED)


def out_of_range(offset, on_below="stop", on_above="stop"):
    error = OffsetOutOfRange(TopicPartition.modern("t", 0), offset, 100, 200)
    return plan_out_of_range(error, OffsetPolicy(on_below=on_below, on_above=on_above))


@pytest.mark.parametrize("on_below", ["earliest", "nearest"])
def test_below_the_log_moving_to_its_beginning_skips_what_retention_took(on_below):
    """What was deleted before it was read is reported as a gap, never passed over in silence."""
    expected = Reposition(position=100, reason=StartReason.ON_BELOW, gaps=(Gap(40, 100, GapReason.RETENTION),))
    assert expected == out_of_range(40, on_below=on_below)


def test_below_the_log_moving_to_its_end_tells_lost_from_skipped():
    """What the log still holds was skipped by the policy, not by retention."""
    expected = Reposition(
        position=200,
        reason=StartReason.ON_BELOW,
        gaps=(Gap(40, 100, GapReason.RETENTION), Gap(100, 200, GapReason.RESET)),
    )
    assert expected == out_of_range(40, on_below="latest")


@pytest.mark.parametrize(("on_above", "position"), [("nearest", 200), ("latest", 200), ("earliest", 100)])
def test_above_the_log_the_position_moves_back_without_a_gap(on_above, position):
    """Nothing is skipped by going back."""
    expected = Reposition(position=position, reason=StartReason.ON_ABOVE, gaps=())
    assert expected == out_of_range(300, on_above=on_above)


@pytest.mark.parametrize(("offset", "cause"), [(99, StopCause.BELOW_LOG), (201, StopCause.ABOVE_LOG)])
def test_out_of_range_stops_by_default(offset, cause):
    """Both a silent skip and a silent repetition of a whole log have cost people their data."""
    assert cause is out_of_range(offset).cause


@pytest.mark.parametrize("offset", [100, 150, 200])
def test_an_offset_inside_the_log_or_at_its_end_is_valid(offset):
    """The next record goes to the log's end: a consumer that has caught up stands there."""
    log = OffsetOutOfRange(TopicPartition.modern("t", 0), offset, 100, 200)
    assert in_log(offset, log)
    assert TryAgain() == plan_out_of_range(log, OffsetPolicy())
