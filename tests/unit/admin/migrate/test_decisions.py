# SPDX-License-Identifier: Apache-2.0
"""What becomes of each position of a group that moves to another cluster, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.admin.migrate.cutover import CutoverStep, choose_step, find_moved, note_positions
from consumerd.admin.migrate.decisions import (
    CAREFUL,
    GroupMove,
    MoveOptions,
    MoveVerdict,
    PartitionFacts,
    PartitionMove,
    decide,
)
from consumerd.admin.migrate.moving import make_checkpoints
from consumerd.admin.migrate.returning import PartitionReturn, ReturnFacts, ReturnVerdict, decide_return
from consumerd.mirror.checkpoint import Checkpoint
from consumerd.mirror.journal import CutoverEntry, CutoverState, MovedPosition
from consumerd.mirror.offset_map import MapWriter, OffsetMap
from consumerd.mirror.partition_map import MirroredLog, PartitionMap
from consumerd.mirror.records import SourceLog, StoredPosition
from consumerd.mirror.runs import find_runs
from consumerd.model import Incarnation, LogRange, TopicPartition
from consumerd.offsets.positions import Position
from consumerd.offsets.store import Place, Validity

P = TopicPartition.modern("orders", 0)
GOAL = TopicPartition.modern("new-orders", 0)
MADE = Incarnation(100)
LOG = LogRange(earliest=0, latest=1000)
BACKWARDS = MoveOptions(allow_backwards=True)
MISSING = MoveOptions(accept_missing=True)


def make_map(offsets: list[int], target: int, source: int | None = None) -> PartitionMap:
    """Return the map of a partition of which these offsets were mirrored, from a target offset on."""
    writer = MapWriter(counts_bytes=False)
    writer.add(find_runs(offsets, [one + 1 for one in offsets], target, counts_bytes=False))
    stored = StoredPosition(
        source=offsets[-1] + 1 if source is None else source,
        target=target + len(offsets),
        target_topic=GOAL.topic,
        target_partition=0,
        last_segment=0,
    )
    offset_map = OffsetMap(list(writer.take_changed().values()), stored.position)
    return PartitionMap([MirroredLog(SourceLog("c", "m", P.topic, "0", "100"), stored, offset_map)])


def make_start(source: int, target: int) -> PartitionMap:
    """Return what a mirror has stored that has begun, and has copied nothing."""
    stored = StoredPosition(source=source, target=target, target_topic=GOAL.topic, target_partition=0, last_segment=-1)
    log = SourceLog("c", "m", P.topic, "0", "100")
    return PartitionMap([MirroredLog(log, stored, OffsetMap([], stored.position))])


MAP = make_map([*range(50, 60), *range(70, 80)], 500)
"""Source offsets 50 to 59 and 70 to 79 are 500 to 519 of the target."""
FACTS = PartitionFacts(
    partition=P,
    position=Position(value=55, validity=Validity.VALID, incarnation=MADE),
    source=LogRange(earliest=50, latest=80),
    offsets=MAP,
    goal=GOAL,
    target=LogRange(earliest=0, latest=600),
)


def at(position: int, **changes: object) -> PartitionFacts:
    """Return the facts of a group at a valid position."""
    return replace(FACTS, position=replace(FACTS.position, value=position), **changes)  # type: ignore[arg-type]  # any fields


def move_of(facts: PartitionFacts, options: MoveOptions = CAREFUL) -> PartitionMove:
    return decide(facts, "lake", options)


@pytest.mark.parametrize(
    ("position", "translated"), [(50, 500), (55, 505), (59, 509), (60, 510), (65, 510), (70, 510), (79, 519), (80, 520)]
)
def test_a_position_becomes_the_offset_of_the_next_record(position: int, translated: int) -> None:
    """In a hole, that of the first record behind it; at the end, that behind the last one."""
    found = move_of(at(position))

    assert (found.verdict, found.translated, found.goal, found.why) == (MoveVerdict.READY, translated, GOAL, "")


def test_the_mirror_has_to_come_to_the_position_first() -> None:
    found = move_of(at(90, source=LOG))

    assert (found.verdict, found.translated, found.mirror_lag) == (MoveVerdict.WAITING, None, 920)
    assert found.why == "the mirror is at 80, 10 below"


def test_a_position_behind_nothing_but_markers_is_that_of_the_mirror() -> None:
    """The mirror notes its position with records only, so it would be waited for without end."""
    facts = at(90, source=LOG)

    assert facts.gap == (80, 90)
    found = move_of(replace(facts, gap_is_empty=True))
    assert (found.verdict, found.translated) == (MoveVerdict.READY, 520)


def test_records_from_before_the_mirror_are_in_the_source_only() -> None:
    facts = at(20, source=LOG)

    assert facts.gap == (20, 50)
    found = move_of(facts)
    assert found.verdict is MoveVerdict.REFUSED
    assert found.why.startswith("the mirror begins at 50: 20 to 49 are not in the target")
    assert move_of(facts, MISSING).translated == 500
    assert move_of(replace(facts, gap_is_empty=True)).translated == 500


def test_what_both_clusters_have_deleted_is_missed_by_nobody() -> None:
    """The old group would have gone on at the source's first record, which is 55."""
    found = move_of(at(20, source=LogRange(earliest=55, latest=80), target=LogRange(earliest=503, latest=600)))

    assert (found.verdict, found.translated) == (MoveVerdict.READY, 503)
    assert found.note == "below the source's log by 35"


