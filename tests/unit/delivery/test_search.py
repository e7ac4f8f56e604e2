# SPDX-License-Identifier: Apache-2.0
"""The search for what can be read behind a damaged unit: the first there is, in few looks, and nothing is invented."""

import asyncio
import random

import pytest

from consumerd.delivery.search import MOST_LOOKS, SearchProbe, confirm_end, find_readable, head_of


class Log:
    """Offsets ``[0, end)`` by what a fetch at each meets: None where it can be read, a unit's head, or an offset far off."""

    def __init__(self, end, damage):
        self.end = end
        self.damage = damage
        self.looks = []

    async def look(self, at):
        assert 0 < at < self.end
        assert at not in self.looks
        self.looks.append(at)
        met = self.damage(at)
        if met is None:
            return SearchProbe(at=at, readable=at)
        return SearchProbe(at=at, readable=met) if isinstance(met, int) else SearchProbe(at=at, unit=head_of(met))

    def find(self):
        first = self.damage(0)
        bad = SearchProbe(at=0, readable=first) if isinstance(first, int) else SearchProbe(at=0, unit=head_of(first))
        return asyncio.run(find_readable(self.look, bad, self.end))


@pytest.mark.parametrize("end", [2, 3, 10, 1000])
def test_the_first_readable_offset_behind_one_unit_is_found_in_few_looks(end):
    """Each look is a fetch, and each that fails two."""
    for first in range(1, end):
        log = Log(end, lambda at, first=first: b"unit" if at < first else None)

        assert first == log.find()
        assert len(log.looks) <= 16 + 2 * end.bit_length()


def test_the_search_gives_up_at_the_end_of_the_log():
    """The last offset that there is was tried too."""
    log = Log(2000, lambda _: b"unit")

    assert log.find() is None
    assert 1999 == max(log.looks)
    assert len(log.looks) <= 16 + 11
    assert Log(1, lambda _: b"unit").find() is None


@pytest.mark.parametrize("seed", range(300))
def test_nothing_that_can_be_read_is_passed_over(seed):
    """However the damaged units lie, and wherever single records stand between them; also where a broker, lost behind one
    of them, leads far away.
    """
    dice = random.Random(seed)
    end = dice.choice([5, 40, 300, 3000])
    met, at, number = [], 0, 0
    while at < end:
        number += 1
        size = dice.choice([1, 1, 2, 3, 7, 50])
        kind = dice.choice([b"unit", b"unit", None if end - 1 in met else end - 1, None]) if at else b"unit"
        met += [kind and (kind if isinstance(kind, int) else kind + bytes([number % 256]))] * size
        at += size
    log = Log(end, lambda at: met[at])
    readable = [at for at in range(1, end) if met[at] is None or met[at] == at]
    lost = [one for one in met[:end] if isinstance(one, int)]

    found = log.find()

    if readable:
        assert min(readable) == found
    else:
        assert found == (min(lost) if lost else None)


def test_units_that_nobody_can_tell_apart_enclose_what_may_be_readable():
    """Zeros look alike wherever they stand."""
    log = Log(2000, lambda at: None if at in (301, 1999) else bytes(100))

    assert 301 == log.find()


def test_the_search_ends_where_damage_has_no_end():
    """A partition must not be away for an hour."""
    log = Log(10_000, lambda at: None if at == 9999 else b"")

    assert 9999 == log.find()
    assert MOST_LOOKS == len(log.looks)


def test_close_to_the_unit_every_offset_is_looked_at():
    """There it costs little to take nobody's word."""
    assert 9 == Log(1000, lambda at: 999 if at % 9 or not at else None).find()


def test_a_hole_without_damage_costs_few_looks():
    """Compaction leaves holes of millions of offsets."""
    log = Log(1_000_000, lambda _: 999_999)

    assert 999_999 == log.find()
    assert len(log.looks) <= 37


@pytest.mark.parametrize(
    ("probes", "end"),
    [
        ({25: SearchProbe(at=25, readable=25)}, 25),
        ({25: SearchProbe(at=25, claimed_end=40), 40: SearchProbe(at=40, readable=40)}, 25),
        ({25: SearchProbe(at=25)}, None),
        ({25: SearchProbe(at=25, claimed_end=40), 40: SearchProbe(at=40)}, None),
    ],
    ids=["records", "another one, then records", "nothing", "another one, then nothing"],
)
def test_the_claimed_end_of_an_oversized_message_is_confirmed_by_records(probes, end):
    """For the daemon and for ``tail``: in Kafka 0.7 a damaged length could pass over the rest of the log."""

    async def look(at):
        return probes[at]

    assert asyncio.run(confirm_end(look, 25)) == end


def test_a_chain_of_claims_ends():
    """A broker could send one claim after the other for ever."""
    looks = []

    async def look(at):
        looks.append(at)
        return SearchProbe(at=at, claimed_end=at + 1)

    assert asyncio.run(confirm_end(look, 25)) is None
    assert len(looks) == MOST_LOOKS
