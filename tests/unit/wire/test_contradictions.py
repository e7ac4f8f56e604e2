# SPDX-License-Identifier: Apache-2.0
"""Offsets that a disk has changed upwards: no checksum covers them, the units behind give them away.

What a broker answers with is built as it does: from the first unit on whose offset is not below the one asked for.
"""

import struct

import pytest

from consumerd.errors import CorruptMessageError
from consumerd.model import GapReason, TopicPartition
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.modern.slices import cut_record_set
from tests.support.record_sets import RecordSpec, batch, message, wrapper

pytestmark = pytest.mark.usefixtures("each_path")

P = TopicPartition.modern("t", 0)
FIRST, LAST = 18, 60
KINDS = ["magic 0", "magic 1", "gzip 0", "gzip 1", "batch", "gzip batch"]


def unit(kind, first, count):
    """Return a unit of ``count`` records, of one where messages are plain."""
    if kind in ("magic 0", "magic 1"):
        return message(first, b"%d" % first, magic=int(kind[-1]))
    if "batch" in kind:
        specs = [RecordSpec(delta=row, value=b"%d" % (first + row)) for row in range(count)]
        return batch(first, specs, codec=int(kind != "batch"))
    magic = int(kind[-1])
    inner = b"".join(message(row + (0 if magic else first), b"%d" % (first + row), magic=magic) for row in range(count))
    return wrapper(first + count - 1, inner, 1, magic=magic)


