# SPDX-License-Identifier: Apache-2.0
"""Where records go: the hashes of Java's producers, and choices without a key."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from consumerd.client.partitioner import (
    METADATA_REFRESH_S,
    PARTITIONERS,
    Candidates,
    Partitioner,
    hash_java,
    hash_murmur2,
    make_line_partitioner,
    murmur2,
)
from tests.support.clocks import ManualClock


def candidates(count: int, available: list[int] | None = None) -> Candidates:
    return Candidates(topic="t", count=count, available=list(range(count)) if available is None else available)


def make(name: str, clock: ManualClock | None = None, seed: int = 1) -> Partitioner:
    return PARTITIONERS[name](random.Random(seed).random, clock or ManualClock(0.0))


def test_murmur2_is_that_of_kafka() -> None:
    """The values of Kafka's own test, ``UtilsTest.testMurmur2``."""
    expected = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert expected == {key: (murmur2(key) ^ 1 << 31) - (1 << 31) for key in expected}


@pytest.mark.parametrize(
    ("key", "partition"),
    [(b"21", 40), (b"foobar", 66), (b"a-little-bit-long-string", 12), (b"abc", 7)],
)
def test_negative_murmur2_loses_its_sign_bit_as_in_java(key: bytes, partition: int) -> None:
    """``Utils.toPositive`` masks the sign bit; the absolute value names other partitions for half of all keys."""
    # -973932308 & 0x7FFFFFFF = 1173551340, of 100 partitions the 40th
    assert partition == hash_murmur2(key, key) % 100


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("abc", 96354),  # 31 * (31 * 97 + 98) + 99
        ("", 0),
        ("polygenelubricants", 0),  # hashes to Integer.MIN_VALUE, whose absolute value is not an int
        ("\U0001f600", 31 * 0xD83D + 0xDE00),  # beyond the basic plane: two chars in Java
        (b"\x01\x02\x03", 30817),  # Arrays.hashCode, from 1 on
        (b"\xff", 30),  # Java's bytes have a sign
        (b"", 1),
    ],
)  # fmt: skip
def test_java_hash_is_that_of_the_language(key: str | bytes, expected: int) -> None:
    """Worked out by the formulas in the Java documentation; 0.8.2 takes their absolute value."""
    assert expected == hash_java(key, key if isinstance(key, bytes) else key.encode())


def test_negative_java_hashes_lose_their_sign() -> None:
    """Taken modulo, a negative number would be no partition."""
    key = "zzzzzz"
    code = 0
    for character in key:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    assert code > 1 << 31, "the example must be negative in Java"
    assert (1 << 32) - code == hash_java(key, b"")


@pytest.mark.parametrize("name", ["murmur2", "java-hash"])
def test_a_key_has_one_partition_of_all(name: str) -> None:
    """Whether a partition has a leader now must not move keys to another one."""
    keys = [b"key-%d" % number for number in range(500)]
    whole, broken = make(name), make(name)
    chosen = [whole.choose(key, key, candidates(7)) for key in keys]
    assert chosen == [broken.choose(key, key, candidates(7, [2])) for key in keys]
    assert set(range(7)) == set(chosen)


def test_without_a_key_one_partition_is_kept_for_a_batch() -> None:
    """Batches fill; then another partition has its turn, never the same one again."""
    partitioner = make("murmur2")
    seen = []
    for _ in range(200):
        turn = {partitioner.choose(None, None, candidates(3)) for _ in range(20)}
        assert len(turn) == 1
        seen.append(turn.pop())
        partitioner.batch_closed("t", seen[-1])
    assert all(one != another for one, another in itertools.pairwise(seen))
    assert all(count > 40 for count in Counter(seen).values())


def test_a_batch_of_another_partition_moves_nothing() -> None:
    """Records with keys close batches all the time."""
    partitioner = make("murmur2")
    chosen = partitioner.choose(None, None, candidates(8))
    for partition in set(range(8)) - {chosen}:
        partitioner.batch_closed("t", partition)
    assert chosen == partitioner.choose(None, None, candidates(8))


def test_the_old_producer_stays_for_ten_minutes() -> None:
    """Whatever becomes of batches: as ``topic.metadata.refresh.interval.ms`` has it."""
    clock = ManualClock(0.0)
    partitioner = make("java-hash", clock)
    chosen = partitioner.choose(None, None, candidates(100))
    partitioner.batch_closed("t", chosen)
    clock.seconds = METADATA_REFRESH_S - 1
    assert chosen == partitioner.choose(None, None, candidates(100))
    clock.seconds = METADATA_REFRESH_S
    assert chosen != partitioner.choose(None, None, candidates(100))


@pytest.mark.parametrize("name", list(PARTITIONERS))
def test_without_a_key_only_partitions_with_a_leader_are_chosen(name: str) -> None:
    """A record that may go anywhere must not wait for an election; with no leader at all it has to."""
    partitioner = make(name)
    for _ in range(50):
        chosen = partitioner.choose(None, None, candidates(9, [3, 7]))
        assert chosen in (3, 7)
        partitioner.batch_closed("t", chosen)
    assert partitioner.choose(None, None, candidates(2, [])) in (0, 1)


def test_a_sticky_choice_leaves_a_partition_without_a_leader() -> None:
    """The leader went while the batch was open."""
    partitioner = make("java-hash")
    chosen = partitioner.choose(None, None, candidates(4))
    rest = [one for one in range(4) if one != chosen]
    assert partitioner.choose(None, None, candidates(4, rest)) in rest


def test_one_partition_is_kept_where_there_is_no_other() -> None:
    """Leaving it must not leave nothing to choose from."""
    partitioner = make("murmur2")
    for _ in range(3):
        assert 0 == partitioner.choose(None, None, candidates(1))
        partitioner.batch_closed("t", 0)


def test_round_robin_gives_each_partition_its_turn() -> None:
    """Keys or not."""
    partitioner = make("round-robin")
    chosen = [partitioner.choose(b"same", b"same", candidates(4)) for _ in range(8)]
    assert [(chosen[0] + number) % 4 for number in range(8)] == chosen


def test_topics_have_choices_of_their_own() -> None:
    """Else a topic with few partitions would narrow the others."""
    partitioner = make("round-robin")
    first = partitioner.choose(None, None, candidates(4))
    other = Candidates(topic="u", count=4, available=[0, 1, 2, 3])
    again = partitioner.choose(None, None, other)
    assert (first + 1) % 4 == partitioner.choose(None, None, candidates(4))
    assert (again + 1) % 4 == partitioner.choose(None, None, other)


def test_few_lines_without_a_key_reach_every_partition_and_keys_stay_where_java_sends_them() -> None:
    """``seq 1000 | consumerd produce`` fills one batch; a group of two members is to see both halves of it."""
    for seed in range(20):
        lines = make_line_partitioner("murmur2", random.Random(seed).random, ManualClock(0.0))
        chosen = []
        for number in range(1000):
            partition = lines.choose(None, None, candidates(4))
            chosen.append(partition)
            if number % 7 == 0:
                lines.batch_closed("t", partition)  # a run does not end with a batch
        assert sorted(Counter(chosen).values()) == [200, 200, 300, 300]
        assert sum(one != other for one, other in itertools.pairwise(chosen)) == 9, "in runs, which fill batches"
        assert lines.choose("k", b"k", candidates(4)) == make("murmur2").choose("k", b"k", candidates(4))
        assert {lines.choose(None, None, candidates(4, [2])) for _ in range(200)} == {2}
