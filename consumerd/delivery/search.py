# SPDX-License-Identifier: Apache-2.0
"""Searches the first readable offset after a damaged unit by probing later offsets.

It is used when the end of the unit is unknown.

Pure but for the probes. Brokers seek in one direction: a later offset never leads to an earlier place in the log. So if
two offsets lead to the same unit, nothing else lies between them. Between two offsets that lead to different units
there may be records, and the middle is probed, until the offsets are neighbours. The leftmost interval goes first, so
the result is the first readable offset.

Example: unit A at offset 100 is damaged, and records can be read from 130 on.

1. Probes at 101 to 116 all find A. The next one, at 132, is readable.
2. The interval (116, 132) is bisected: 124 and 128 find A, 130 is readable, 129 finds A.
3. The result is 130.

A unit is identified by its first bytes. A unit without any (an empty answer, or only zeros) equals no other, not even
itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

PROBE_S: Final = 5.0
"""Time limit, in seconds, of one probe."""
MOST_LOOKS: Final = 1000
"""Probes after which the first readable offset found so far is used."""
_CLOSE: Final = 16
"""Offsets after the unit that are probed one by one."""
_HEAD_BYTES: Final = 64
"""Bytes that identify a unit: the header of every format, with offset and checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProbe:
    """Result of a fetch at offset ``at``, in search of records after damaged bytes.

    ``readable`` is the first offset, ``at`` or later, from which records were read; None if none were. Then ``unit`` is
    the first bytes of the damaged message or batch found there, and ``claimed_end`` the offset at which an oversized
    message ends by its own header.
    """

    at: int
    readable: int | None = None
    unit: bytes | None = None
    claimed_end: int | None = None

    def meets_same(self, other: SearchProbe) -> bool:
        """Return True if no readable record can lie between the offsets of the two probes.

        That is the case if both found the same damaged unit, or the same first readable offset.
        """
        if self.readable is not None or other.readable is not None:
            return self.readable == other.readable
        return self.unit is not None and self.unit == other.unit


def head_of(raw: bytes) -> bytes | None:
    """Return the first bytes of a unit, by which another probe recognizes it.

    None if ``raw`` begins with zeros only, or is empty: such bytes identify no unit.
    """
    head = raw[:_HEAD_BYTES]
    return head if any(head) else None


async def find_readable(look: Callable[[int], Awaitable[SearchProbe]], bad: SearchProbe, end: int) -> int | None:
    """Return the first offset in ``(bad.at, end)`` from which delivery can continue, or None.

    The fetch of ``bad`` may already have returned records at a higher offset. Then that offset is the result, unless a
    lower one is readable. The first probes advance by one offset, the next ones by doubling steps, until a probe is
    readable at its own offset; then the intervals are bisected. This takes about 50 probes for one damaged unit, and
    one bisection for each further unit.

    Args:
        look: Fetches at an offset, and returns what was found there.
        bad: Probe of the damaged unit.
        end: Offset at which the search ends; it is not probed.
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


async def confirm_end(look: Callable[[int], Awaitable[SearchProbe]], claimed: int) -> int | None:
    """Return the end that an oversized message claims, if confirmed; else None.

    In Kafka 0.6 and 0.7 no checksum and no high watermark limits the claim: a damaged length could pass over the rest
    of the log. Records that can be read at ``claimed`` confirm it. If another oversized message begins there, the
    records after that one confirm both.

    Args:
        look: Fetches at an offset, and returns what was found there.
    """
    at: int | None = claimed
    for _ in range(MOST_LOOKS):
        if at is None:
            break
        probe = await look(at)
        if probe.readable is not None:
            return claimed
        at = probe.claimed_end
    return None


def _gallop(bad: int, end: int) -> list[int]:
    """Return the offsets to probe: the next 16, doubling steps, then ``end - 1``."""
    offsets, step = list(range(bad + 1, min(bad + 1 + _CLOSE, end))), 2 * _CLOSE
    while bad + step < end:
        offsets.append(bad + step)
        step *= 2
    if offsets and offsets[-1] < end - 1:
        offsets.append(end - 1)
    return offsets


def _sooner(*offsets: int | None) -> int | None:
    return min((one for one in offsets if one is not None), default=None)