def test_what_the_target_alone_has_deleted_is_refused() -> None:
    facts = at(52, target=LogRange(earliest=505, latest=600))

    found = move_of(facts)
    assert found.verdict is MoveVerdict.REFUSED
    assert found.why.startswith("the target's log begins at 505: it has deleted source offsets 52 to 54")
    assert move_of(facts, MISSING).translated == 505


def test_a_target_that_has_deleted_everything_that_the_group_has_read() -> None:
    """Its log begins behind the marker of the last transaction, one above the mirror's own offset."""
    found = move_of(at(80, target=LogRange(earliest=521, latest=521)))

    assert (found.verdict, found.translated) == (MoveVerdict.READY, 521)


def test_a_position_above_the_log_is_of_another_one() -> None:
    found = move_of(at(81))

    assert found.verdict is MoveVerdict.REFUSED
    assert "above the source's log [50, 80]" in found.why


def test_a_target_topic_that_was_created_again_is_noticed() -> None:
    """The mirror's offsets are of the topic before."""
    found = move_of(at(55, target=LogRange(earliest=0, latest=100)))

    assert found.verdict is MoveVerdict.REFUSED
    assert "created again, or has lost its end" in found.why


@pytest.mark.parametrize(
    ("committed", "verdict", "forced"),
    [
        (504, MoveVerdict.READY, MoveVerdict.READY),
        (505, MoveVerdict.SAME, MoveVerdict.SAME),
        (506, MoveVerdict.AHEAD, MoveVerdict.READY),
    ],
)
def test_a_position_goes_backwards_only_if_asked(committed: int, verdict: MoveVerdict, forced: MoveVerdict) -> None:
    facts = at(55, committed=committed)

    assert move_of(facts).verdict is verdict
    assert move_of(facts, BACKWARDS).verdict is forced


@pytest.mark.parametrize(
    ("position", "verdict", "why"),
    [
        (Position(value=None, validity=Validity.ABSENT, incarnation=MADE), MoveVerdict.LEFT_OUT, "no position yet"),
        (Position(value=5, validity=Validity.UNKNOWN_AGE), MoveVerdict.LEFT_OUT, "topic deleted"),
        (
            Position(value=55, validity=Validity.ANOTHER_INCARNATION, incarnation=MADE),
            MoveVerdict.LEFT_OUT,
            "deleted topic",
        ),
        (
            Position(value=None, validity=Validity.MALFORMED, incarnation=MADE, text="x"),
            MoveVerdict.REFUSED,
            "offsets set",
        ),
    ],
)
def test_what_is_no_position_of_the_topic_is_never_translated(
    position: Position, verdict: MoveVerdict, why: str
) -> None:
    """Neither with all that an operator may accept."""
    found = move_of(replace(FACTS, position=position), MoveOptions(allow_backwards=True, accept_missing=True))

    assert (found.verdict, found.translated) == (verdict, None)
    assert why in found.why


