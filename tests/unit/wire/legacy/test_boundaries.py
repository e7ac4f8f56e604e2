# SPDX-License-Identifier: Apache-2.0
"""Proofs of message boundaries of Kafka 0.6 and 0.7: behind damage, and around a position."""

from __future__ import annotations

import gzip
import random
import struct

import pytest

from consumerd.wire.compression import Codec, decompress
from consumerd.wire.legacy.boundaries import (
    RUN_BYTES,
    Enclosing,
    find_enclosing,
    find_end_of_damage,
    find_run,
    leads_on,
    starts_with_nothing,
)
from consumerd.wire.legacy.message_set import build_message_set
from consumerd.wire.legacy.stored_message import encode_message

MOST = 1 << 20
NOISE = bytes(range(2, 102))
"""Bytes that no message begins in."""
ONE = encode_message(b"x" * 30)
EMPTY_0 = struct.pack(">iBI", 5, 0, 0)
"""A length of 5 and zeros: a message of magic 0 without payload."""


def stored_wrapper(messages: bytes, codec: int) -> bytes:
    """Return a compressed message in which the messages lie as they are."""
    packed = gzip.compress(messages, compresslevel=0) if codec == Codec.GZIP else as_literals(messages)
    return encode_message(packed, codec=codec)


def as_literals(data: bytes) -> bytes:
    """Return raw snappy of literals, as of incompressible data; they end with the message."""
    size, head = len(data), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    return bytes(head) + b"".join(struct.pack("<BH", 61 << 2, len(one) - 1) + one for one in pieces)


INNER = build_message_set([random.Random(number).randbytes(200) for number in range(4)])


def end_of(data: bytes, *, is_end: bool = True) -> int | None:
    return find_end_of_damage(data, most_bytes=MOST, is_end=is_end)


def enclosing(
    data: bytes, known: int, target: int, *, is_end: bool = False, is_enough: bool = True
) -> Enclosing | None:
    return find_enclosing(data, known, target, most_bytes=MOST, is_end=is_end, is_enough=is_enough)


def test_literals_are_read_as_snappy() -> None:
    """Else the tests with it would show nothing."""
    data = random.Random(1).randbytes(70_000)
    assert data == bytes(decompress(Codec.SNAPPY, as_literals(data), limit=1 << 20, magic=1))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_damaged_length_of_a_compressed_message_does_not_show_what_lies_in_it(codec: int, place: int) -> None:
    """The inner messages are valid; only the checksum tells where the outer one ends."""
    wrapper = stored_wrapper(INNER, codec)
    damaged = bytearray(wrapper + ONE * 3)
    for value in range(256):
        damaged[place] = value
        if value != wrapper[place]:
            assert len(wrapper) == end_of(bytes(damaged))


def test_damaged_payload_ends_where_its_length_says() -> None:
    """No end fits the checksum, so it is the payload that is damaged."""
    damaged = bytearray(stored_wrapper(INNER, Codec.SNAPPY))
    damaged[-1] ^= 1

    assert len(damaged) == end_of(bytes(damaged) + ONE)
    assert len(damaged) == end_of(bytes(damaged))
    assert end_of(bytes(damaged) + ONE, is_end=False) is None, "another end may lie behind what was fetched"


@pytest.mark.parametrize("place", [4, 5, 6, 9])
def test_damaged_magic_attributes_or_checksum_leave_the_end(place: int) -> None:
    """Length and payload are right."""
    damaged = bytearray(ONE)
    damaged[place] ^= 0x43

    assert len(ONE) == end_of(bytes(damaged) + ONE)


