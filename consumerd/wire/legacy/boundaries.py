# SPDX-License-Identifier: Apache-2.0
"""Proofs that a message of Kafka 0.6 and 0.7 begins at a position.

They are needed behind damage, and where a fetch starts.

Pure. Offsets count bytes, so any offset leads somewhere, and a valid message there proves nothing: gzip stores what it
cannot compress, snappy has literals, and payloads may be message sets. Messages then lie whole, with right checksums,
inside of another message. Delivered from there, a record gets an identity that is not its own, and is delivered again
with the true one. Three proofs are accepted. Each begins at a damaged message whose own start is known.

Checksum
    No checksum covers the length, but the one of the payload does: if only the length is damaged, the payload has its
    checksum up to the true end, and up to no other.
Length
    If no end fits the checksum, the payload is damaged. Then the length is right, if a message begins at the end that
    it claims. Without enough bytes to see that no other end fits, this proves nothing.
Run
    If nothing of the header is left, a run of valid messages without a break is followed for :data:`RUN_BYTES`. gzip
    stores 65,535 bytes at most in one piece, snappy's encoders 65,536: a run inside of a compressed message is shorter,
    or has come to the true messages behind it. What the run was in its first part is unknown, and is not delivered.
    (The run also proves nothing in an uncompressed payload that holds a message set larger than that.)

Example: a compressed message of 900 bytes at offset 0 has a damaged length, and holds four valid messages from 25 on. A
search for valid messages would deliver (25, 0). But the payload's checksum fits the bytes 10 to 899 only, so the next
message begins at 900.

A message without payload has the checksum 0, so five zero bytes behind a length of 5 are "valid". It begins nothing
here unless a message with payload, or the end of the log, follows.
"""

from __future__ import annotations

import functools
import re
import zlib
from typing import Final, NamedTuple

from consumerd.errors import CorruptMessageError
from consumerd.wire.checksum import span_crc32
from consumerd.wire.kernel import Buffer
from consumerd.wire.legacy.stored_message import (
    LEAST_LENGTHS,
    LEAST_MESSAGE_BYTES,
    LENGTH_BYTES,
    MAGIC_AT,
    find_stop,
    read_header,
    read_length,
)
from consumerd.wire.primitives import MAX_INT32

RUN_BYTES: Final = 128 << 10
"""Length, in bytes, of a run of valid messages that proves that the next one is none of those inside of another."""
LOOKBACK_BYTES: Final = (2 * RUN_BYTES, (1 << 20) + 2 * RUN_BYTES)
"""Number of bytes before a first fetch that are read to prove its start: at first, and if those prove nothing.

A message of 1,000,000 bytes, the broker's default limit, and a run fit into the second.
"""
PROOF_BYTES: Final = 8 << 20
"""Size, in bytes, of the fetch that searches the end of a damaged message."""
_CHECKED_FACTOR: Final = 8
"""Limit on the bytes whose checksum one search computes, as a multiple of the bytes that it searches.

Damaged or hostile bytes may have a possible header at every position, each of a long message.
"""
_MOST_ENDS: Final = 1 << 18
"""Limit on the possible ends at which a payload's checksum is tried."""


class Enclosing(NamedTuple):
    """Message that contains a position: its start, and its end if that is proved."""

    start: int
    stop: int | None


class _Step(NamedTuple):
    """A valid message: its end, and False if it has no payload."""

    stop: int
    has_payload: bool


def needed_bytes(most_bytes: int) -> int:
    """Return the size of a fetch that can prove where a damaged message ends.

    Args:
        most_bytes: size in bytes of the largest message that is accepted.
    """
    return min(PROOF_BYTES, most_bytes)


def find_end_of_damage(data: Buffer, *, most_bytes: int, is_end: bool) -> int | None:
    """Return the end of damage at the start of ``data``; None without proof.

    Messages go on there.

    Args:
        data: fetched bytes. The unreadable message begins with them.
        most_bytes: size in bytes of the largest message that is accepted; larger ones are taken for damage.
        is_end: True if ``data`` ends with the log or with a log segment. Without another proof the damage ends there.
    """
    end = _prove_by_header(data, most_bytes, is_end=is_end, is_enough=is_end or len(data) >= needed_bytes(most_bytes))
    if end is None:
        end = find_run(data, 1, most_bytes=most_bytes)
    return len(data) if end is None and is_end else end


def leads_on(data: Buffer, at: int, *, is_end: bool) -> bool:
    """Return True if a message with payload, or the end, is at ``at``.

    Messages without payload may be before it.

    Args:
        is_end: True if ``data`` ends with the log or with a log segment.
    """
    while at <= len(data):
        if at == len(data):
            return is_end
        step = _read_valid(data, at)
        if step is None:
            return False
        if step.has_payload:
            return True
        at = step.stop
    return False


def starts_with_nothing(data: Buffer, *, is_end: bool) -> bool:
    """Return True if the first message has no payload, and no message follows.

    It may be a few zero bytes of another one. What follows it is cut off, which does not count, or damaged.
    """
    at = 0
    while (step := _read_valid(data, at)) is not None and not step.has_payload:
        at = step.stop
    if not at or step is not None or at == len(data):
        return False
    try:
        stop = find_stop(data, at)
    except CorruptMessageError:
        return True
    return is_end if stop is None or stop > len(data) else True