def test_a_position_of_unknown_age_is_translated_and_said_to_be_one() -> None:
    """Kafka keeps no identity of the topic beside it; a Java group has no other."""
    kept = Position(value=55, validity=Validity.UNKNOWN_AGE, place=Place.KAFKA, incarnation=MADE, metadata="mine")

    found = move_of(replace(FACTS, position=kept))

    assert (found.verdict, found.translated, found.note) == (MoveVerdict.READY, 505, "of unknown age")
    assert found.metadata == "mine"


def test_a_partition_that_is_not_mirrored_or_not_known_is_refused() -> None:
    assert move_of(replace(FACTS, offsets=None, goal=None)).why.startswith("not mirrored")
    assert move_of(replace(FACTS, target=None)).why.startswith("no leader of new-orders/0")
    assert move_of(replace(FACTS, problem="nobody knows")).why == "nobody knows"


def test_a_partition_that_the_mirror_has_not_written_is_waited_for_only_if_there_is_something() -> None:
    """A group at the end of an empty partition goes on with what the mirror writes first."""
    facts = replace(FACTS, offsets=None, target=LogRange(earliest=3, latest=7))

    assert facts.gap == (50, 80)
    assert move_of(facts).verdict is MoveVerdict.WAITING
    assert move_of(replace(facts, gap_is_empty=True)).translated == 7
    emptied = LogRange(earliest=80, latest=80)
    at_end = replace(at(80), offsets=None, source=emptied, target=LogRange(earliest=3, latest=7))
    assert (at_end.gap, move_of(at_end).verdict, move_of(at_end).translated) == (None, MoveVerdict.READY, 7)
    assert move_of(replace(at_end, source=None)).verdict is MoveVerdict.WAITING


def test_a_group_at_the_end_waits_for_a_mirror_that_has_not_begun() -> None:
    """The mirror may still write all that the group has read; at the target's end, it would come twice."""
    facts = replace(at(80), offsets=None, target=LogRange(earliest=0, latest=0))

    found = move_of(facts)
    assert (found.verdict, found.translated) == (MoveVerdict.WAITING, None)
    assert found.why == "the mirror has stored no position of this partition yet"


START: Final = make_start(60, 500)
"""A mirror that has begun at 60, when the target's log ended at 500, and has copied nothing."""


@pytest.mark.parametrize(
    ("position", "gap_is_empty", "verdict", "translated"),
    [
        (60, False, MoveVerdict.READY, 500),
        (80, True, MoveVerdict.READY, 500),
        (80, False, MoveVerdict.WAITING, None),
        (55, True, MoveVerdict.READY, 500),
        (55, False, MoveVerdict.REFUSED, None),
    ],
)
def test_the_start_of_a_mirror_answers_for_a_partition_without_records(
    position: int, gap_is_empty: bool, verdict: MoveVerdict, translated: int | None
) -> None:
    """Below it, records are in the source only; above it, the mirror is waited for: both only if there are records."""
    found = move_of(at(position, offsets=START, gap_is_empty=gap_is_empty))

    assert (found.verdict, found.translated) == (verdict, translated)
    if verdict is MoveVerdict.REFUSED:
        assert found.why.startswith("the mirror begins at 60: 55 to 59 are not in the target")
        assert move_of(at(position, offsets=START), MISSING).translated == 500


@given(position=st.integers(50, 80), committed=st.none() | st.integers(490, 530))
def test_a_position_that_is_moved_there_and_back_is_that_of_the_same_record(
    position: int, committed: int | None
) -> None:
    """Back, it is the first record that the group has not read."""
    translated = move_of(at(position, committed=committed), BACKWARDS).translated
    assert translated is not None
    back = return_of(translated, position=None).returned

    assert MAP.translate(back).offset == translated
    assert back == (position if position <= 59 or position >= 70 else 70)


# -- a group


GROUP = GroupMove(group="lake", places=("zookeeper",), members=0, target_members=0, partitions=[move_of(at(55))])


def group_with(*moves: PartitionMove, **changes: object) -> GroupMove:
    return replace(GROUP, partitions=moves, **changes)  # type: ignore[arg-type]  # any fields


def test_one_refused_partition_is_enough() -> None:
    """A group that has moved in part would read the rest again, or leave it out."""
    refused = move_of(at(81))
    group = group_with(move_of(at(55)), refused)

    assert group.find_refusal() == f"orders/0: {refused.why}"
    assert group.explain_unsafe() == f"1 partition refused: orders/0 ({refused.why})"


