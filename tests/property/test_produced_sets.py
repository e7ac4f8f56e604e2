# SPDX-License-Identifier: Apache-2.0
"""What producers send, whole and damaged: what is let through is numbered, stored, converted and read by everybody."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError, LocalProtocolError
from consumerd.wire.compression import Codec
from consumerd.wire.modern.assigning import assign_offsets
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.checking import Rules, check
from consumerd.wire.modern.conversion import convert, convert_down
from consumerd.wire.records import Limits, NewRecord
from tests.property.test_records_decoding import mend, units
from tests.support import naive_records
from tests.support.naive_records import Row
from tests.support.units import walk_units

pytestmark = [pytest.mark.usefixtures("each_path"), pytest.mark.records]

LIMITS = Limits(decompressed_bytes=1 << 20, nesting=1)
RULES = Rules(codecs=tuple(Codec), limits=LIMITS)
FORMATS = [(magic, codec) for magic in (0, 1, 2) for codec in Codec if magic == 2 or codec is not Codec.ZSTD]
every_format = st.sampled_from(FORMATS)
starts = st.integers(0, 1 << 40) | st.sampled_from([0, 65_530, (1 << 32) - 2])
DAMAGE = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=3)


@st.composite
def new_records(draw: st.DrawFn) -> list[NewRecord]:
    """Return records, many of them alike: rows of one size are written and checked at once."""
    records: list[NewRecord] = []
    shapes = st.tuples(st.integers(1, 40), st.integers(-1, 70), st.integers(-1, 70), st.integers(-1, 1 << 45))
    for count, key, value, timestamp in draw(st.lists(shapes, min_size=1, max_size=4)):
        pace = draw(st.sampled_from([0, 1, 9000]))
        records += [
            NewRecord(
                key=None if key < 0 else b"k" * key,
                value=None if value < 0 else b"v" * value,
                timestamp=timestamp + row * pace,
            )
            for row in range(count)
        ]
    return records


def read(data: bytes | bytearray) -> list[Row]:
    """Return what the naive decoder finds, which must be all of it."""
    found = naive_records.decode(bytes(data), 0, LIMITS)
    assert not found.faulty
    assert not data or found.next_offset == list(walk_units(data))[-1].last_offset + 1
    return found.rows


def store(data: bytes, offset: int) -> bytes:
    """Do what a log does with a set. Raises CorruptMessageError."""
    return bytes(assign_offsets(bytearray(data), offset, parts=check(data, RULES)))


@settings(max_examples=80, deadline=None)
@given(records=new_records(), form=every_format, offset=starts, headed=st.booleans())
def test_what_is_built_is_stored_with_the_offsets_that_were_due(
    records: list[NewRecord], form: tuple[int, Codec], offset: int, headed: bool
) -> None:
    """Built, checked, numbered; read by a decoder that shares nothing with any of them but the codecs."""
    magic, codec = form
    headers = (("h", b"1"), ("null", None)) if headed and magic == 2 else ()
    sent = build_record_set(
        [NewRecord(key=one.key, value=one.value, timestamp=one.timestamp, headers=headers) for one in records],
        magic=magic,
        codec=codec,
    )

    stored = read(store(sent, offset))

    assert [
        (offset + row, one.timestamp if magic else -1, 0 if magic else -1, one.key, one.value, headers)
        for row, one in enumerate(records)
    ] == stored
    assert sum(part.count for part in check(sent, RULES)) == len(records)


@settings(max_examples=80, deadline=None)
@given(records=new_records(), form=every_format, offset=starts, to=st.integers(0, 2), time_ms=st.none() | st.just(77))
def test_conversion_keeps_records_there_and_back(
    records: list[NewRecord], form: tuple[int, Codec], offset: int, to: int, time_ms: int | None
) -> None:
    """All but what a magic has no place for."""
    magic, codec = form
    if codec is Codec.ZSTD:
        to = 2
    stored = bytes(
        assign_offsets(
            bytearray(build_record_set(records, magic=magic, codec=codec)),
            offset,
            log_append_time_ms=time_ms,
            parts=check(build_record_set(records, magic=magic, codec=codec), RULES),
        )
    )

    there = convert(stored, magic=to)
    back = convert(there, magic=magic)

    assert {to} == {unit.magic for unit in walk_units(there)}
    assert {codec} == {unit.codec for unit in walk_units(there)}
    if to and magic:
        assert read(stored) == read(there) == read(back)
    else:
        untimed = [(row[0], *row[3:]) for row in read(stored)]
        assert untimed == [(row[0], *row[3:]) for row in read(there)] == [(row[0], *row[3:]) for row in read(back)]


def check_any(data: bytes, offset: int) -> bool:
    """Hold all that reads produced sets to its promises, whatever ``data`` is; returns whether it was let through."""
    try:
        parts = check(data, RULES)
    except CorruptMessageError as error:
        return _is_refused(error)
    stored = assign_offsets(bytearray(data), offset, parts=parts)
    rows = read(stored)
    assert [row[0] for row in rows] == list(range(offset, offset + sum(part.count for part in parts)))
    for to in (0, 1, 2):
        with contextlib.suppress(LocalProtocolError):  # zstd below magic 2
            converted = read(convert(stored, magic=to, limits=LIMITS))
            assert [(row[0], row[3], row[4]) for row in rows] == [(row[0], row[3], row[4]) for row in converted]
    return True


def _is_refused(error: CorruptMessageError) -> bool:
    assert re.match(r"byte \d+ of \d+: ", str(error)), error
    return False


def check_stored(data: bytes, start: int) -> None:
    """Whatever a log's file holds, conversion ends in bytes or in one of two errors."""
    for to in (0, 1, 2):
        with contextlib.suppress(CorruptMessageError, LocalProtocolError):
            convert(data, magic=to, limits=LIMITS)
        with contextlib.suppress(CorruptMessageError, LocalProtocolError):
            convert_down(data, magic=to, start=start, limits=LIMITS)
    with contextlib.suppress(CorruptMessageError):
        assert sum(unit.size for unit in walk_units(data)) <= len(data)