class Log:
    """Units of one kind, one of which claims another offset than it has."""

    def __init__(self, kind, damaged, by, holes=()):
        self.kind = kind
        self.count = 1 if kind.startswith("magic") else 3
        self.units = []
        self.damaged = None
        for number, first in enumerate(range(FIRST, LAST, self.count)):
            if number in holes:
                continue
            data = unit(kind, first, self.count)
            last = first + self.count - 1
            if number == damaged:
                (offset,) = struct.unpack_from(">q", data)
                data = struct.pack(">q", offset + by) + data[8:]
                self.damaged = first, last + 1
                last += by
            self.units.append((last, data))

    def fetch(self, offset, most=None):
        """Return what a broker answers, ``most`` bytes at most."""
        at = next((place for place, (last, _) in enumerate(self.units) if last >= offset), len(self.units))
        return b"".join(data for _, data in self.units[at:])[:most]

    def consume(self, most=None, attested=True, piece_bytes=1 << 20):
        """Read the log from its beginning, the first piece of each answer, a unit that is corrupt passed over; returns
        offsets, values and what was lost.
        """
        position, rows, lost = FIRST, [], []
        for _ in range(300):
            data = self.fetch(position, most)
            if position == LAST or not data:
                break
            end = cut_record_set(data, slice_bytes=piece_bytes, expansion=1.0)[0].end
            try:
                found = decode_record_set(
                    data[:end],
                    partition=P,
                    start=position,
                    high_watermark=LAST,
                    following=memoryview(data)[end:],
                    attested=attested,
                )
            except CorruptMessageError as error:
                lost.append((position, error.next_offset))
                position = error.next_offset or LAST + 1
            else:
                assert found.next_offset > position
                rows += [(record.offset, record.value) for record in found.records()]
                lost += [(gap.start, gap.end) for gap in found.gaps if gap.reason is GapReason.COMPACTION]
                position = found.next_offset
        return position, rows, lost


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damaged", [0, 1, 5, 9])
@pytest.mark.parametrize("by", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("units", [None, 4, 7.2])
def test_an_offset_that_was_damaged_upwards_costs_its_own_unit_alone(kind, damaged, by, units):
    """Believed, a record is delivered at an offset of another, and all before that counts as compacted."""
    log = Log(kind, damaged, by)
    size = len(log.units[0][1])

    # from the damaged unit to what is due, and three more: what a broker's index leaves between two entries is more
    position, rows, lost = log.consume(None if units is None else int((units + by) * size))

    assert LAST == position
    first, end = log.damaged
    assert [(at, b"%d" % at) for at in range(FIRST, LAST) if not first <= at < end] == rows
    assert [log.damaged] == lost


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("behind", [1, 2, 7])
@pytest.mark.parametrize("by", [1, 2, 3, 64, 1 << 40])
def test_a_piece_of_an_answer_is_judged_by_what_came_behind_it(kind, behind, by):
    """Each unit is a piece: what gives the damaged one away is in another, or in none, for the log ends there."""
    number = (LAST - FIRST) // (1 if kind.startswith("magic") else 3) - 1 - behind
    log = Log(kind, number, by)

    position, rows, lost = log.consume(piece_bytes=1)

    assert LAST == position
    first, end = log.damaged
    assert [(at, b"%d" % at) for at in range(FIRST, LAST) if not first <= at < end] == rows
    assert [log.damaged] == lost


@pytest.mark.parametrize("kind", ["gzip 1", "batch", "gzip batch"])
@pytest.mark.parametrize("holes", [{7}, {7, 8, 10}])
def test_a_unit_that_comes_again_is_known_by_what_is_due_behind_it(kind, holes):
    """There would be room for what is due behind the damaged unit: but that begins before the position."""
    log = Log(kind, 5, 1, holes)

    _, rows, lost = log.consume()

    first, end = log.damaged
    gone = {FIRST + 3 * number + row for number in holes for row in range(3)} | set(range(first, end))
    assert [(at, b"%d" % at) for at in range(FIRST, LAST) if at not in gone] == rows
    assert log.damaged == lost[0]


def test_what_is_due_is_found_behind_several_that_stand_before_it():
    """The one between was read long ago and says nothing any more; the one behind it does, by where it begins."""
    damaged = wrapper(9, message(0, b"a") + message(1, b"b"), 1)
    data = damaged + unit("gzip 1", 2, 3) + unit("gzip 1", 7, 4)

    found = decode_record_set(data, partition=P, start=7, high_watermark=11)

    assert [(at, b"%d" % at) for at in range(7, 11)] == [(record.offset, record.value) for record in found.records()]


@pytest.mark.parametrize("kind", KINDS)
def test_holes_of_a_compacted_log_are_no_contradiction(kind):
    """What is compacted ascends; every unit is read, whatever of the set came."""
    log = Log(kind, None, 0, holes={1, 2, 3, 5, 7, 8, 10, 12})
    size = len(log.units[0][1])

    expected = log.consume()
    for most in (size, size + 5, 2 * size, 2 * size + 30, 3 * size):
        assert expected[:2] == log.consume(most)[:2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("holes", [(), (3, 4)])
def test_an_offset_that_was_damaged_downwards_does_not_make_the_one_before_it_wrong(kind, holes):
    """It does not fit into a hole before that one: which is thus delivered, as all others are."""
    log = Log(kind, 6, -16, holes)
    _, rows, _ = log.consume()

    first, end = log.damaged
    # in a wrapper of magic 0 the offsets stand inside, under its checksum
    lost = holes if kind == "gzip 0" else (*holes, 6)
    gone = {first + log.count * (number - 6) + row for number in lost for row in range(log.count)}
    assert end - first == log.count
    assert [(at, b"%d" % at) for at in range(FIRST, LAST) if at not in gone] == rows


@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_beyond_the_log_hides_nothing_behind_it(kind):
    """A broker answers with that unit to whatever is asked for; it stands before what is due all the same."""
    log = Log(kind, 4, 1 << 40)

    position, rows, lost = log.consume()

    first, end = log.damaged
    assert LAST == position
    assert [(at, b"%d" % at) for at in range(FIRST, LAST) if not first <= at < end] == rows
    assert [log.damaged] == lost


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", [0, 7])
def test_what_is_due_is_read_behind_a_unit_that_cannot_be_and_comes_again(kind, by):
    """Its checksum is wrong besides: passed over once, it must not hold up what stands behind it."""
    log = Log(kind, 4, by)
    last, data = log.units[4]
    log.units[4] = last, data[:-1] + bytes((data[-1] ^ 1,))

    position, rows, lost = log.consume()

    first, end = log.damaged
    assert LAST == position
    assert [(at, b"%d" % at) for at in range(FIRST, LAST) if not first <= at < end] == rows
    assert [log.damaged] == lost


@pytest.mark.parametrize("size", range(27))
@pytest.mark.parametrize("data", [message(20, b"v"), batch(20, [RecordSpec(delta=0)])], ids=["message", "batch"])
def test_what_is_cut_off_in_the_middle_of_its_head_beyond_the_end_of_the_log_is_corrupt(data, size):
    """A broker that says that the log ends before the position answers with records nonetheless, and those are cut off."""
    with pytest.raises(CorruptMessageError, match="beyond the high watermark 5") as caught:
        decode_record_set(data[:size], partition=P, start=10, high_watermark=5)

    assert caught.value.raw == data[:size]
    assert caught.value.next_offset is None


def test_a_message_within_a_wrapper_does_not_lead_beyond_the_log_either():
    """Of a wrapper of magic 0 the head may be sound and what it holds not: two units in a row claim what does not exist."""
    within = wrapper(6, message(5, b"a", magic=0) + message(1 << 40, b"b", magic=0), 1, magic=0)
    data = within + message(1 << 41, b"c", magic=0)

    for start in (5, 6):
        with pytest.raises(CorruptMessageError, match="beyond the high watermark 9") as caught:
            decode_record_set(data, partition=P, start=start, high_watermark=9)
        assert caught.value.next_offset is None


def units(text, kind="batch"):
    """Return units like ``25`` (a message), ``20-22`` (of ``kind``) and ``20x`` (unreadable), separated by commas."""
    made = []
    for one in text.split(","):
        first, _, last = one.strip().rstrip("x").partition("-")
        data = unit(kind if last else "magic 1", int(first), int(last or first) - int(first) + 1)
        made.append(data[:-1] + bytes((data[-1] ^ 1,)) if "x" in one else data)
    return b"".join(made)


@pytest.mark.parametrize("attested", [False, True])
@pytest.mark.parametrize(
    ("fetched", "following", "offsets"),
    [
        ("12x, 20, 21", "", [20, 21]),
        ("20, 5000, 21", "", [20]),
        ("5000, 20, 21", "", [20, 21]),
        ("20, 21, 25, 26", "30", [20, 21, 25, 26]),
        ("20, 25", "23", [20]),
        ("20, 25, 23", "", [20]),
        ("20, 25, 21", "", [20, 25]),
        ("18-20, 20-22", "", [20, 21, 22]),
        ("20-22, 20-22, 23", "", [20, 21, 22, 23]),
        ("20-22, 20-22, 24, 25", "", [20, 21, 22, 24, 25]),
        ("20-22, 8-10, 11-13", "", []),
        ("20-22, 21-23, 30", "", [20, 21, 22]),
        ("25, 3, 26", "", [25]),
        ("25, 20, 21", "", [20, 21]),
        ("25, 12", "", []),
    ],
)
@pytest.mark.parametrize("kind", ["batch", "gzip batch", "gzip 1"])
def test_each_situation_of_two_offsets_is_decided_as_documented(kind, fetched, following, offsets, attested):
    """The table in the decoder's docstring, at position 20 of a log that ends at 100."""
    found = decode_record_set(
        units(fetched, kind),
        partition=P,
        start=20,
        high_watermark=100,
        following=units(following, kind) if following else b"",
        attested=attested,
    )

    assert (offsets, offsets[-1] + 1 if offsets else 20) == (list(found.offsets), found.next_offset)


def test_a_unit_that_comes_again_is_known_by_its_header_when_its_first_records_are_compacted():
    """No record of it stands before the position any more, but its header still begins there."""
    data = batch(18, [RecordSpec(delta=2, value=b"wrong")]) + unit("batch", 20, 3)

    found = decode_record_set(data, partition=P, start=20, high_watermark=100)

    assert [(20, b"20"), (21, b"21"), (22, b"22")] == [(record.offset, record.value) for record in found.records()]


@pytest.mark.parametrize("attested", [False, True])
def test_an_offset_behind_a_gap_that_nothing_confirms_is_left_for_the_next_response(attested):
    """That begins with it, and has what follows."""
    found = decode_record_set(units("20, 21, 25"), partition=P, start=20, high_watermark=100, attested=attested)

    assert [20, 21] + [25] * (not attested) == list(found.offsets)


@pytest.mark.parametrize(
    ("fetched", "following", "next_offset"),
    [("20x", "21", 21), ("20x, 21", "", 21), ("25, 22, 23", "", 22), ("25, 3, 21", "", 21)],
)
def test_a_unit_in_the_place_of_the_one_asked_for_is_corrupt_up_to_the_next(fetched, following, next_offset):
    """No record is skipped silently: the error says where reading goes on."""
    with pytest.raises(CorruptMessageError) as caught:
        decode_record_set(
            units(fetched),
            partition=P,
            start=20,
            high_watermark=100,
            following=units(following) if following else b"",
        )

    assert (20, next_offset) == (caught.value.offset, caught.value.next_offset)


def test_a_follower_that_is_cut_off_says_where_reading_goes_on():
    """Its header is there; the rest of it comes with the next response."""
    with pytest.raises(CorruptMessageError) as caught:
        decode_record_set(units("25, 22")[:-1], partition=P, start=20, high_watermark=100)

    assert (20, 22) == (caught.value.offset, caught.value.next_offset)


def test_inner_offsets_of_a_wrapper_are_a_witness_even_if_its_header_is_damaged():
    """Inner offsets of magic 0 are under the checksum, so they count more than the header."""
    inner = message(22, b"22", magic=0) + message(23, b"23", magic=0)
    data = units("25") + wrapper(3, inner, 1, magic=0) + units("26")

    with pytest.raises(CorruptMessageError) as caught:
        decode_record_set(data, partition=P, start=20, high_watermark=100)

    assert (20, 22) == (caught.value.offset, caught.value.next_offset)


def test_a_control_batch_may_be_what_was_asked_for():
    """It gives no record, but it accounts for its offset: the unreadable unit before it is not missing."""
    control = batch(20, [RecordSpec(delta=0, key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")], attributes=0x20)

    found = decode_record_set(units("12x") + control + units("21"), partition=P, start=20, high_watermark=100)

    assert ([21], 22) == (list(found.offsets), found.next_offset)