def test_live_members_of_the_target_refuse_and_those_of_the_source_do_not() -> None:
    """A group may be translated again and again while it runs in the source."""
    assert replace(GROUP, members=3).find_refusal() == ""
    assert "2 live members in the target" in replace(GROUP, target_members=2).find_refusal()
    assert GROUP.explain_unsafe() == ""
    assert group_with().explain_unsafe() == "it has no position to move"


def test_checkpoints_are_of_all_positions_that_the_group_has_there() -> None:
    """Also of those that were there before, which are not written again."""
    group = group_with(move_of(at(55)), move_of(at(56, committed=506)), move_of(at(81)))

    assert make_checkpoints(group) == [
        Checkpoint(group="lake", topic="new-orders", partition=0, source=55, target=505),
        Checkpoint(group="lake", topic="new-orders", partition=0, source=56, target=506),
    ]


# -- the steps of a cut-over


def entry_of(state: CutoverState, group: GroupMove = GROUP) -> CutoverEntry:
    return CutoverEntry(state=state, written_ms=1, places=group.places, positions=note_positions(group))


IN_TARGET = group_with(move_of(at(55, committed=505)))
WAITING = group_with(move_of(at(90, source=LOG)))


@pytest.mark.parametrize(
    ("state", "group", "step"),
    [
        (None, GROUP, CutoverStep.NOTE_POSITIONS),
        (None, replace(GROUP, members=1), CutoverStep.WAIT_FOR_STOP),
        (CutoverState.PLANNED, GROUP, CutoverStep.NOTE_POSITIONS),
        (CutoverState.STOPPED, GROUP, CutoverStep.NOTE_MIRRORED),
        (CutoverState.MIRRORED, GROUP, CutoverStep.TRANSLATE),
        (CutoverState.TRANSLATED, IN_TARGET, CutoverStep.VERIFY),
        (CutoverState.VERIFIED, IN_TARGET, CutoverStep.FINISH),
        (CutoverState.DONE, IN_TARGET, CutoverStep.NOTHING),
        # the journal says more than the target has: it was written to the target before, which has lost it since
        (CutoverState.TRANSLATED, GROUP, CutoverStep.TRANSLATE),
        (CutoverState.VERIFIED, GROUP, CutoverStep.TRANSLATE),
        (CutoverState.DONE, GROUP, CutoverStep.TRANSLATE),
        # an operator has set the group back in the target
        (CutoverState.DONE, group_with(move_of(at(55, committed=501))), CutoverStep.NOTHING),
        # members were started in the source again
        (CutoverState.TRANSLATED, replace(IN_TARGET, members=1), CutoverStep.WAIT_FOR_STOP),
        # the group consumes in the target
        (CutoverState.DONE, replace(IN_TARGET, target_members=2), CutoverStep.NOTHING),
        (CutoverState.TRANSLATED, replace(IN_TARGET, target_members=2), CutoverStep.REFUSE),
        (None, replace(GROUP, target_members=2), CutoverStep.REFUSE),
        # it came back
        (CutoverState.RETURNED, IN_TARGET, CutoverStep.NOTE_POSITIONS),
        (None, group_with(move_of(at(81))), CutoverStep.REFUSE),
        (CutoverState.MIRRORED, group_with(move_of(at(55, committed=506))), CutoverStep.REFUSE),
        (None, replace(GROUP, problem="unknown"), CutoverStep.REFUSE),
    ],
)
def test_the_next_step_follows_from_the_journal_and_from_both_clusters(
    state: CutoverState | None, group: GroupMove, step: CutoverStep
) -> None:
    assert choose_step(None if state is None else entry_of(state), group)[0] is step


def test_the_mirror_is_waited_for_after_the_positions_are_noted() -> None:
    assert choose_step(entry_of(CutoverState.PLANNED, WAITING), WAITING)[0] is CutoverStep.NOTE_POSITIONS
    assert choose_step(entry_of(CutoverState.STOPPED, WAITING), WAITING)[0] is CutoverStep.WAIT_FOR_MIRROR