def test_bytes_without_a_header_end_with_a_long_run_or_the_log() -> None:
    """A short run may lie inside of a compressed message."""
    run = ONE * (2 * RUN_BYTES // len(ONE))

    assert end_of(NOISE + ONE * 3, is_end=False) is None
    assert len(NOISE + ONE * 3) == end_of(NOISE + ONE * 3)
    found = end_of(NOISE + run, is_end=False)
    assert found is not None
    assert (found - len(NOISE)) % len(ONE) == 0
    assert RUN_BYTES <= found - len(NOISE) < RUN_BYTES + len(ONE)
    assert find_run(NOISE + run, 0, most_bytes=1000) == len(NOISE) + 1000


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_run_inside_of_a_large_compressed_message_is_none(codec: int) -> None:
    """gzip and snappy store 64 KiB at most in one piece."""
    rng = random.Random(3)
    inner = build_message_set([rng.randbytes(1000) for _ in range(400)])
    wrapper = stored_wrapper(inner, codec)

    assert find_run(wrapper, 1, most_bytes=MOST) is None


def test_empty_messages_prove_nothing() -> None:
    """Five zero bytes behind a length of 5 are "valid", and payloads hold such bytes."""
    assert not leads_on(EMPTY_0 + NOISE, 0, is_end=True)
    assert not leads_on(EMPTY_0, 0, is_end=False)
    assert leads_on(EMPTY_0, 0, is_end=True)
    assert leads_on(EMPTY_0 * 2 + ONE, 0, is_end=False)
    assert starts_with_nothing(EMPTY_0 + NOISE, is_end=False)
    assert starts_with_nothing(EMPTY_0 + ONE[:-1], is_end=True)
    assert not starts_with_nothing(EMPTY_0 + ONE[:-1], is_end=False)
    assert not starts_with_nothing(EMPTY_0 + ONE, is_end=True)
    assert not starts_with_nothing(ONE + NOISE, is_end=True)
    assert find_run(EMPTY_0 * 100_000, 0, most_bytes=MOST) is None
    damaged = NOISE + EMPTY_0 + NOISE
    assert len(damaged) == end_of(damaged)


def test_messages_without_payload_make_no_run() -> None:
    """Zeros with a length before them may fill a payload, between two messages that lie in there, too."""
    few = ONE + EMPTY_0 * (2 * RUN_BYTES // len(EMPTY_0)) + ONE
    assert find_run(NOISE + few, 1, most_bytes=MOST) is None


def test_length_that_leads_to_the_end_of_what_was_fetched_proves_nothing() -> None:
    """The log goes on there: with the next message, or in the middle of this one."""
    damaged = bytearray(encode_message(NOISE * 3))
    damaged[-1] ^= 1
    size = len(damaged)

    assert find_end_of_damage(bytes(damaged), most_bytes=size, is_end=False) is None
    assert size == find_end_of_damage(bytes(damaged) + ONE, most_bytes=size, is_end=False)


def test_length_proves_nothing_before_the_bytes_are_enough() -> None:
    """It leads to a message that lies inside; the end that fits the checksum has not been fetched."""
    message = bytearray(encode_message(NOISE + ONE + NOISE * 50))
    message[:4] = (message.index(ONE) - 4).to_bytes(4, "big")

    assert find_end_of_damage(bytes(message[:1000]), most_bytes=MOST, is_end=False) is None
    assert len(message) == end_of(bytes(message) + ONE)


@pytest.mark.parametrize("damage", [b"\0" * 5000, b"\x01" * 5000, b"\xff" * 5000, NOISE * 50])
def test_usual_damage_hides_no_run(damage: bytes) -> None:
    """Blocks of zeros are what a disk that lost power leaves."""
    run = ONE * (2 * RUN_BYTES // len(ONE))
    found = end_of(damage + run, is_end=False)
    assert found is not None
    assert (found - len(damage)) % len(ONE) == 0


def test_search_of_hostile_bytes_is_cut_short() -> None:
    """A header at every other position, each of a long message: the checksums would take minutes."""
    assert end_of(b"\0\1" * 600_000, is_end=False) is None


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_position_inside_of_a_message_is_known_from_the_messages_before(codec: int) -> None:
    """Each byte of a log begins a message, or lies in one."""
    wrapper = stored_wrapper(INNER, codec)
    log = ONE + wrapper + ONE
    starts = [0, len(ONE), len(ONE) + len(wrapper)]
    for position in range(1, len(log)):
        within = max(start for start in starts if start <= position)
        stop = next((start for start in starts if start > position), len(log))
        expected = None if position == within else Enclosing(within, stop)
        assert expected == enclosing(log, 0, position)


def test_position_behind_damage_is_known_all_the_same() -> None:
    """The damage is passed as it is when it is read; what is cut off contains the position, too."""
    damaged = bytearray(ONE * 3)
    damaged[2] ^= 1
    log = bytes(damaged)

    assert enclosing(log, 0, len(ONE)) is None
    assert Enclosing(0, len(ONE)) == enclosing(log, 0, 5)
    assert Enclosing(0, None) == enclosing(ONE[:-1], 0, 5)
    assert enclosing(NOISE, 0, 5) is None, "nothing is proved"
    assert Enclosing(0, None) == enclosing(NOISE, 0, 5, is_enough=False), "more bytes may tell"


def test_end_of_a_gap_at_an_earlier_log_end_stays_a_boundary() -> None:
    """Damage without a proof ended with the log; messages that came later do not prove that it went on."""
    log = NOISE + ONE * 2 + ONE * (2 * RUN_BYTES // len(ONE))
    position = len(NOISE + ONE * 2)

    assert enclosing(log, 0, position, is_end=True) is None
