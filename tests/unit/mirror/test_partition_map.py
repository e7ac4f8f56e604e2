# SPDX-License-Identifier: Apache-2.0
"""Translation over truncations of the source's log, against a list of what was mirrored."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.mirror.offset_map import MapPlace, MapWriter, NotMirrored, OffsetMap, Translation
from consumerd.mirror.partition_map import MirroredLog, PartitionMap
from consumerd.mirror.records import SourceLog, StoredPosition
from consumerd.mirror.runs import find_runs


def make_log(
    truncation: int, begin: int, offsets: list[int], target_start: int, source_end: int | None = None
) -> MirroredLog:
    """Return a log of which these offsets were mirrored in one transaction, from a target offset on."""
    writer = MapWriter(counts_bytes=False)
    writer.add(find_runs(offsets, [one + 1 for one in offsets], target_start, counts_bytes=False))
    segments = list(writer.take_changed().values())
    source = source_end if source_end is not None else offsets[-1] + 1 if offsets else begin
    stored = StoredPosition(
        source=source,
        target=target_start + len(offsets),
        target_topic="t",
        target_partition=0,
        last_segment=len(segments) - 1,
    )
    log = SourceLog("c", "m", "t", "0", f"7.{truncation}" if truncation else "7")
    return MirroredLog(log, stored, OffsetMap(segments, stored.position))


def test_the_example_of_the_module() -> None:
    first = make_log(0, 0, list(range(100)), 0)
    second = make_log(1, 80, list(range(80, 91)), 101)
    found = PartitionMap([first, second])

    assert (found.source_start, found.target_start, found.stored) == (0, 0, second.stored)
    assert found.translate(50) == (50, MapPlace.RECORD)
    assert found.translate(79) == (79, MapPlace.RECORD)
    assert found.translate(80) == (101, MapPlace.RECORD)
    assert found.translate(85) == (106, MapPlace.RECORD)
    assert found.translate(91) == (112, MapPlace.END)
    assert found.translate_back(79) == (79, MapPlace.RECORD)
    assert [found.translate_back(one) for one in (80, 99, 100, 101)] == [(80, MapPlace.RECORD)] * 4
    assert found.translate_back(106) == (85, MapPlace.RECORD)
    with pytest.raises(NotMirrored, match="position 92 is above 91"):
        found.translate(92)


def test_a_log_of_which_nothing_was_mirrored_yet() -> None:
    """What the first log had counts for positions below the cut; behind it is the end."""
    found = PartitionMap([make_log(0, 0, [0, 1, 2], 5), make_log(1, 2, [], 9)])

    assert found.translate(1) == (6, MapPlace.RECORD)
    assert found.translate(2) == (9, MapPlace.END)
    assert found.translate_back(7) == (2, MapPlace.END)
    assert found.translate_back(20) == (2, MapPlace.END)


def test_a_position_between_two_logs_is_the_first_record_of_the_later_one() -> None:
    """The mirror had come to 3 of the first log only; the source was cut at 6, and lost nothing that was mirrored."""
    found = PartitionMap([make_log(0, 0, [0, 1, 2], 5), make_log(1, 6, [6, 7], 9)])

    assert [found.translate(one) for one in (3, 4, 5, 6)] == [(9, MapPlace.RECORD)] * 4
    assert found.translate_back(8) == (6, MapPlace.RECORD)


@dataclass
class Story:
    """Logs of a partition, and the target's records by source offset and number of the log."""

    logs: list[MirroredLog]
    records: list[tuple[int, int, int]]
    """Target offset, number of the log, source offset."""


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Draw up to three logs, each cut somewhere in the one before, with holes on both sides."""
    logs, records, target, begin = [], [], draw(st.integers(0, 3)), draw(st.integers(0, 5))
    for number in range(draw(st.integers(1, 3))):
        offsets = [one for one in range(begin, begin + draw(st.integers(0, 8))) if draw(st.booleans())]
        end = max(begin, offsets[-1] + 1 if offsets else begin) + draw(st.integers(0, 2))
        logs.append(make_log(number, begin, offsets, target, source_end=end))
        records += [(target + at, number, one) for at, one in enumerate(offsets)]
        target += len(offsets) + draw(st.integers(0, 2))
        begin = draw(st.integers(logs[0].source_start, end))
    return Story(logs, records)


def expect(story: Story, position: int) -> int | None:
    """Return the target offset of the first record that a reader at a position of the present log would get."""
    starts = [log.source_start for log in story.logs]
    for target, number, offset in story.records:
        is_there = all(offset < later for later in starts[number + 1 :])
        if is_there and offset >= position:
            return target
    return None


@given(story=stories())
def test_a_position_is_translated_to_the_next_record_of_the_present_log(story: Story) -> None:
    found = PartitionMap(story.logs)
    for position in range(found.stored.source + 1):
        wanted = expect(story, position)
        translated = found.translate(position)
        if wanted is None:
            assert translated == (found.stored.target, MapPlace.END)
        else:
            assert translated.offset == wanted, position
        back = found.translate_back(translated.offset)
        assert found.translate(back.offset).offset == translated.offset
    with pytest.raises(NotMirrored):
        found.translate(found.stored.source + 1)


@given(story=stories(), offset=st.integers(0, 30))
def test_a_target_offset_is_translated_back_to_a_record_that_the_source_has(story: Story, offset: int) -> None:
    """Never behind a record of the present log that the group has not read yet."""
    found = PartitionMap(story.logs)
    back = found.translate_back(offset)
    starts = [log.source_start for log in story.logs]
    unread = [
        source
        for target, number, source in story.records
        if target >= offset and all(source < later for later in starts[number + 1 :])
    ]
    assert back.offset == min(unread) if unread else back.offset <= found.stored.source
    assert isinstance(back, Translation)