def find_run(data: Buffer, at: int, *, most_bytes: int) -> int | None:
    """Return the first message from ``at`` on that a run proves; None without one.

    Args:
        most_bytes: size in bytes of the largest message that is accepted.
    """
    proof = min(RUN_BYTES, most_bytes)
    budget = _CHECKED_FACTOR * max(len(data) - at, 0)
    pattern = _compile_candidate(min(most_bytes, MAX_INT32) >> 24)
    while budget > 0 and (candidate := pattern.search(data, at)) is not None:
        place = begin = candidate.start()
        run = 0
        while (step := _read_valid(data, place, most_bytes)) is not None:
            if run >= proof and step.has_payload:
                return place
            if step.has_payload:
                run += step.stop - place
            elif place == begin:
                break
            budget -= step.stop - place
            place = step.stop
        if step is None:
            budget -= _count_checked(data, place, most_bytes)
        at = max(place, begin + 1)
    return None


def find_enclosing(
    data: Buffer, known: int, target: int, *, most_bytes: int, is_end: bool, is_enough: bool
) -> Enclosing | None:
    """Return the message inside of which ``target`` lies, or None.

    None means that a message begins there, or that it cannot be told.

    Args:
        data: bytes before and behind ``target``.
        known: position at which a message begins, before ``target``.
        most_bytes: size in bytes of the largest message that is accepted.
        is_end: True if ``data`` ends with the log or with a log segment.
        is_enough: True if no larger fetch will follow. Otherwise a message before ``target`` whose end cannot be told
            is returned, too.
    """
    at = begin = known
    while at < target:
        begin = at
        if (step := _read_valid(data, begin, most_bytes)) is not None:
            at = step.stop
            continue
        rest = memoryview(data)[begin:]
        found = _prove_by_header(rest, most_bytes, is_end=is_end, is_enough=is_enough)
        if found is None:
            # only before the target: a run behind it would tell nothing about the bytes from there on
            found = find_run(rest[: target - begin], 1, most_bytes=most_bytes)
        if found is None:
            # the message may only be cut off: its start is known, and its end is not in data
            is_cut_off = not is_end and len(rest) < _count_claimed(data, begin) <= most_bytes
            return Enclosing(begin, None) if is_cut_off or not is_enough else None
        at += found
    return None if at == target else Enclosing(begin, at)


def _prove_by_header(data: Buffer, most_bytes: int, *, is_end: bool, is_enough: bool) -> int | None:
    """Return the end of the first message that its header proves; None without proof.

    Args:
        is_enough: True if ``data`` is long enough to tell that no other end fits the checksum.
    """
    end = _match_checksum(data, most_bytes)
    if end is None and is_enough:
        claimed = _count_claimed(data, 0)
        if claimed >= LEAST_MESSAGE_BYTES and leads_on(data, claimed, is_end=is_end):
            return claimed
    return end


def _match_checksum(data: Buffer, most_bytes: int) -> int | None:
    """Return the end up to which the first payload has its checksum, or None."""
    if len(data) <= LEAST_MESSAGE_BYTES + 1:
        return None
    view, size = memoryview(data), min(len(data), most_bytes)
    claimed = _count_claimed(data, 0)
    ends: list[int] = []
    for candidate in _compile_candidate(min(most_bytes, MAX_INT32) >> 24).finditer(data, LEAST_MESSAGE_BYTES + 1):
        if candidate.start() >= size or len(ends) == _MOST_ENDS:
            break
        ends.append(candidate.start())
    if LEAST_MESSAGE_BYTES < claimed <= size:
        ends.append(claimed)
    if size == len(data):
        ends.append(size)
    for magic in (0, 1):
        payload_at = LENGTH_BYTES + LEAST_LENGTHS[magic]
        stored = int.from_bytes(view[payload_at - 4 : payload_at], "big")
        crc, done = 0, payload_at
        for end in sorted(ends):
            if end <= payload_at:
                continue
            crc, done = zlib.crc32(view[done:end], crc), end
            # a damaged magic byte is possible, too, but then the length is right
            if crc == stored and (data[MAGIC_AT] == magic or end == claimed):
                return end
    return None


def _read_valid(data: Buffer, at: int, most_bytes: int = MAX_INT32) -> _Step | None:
    """Return the valid, whole message at ``at``, or None."""
    try:
        header = read_header(data, at)
    except CorruptMessageError:
        return None
    if header is None or header.stop - at > most_bytes:
        return None
    if span_crc32(data, header.payload_at, header.stop) != header.checksum:
        return None
    return _Step(header.stop, header.stop > header.payload_at)


def _count_checked(data: Buffer, at: int, most_bytes: int) -> int:
    """Return the number of bytes that a failed :func:`_read_valid` has read."""
    claimed = _count_claimed(data, at)
    return claimed if 0 < claimed <= min(most_bytes, len(data) - at) else 1


def _count_claimed(data: Buffer, at: int) -> int:
    """Return the size of a message by its length; 0 if that is impossible."""
    length = read_length(data, at)
    return 0 if length is None or length < 0 else LENGTH_BYTES + length


@functools.cache
def _compile_candidate(most: int) -> re.Pattern[bytes]:
    """Return the pattern of a position at which a message may begin.

    It is followed by a possible length, and by magic 0 or 1. A regular expression passes over damaged bytes much faster
    than a loop. Zeros, which damaged disks often return, are no length.

    Args:
        most: largest first byte of a length.
    """
    first = re.escape(bytes((most,)))
    return re.compile(rb"(?=(?!\0\0\0[\0-\4])[\0-" + first + rb"].{3}[\0\1])", re.DOTALL)