@pytest.mark.parametrize(
    "state", [CutoverState.STOPPED, CutoverState.MIRRORED, CutoverState.TRANSLATED, CutoverState.DONE]
)
def test_positions_that_have_moved_are_noted_again(state: CutoverState) -> None:
    """The group was alive meanwhile: what was translated is no longer where it stands."""
    before, now = group_with(move_of(at(55, committed=505))), group_with(move_of(at(56, committed=505)))

    assert find_moved(note_positions(before), now) == ["orders/0"]
    assert choose_step(entry_of(state, before), now) == (
        CutoverStep.NOTE_POSITIONS,
        "moved since they were noted: orders/0",
    )


def test_a_position_that_is_new_has_moved() -> None:
    assert find_moved(note_positions(GROUP), group_with()) == ["orders/0"]
    other = MovedPosition("orders", "1", 5, "new-orders", 1, None)
    assert find_moved([*note_positions(GROUP), other], GROUP) == ["orders/1"]


# -- the way back


def return_of(committed: int, *, position: int | None, allow_backwards: bool = False) -> PartitionReturn:
    facts = ReturnFacts(
        partition=P,
        goal=GOAL,
        committed=committed,
        offsets=MAP,
        source=LogRange(earliest=50, latest=100),
        target=LogRange(earliest=0, latest=600),
        position=position,
    )
    return decide_return(facts, allow_backwards=allow_backwards)


@pytest.mark.parametrize(
    ("committed", "returned"), [(0, 50), (500, 50), (505, 55), (509, 59), (510, 70), (519, 79), (520, 80), (525, 80)]
)
def test_a_group_returns_to_the_first_record_that_it_has_not_read(committed: int, returned: int) -> None:
    found = return_of(committed, position=50)

    assert found.returned == returned
    assert found.verdict is (ReturnVerdict.SAME if returned == 50 else ReturnVerdict.READY)


def test_what_is_in_the_target_only_is_said() -> None:
    assert return_of(520, position=None).note == ""
    assert return_of(525, position=None).note == "5 offsets behind the mirror's last record are in the target only"


def test_a_group_returns_backwards_only_if_asked() -> None:
    assert return_of(505, position=60).verdict is ReturnVerdict.BACKWARDS
    found = return_of(505, position=60, allow_backwards=True)
    assert (found.verdict, found.note) == (ReturnVerdict.READY, "reads 5 again")


def test_a_return_is_not_backwards_over_markers_and_aborted_records() -> None:
    """The group stood behind them in the source when it was cut over, and has read nothing since."""
    facts = ReturnFacts(
        partition=P,
        goal=GOAL,
        committed=520,
        offsets=MAP,
        source=LOG,
        target=LogRange(earliest=0, latest=600),
        position=83,
    )
    assert decide_return(facts).verdict is ReturnVerdict.BACKWARDS

    found = decide_return(replace(facts, gap_is_empty=True))

    assert (found.verdict, found.returned, found.why) == (ReturnVerdict.SAME, 83, "")


def test_a_return_that_one_of_two_stores_has_is_written_again() -> None:
    """A rollback was killed between its writes to ZooKeeper and to Kafka."""
    facts = ReturnFacts(
        partition=P,
        goal=GOAL,
        committed=505,
        offsets=MAP,
        source=LOG,
        target=LogRange(earliest=0, latest=600),
        position=55,
        is_everywhere=False,
    )

    found = decide_return(facts)

    assert (found.verdict, found.returned) == (ReturnVerdict.READY, 55)
    assert found.note == "only one of ZooKeeper and Kafka has it"
    assert decide_return(replace(facts, is_everywhere=True)).verdict is ReturnVerdict.SAME


def test_a_return_needs_logs_that_hold_the_positions() -> None:
    facts = ReturnFacts(
        partition=P,
        goal=GOAL,
        committed=520,
        offsets=MAP,
        source=LogRange(earliest=0, latest=70),
        target=LogRange(earliest=0, latest=600),
        position=None,
    )
    assert "above the source's log" in decide_return(facts).why
    assert "try again" in decide_return(replace(facts, source=None)).why
    assert "above the target's log" in decide_return(replace(facts, source=LOG, target=LogRange(0, 510))).why
    deleted = decide_return(replace(facts, committed=505, source=LogRange(earliest=58, latest=100)))
    assert (deleted.returned, deleted.note) == (58, "the source has deleted 55 to 57")