def damage(data: bytes, places: list[tuple[int, int]], *, mended: bool) -> bytes:
    damaged = bytearray(data)
    for place, byte in places:
        damaged[place % len(damaged)] = byte
    if mended:
        mend(damaged)
    return bytes(damaged)


@settings(max_examples=200, deadline=None)
@given(records=new_records(), form=every_format, places=DAMAGE, mended=st.booleans(), offset=starts)
def test_damaged_sets_are_refused_or_stored_whole(
    records: list[NewRecord], form: tuple[int, Codec], places: list[tuple[int, int]], mended: bool, offset: int
) -> None:
    """With right checksums, too: what a broken producer wrote must not break those who read it."""
    magic, codec = form
    sent = build_record_set(records[:30], magic=magic, codec=codec)

    check_any(damage(sent, places, mended=mended), offset)


@settings(max_examples=150, deadline=None)
@given(data=units(), places=DAMAGE, mended=st.booleans(), start=st.integers(0, 60), cut=st.integers(0, 40))
def test_stored_bytes_that_are_damaged_are_converted_or_refused(
    data: bytes, places: list[tuple[int, int]], mended: bool, start: int, cut: int
) -> None:
    """A disk may do anything; old clients get an error for it, not half an answer."""
    check_stored(damage(data, places, mended=mended)[: len(data) - cut], start)
    check_any(damage(data, places, mended=mended), start)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
@example(data=b"")
def test_any_bytes_are_refused_or_stored(data: bytes) -> None:
    """A client may send anything."""
    check_any(data, 5)
    check_stored(data, 5)


@pytest.mark.parametrize("form", FORMATS)
def test_every_bit_that_is_flipped_is_found_but_where_nothing_depends_on_it(form: tuple[int, Codec]) -> None:
    """Offsets are not covered, nor the leader's epoch: they are the broker's to write."""
    magic, codec = form
    records = [NewRecord(key=b"k", value=b"v%d" % row, timestamp=row) for row in range(3)]
    sent = build_record_set(records, magic=magic, codec=codec)
    expected = read(store(sent, 40))
    heads = [unit.at for unit in walk_units(sent)]
    free = {place for at in heads for place in (*range(at, at + 8), *(range(at + 12, at + 16) if magic == 2 else ()))}

    for place in range(len(sent)):
        for bit in range(8):
            flipped = sent[:place] + bytes((sent[place] ^ 1 << bit,)) + sent[place + 1 :]
            try:
                stored = store(flipped, 40)
            except CorruptMessageError:
                continue
            assert place in free
            assert expected == read(stored)
