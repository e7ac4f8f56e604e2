# SPDX-License-Identifier: Apache-2.0
"""Where records can be read again behind a unit whose end nobody knows, found out by asking the broker at later offsets.

Pure but for the asking. What makes the search cheap is that brokers seek in one direction: a later offset never leads to
an earlier place of the log. So two offsets that lead to one and the same unit enclose nothing else, and nothing between
them need be asked for. Between two that lead to different ones there may be records: there it is asked again, in the
middle, until the offsets are neighbours. The leftmost such place goes first, so that what is found is the first there is.

A unit is known by its head. One without (nothing came, or zeros alone) is like no other, itself included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

PROBE_S: Final = 5.0
"""How long one look may take."""
MOST_LOOKS: Final = 1000
"""After so many the first that was found is gone on from, whatever may stand before it."""
_CLOSE: Final = 16
"""So many offsets behind the unit are looked at one by one, whatever they have in common."""
_HEAD_BYTES: Final = 64
"""Whole heads of every format, offset and checksum included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProbe:
    """What a fetch at offset ``at`` has met.

    ``readable`` is the first offset, ``at`` or a later one, from which delivery can go on, for it was read there; None
    where nothing was. ``unit`` then is the head of what stands there.
    """

    at: int
    readable: int | None = None
    unit: bytes | None = None

    def meets_same(self, other: SearchProbe) -> bool:
        """Tell whether both have met the same thing, so that nothing else stands between them."""
        if self.readable is not None or other.readable is not None:
            return self.readable == other.readable
        return self.unit is not None and self.unit == other.unit


def head_of(raw: bytes) -> bytes | None:
    """Return what a unit is known by; None where it cannot be told from others."""
    head = raw[:_HEAD_BYTES]
    return head if any(head) else None


async def find_readable(look: Callable[[int], Awaitable[SearchProbe]], bad: SearchProbe, end: int) -> int | None:
    """Return the first offset above ``bad`` and below ``end`` from which delivery can go on; None if none is found.

    Where ``bad`` itself leads to one, across a hole, that is the answer unless there is one inside the hole. Steps of one
    at first, then such that double, until something is met at its own place; then what lies between is looked at. Some 50
    looks for one damaged unit, and for each further one as many as halving takes.
    """
    looks = [bad]
    found = bad.readable
    left = MOST_LOOKS
    for at in _gallop(bad.at, end if found is None else min(end, found)):
        if found is not None and at >= found:
            break
        looks.append(await look(at))
        left -= 1
        found = _sooner(found, looks[-1].readable)
        if found == at:
            break
    place = 0
    while place + 1 < len(looks) and left:
        one, other = looks[place], looks[place + 1]
        if other.at - one.at <= 1 or one.meets_same(other):
            place += 1
            continue
        middle = await look((one.at + other.at) // 2)
        left -= 1
        found = _sooner(found, middle.readable)
        looks.insert(place + 1, middle)
        if middle.readable == middle.at:
            del looks[place + 2 :]
    return found


def _gallop(bad: int, end: int) -> list[int]:
    """Return the next offsets behind ``bad``, then some in steps that double, and the last below ``end``."""
    offsets, step = list(range(bad + 1, min(bad + 1 + _CLOSE, end))), 2 * _CLOSE
    while bad + step < end:
        offsets.append(bad + step)
        step *= 2
    if offsets and offsets[-1] < end - 1:
        offsets.append(end - 1)
    return offsets


def _sooner(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
