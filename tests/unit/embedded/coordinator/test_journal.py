# SPDX-License-Identifier: Apache-2.0
"""Groups and positions as records, and what reading them in order leaves."""

from __future__ import annotations

import pytest

from consumerd.embedded.coordinator.exchange import GroupState
from consumerd.embedded.coordinator.journal import Journal, JournalReplay, partition_of
from consumerd.embedded.coordinator.positions import CoordinatedPosition, Positions
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.model import TimestampType, TopicPartition
from consumerd.net.versions import Release
from consumerd.wire.modern.offsets_topic import GroupMember, GroupValue
from consumerd.wire.records import NewRecord, Record

P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)
NEWEST = Journal(offset_version=1, group_version=1)
RETENTION_MS = 1000


def member(name: str, *, rebalance_timeout_ms: int = 60_000) -> GroupMember:
    return GroupMember(
        member_id=name,
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=rebalance_timeout_ms,
        subscription=b"sub",
        assignment=b"part",
    )


def group(*members: GroupMember, generation: int = 1) -> GroupValue:
    return GroupValue(
        protocol_type="consumer",
        generation=generation,
        protocol="range" if members else None,
        leader=members[0].member_id if members else None,
        members=members,
    )


def position(offset: int, *, commit_ms: int = 5, expire_ms: int = 50) -> CoordinatedPosition:
    return CoordinatedPosition(offset=offset, metadata="m", commit_ms=commit_ms, expire_ms=expire_ms)


def replay(*records: NewRecord) -> JournalReplay:
    made = JournalReplay(RETENTION_MS)
    made.read(
        Record(offset=offset, timestamp=0, timestamp_type=TimestampType.CREATE_TIME, key=one.key, value=one.value)
        for offset, one in enumerate(records)
    )
    return made


@pytest.mark.parametrize(
    ("group_id", "code"),
    [
        # String.hashCode as Java gives it; the third one is Integer.MIN_VALUE, whose absolute value is none
        ("", 0),
        ("test", 3556498),
        ("polygenelubricants", 0),
        ("console-consumer-83397", 164950101),
        ("été", 227742),
        ("😀", 1772899),
    ],
)
def test_a_group_is_in_the_partition_of_its_java_hash(group_id: str, code: int) -> None:
    """Kafka's own tools look for it there."""
    assert code % 50 == partition_of(group_id, 50)
    assert code == partition_of(group_id, 2**31 - 1)


def test_what_was_written_last_holds() -> None:
    """Records are read in order, and overtake each other."""
    made = replay(
        NEWEST.position("g", P, position(1), 0),
        NEWEST.position("g", Q, position(2), 0),
        NEWEST.group("g", group(member("a")), 0),
        NEWEST.position("g", P, position(3), 0),
        NEWEST.group("g", group(member("a"), member("b"), generation=2), 0),
        NEWEST.position_end("g", Q, 0),
    )

    assert {"g": group(member("a"), member("b"), generation=2)} == made.group_ids()
    assert {P: position(3)} == made.positions["g"].all


def test_tombstones_end_a_group_and_its_positions() -> None:
    """Compaction may have left nothing else of them."""
    made = replay(
        NEWEST.group("g", group(), 0),
        NEWEST.position("g", P, position(1), 0),
        NEWEST.position_end("g", P, 0),
        NEWEST.group_end("g", 0),
        NEWEST.group_end("never", 0),
    )

    assert made.group_ids() == {}


def test_a_group_that_only_commits_is_known_by_its_positions() -> None:
    """It has no record of its own."""
    assert {"g": None} == replay(NEWEST.position("g", P, position(1), 0)).group_ids()


def test_what_older_formats_cannot_say_is_filled_in() -> None:
    """0.8.2 keeps no time of expiry, and 0.9 no rebalance timeout: the broker's retention, and the session's timeout."""
    before_0_10_1 = Journal(offset_version=0, group_version=0)
    made = replay(
        before_0_10_1.group("g", group(member("a", rebalance_timeout_ms=77)), 0),
        before_0_10_1.position("g", P, position(1), 0),
    )

    assert group(member("a", rebalance_timeout_ms=10_000)) == made.groups["g"]
    assert position(1, expire_ms=5 + RETENTION_MS) == made.positions["g"].all[P]


def test_records_that_cannot_be_read_are_left_out_and_counted() -> None:
    """A newer broker's kinds of records, damage, a foreign producer's: the others still hold."""
    stranger = NewRecord(key=b"\x00\x09what", value=b"ever")
    damaged = NewRecord(key=NEWEST.position("g", Q, position(1), 0).key, value=b"\x00\x01short")
    keyless = NewRecord(value=b"nothing")

    made = replay(stranger, damaged, NEWEST.position("g", P, position(1), 0), keyless)

    assert (3, {P: position(1)}) == (made.unreadable, made.positions["g"].all)


def test_of_two_positions_the_one_later_in_the_log_counts() -> None:
    """Whichever is heard of first."""
    kept = Positions()
    kept.keep(P, position(8), 5)
    kept.keep(P, position(7), 4)

    assert {P: position(8)} == kept.all


def test_a_position_is_kept_until_its_time_is_over() -> None:
    """Kafka compares with less-than: in its last millisecond it is still kept."""
    kept = Positions()
    kept.keep(P, position(8, expire_ms=50), 5)

    assert ([], [P]) == (kept.expired(50), kept.expired(51))


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ((0, 9), ("Dead", "AwaitingSync", "Stable")),
        ((0, 10, 2), ("Empty", "AwaitingSync", "Stable")),
        ((1, 1), ("Empty", "CompletingRebalance", "Stable")),
    ],
)
def test_states_have_the_names_of_the_release(release: Release, names: tuple[str, ...]) -> None:
    """Tools compare them as text."""
    settings = CoordinatorSettings(release=release)
    states = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)

    assert names == tuple(settings.name_state(state) for state in states)
