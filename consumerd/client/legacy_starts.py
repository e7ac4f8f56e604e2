# SPDX-License-Identifier: Apache-2.0
"""Check that a message of Kafka 0.6 and 0.7 begins where a first fetch begins.

A position inside of a message is no error to a broker: it returns the bytes from there on. If valid messages lie there
(:mod:`consumerd.wire.legacy.boundaries`), they would be delivered with offsets that are not theirs. That happens after
a broker was wiped and its log has grown beyond the position, and after a position was set by hand. So before a
partition is first read, the bytes before its position are fetched, and messages are followed up to there.

Example: the position is 140,000, and the bytes from 0 on are fetched. Messages begin at 0, ..., 139,100, and the last
one is compressed and ends at 141,000. So 140,000 lies inside of it.
"""

from __future__ import annotations

from typing import Final, Protocol

from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.legacy.boundaries import LOOKBACK_BYTES, Enclosing, find_enclosing, find_run, needed_bytes
from consumerd.wire.legacy.messages import LegacyFetchResponse

_MOST_FETCHES: Final = 16
"""Limit on the fetches of the bytes before one position: each ends with a log segment, and segments may be small."""


class LogReader(Protocol):
    """Reader of one partition's log."""

    async def fetch(self, offset: int, size: int) -> LegacyFetchResponse:
        """Return the response to a FETCH. Raises BrokerError, ConnectionLost, ProtocolError."""

    async def find_earliest(self) -> int:
        """Return the first offset of the log. Raises ConnectionLost, ProtocolError."""


async def find_enclosing_message(
    log: LogReader, position: int, data: bytes | memoryview, *, most_bytes: int, is_end: bool
) -> Enclosing | None:
    """Return the message inside of which ``position`` lies, or None.

    If ``data`` is too short to tell, a message without a known end is returned.

    Safe to cancel. Raises BrokerError, ConnectionLost, ProtocolError.

    Args:
        data: The bytes at ``position`` that were fetched already.
        most_bytes: Size in bytes of the largest message that is accepted.
        is_end: True if ``data`` ends with the log or with a log segment.
    """
    is_enough = is_end or len(data) >= needed_bytes(most_bytes)
    for size in LOOKBACK_BYTES:
        begin, before, is_known = await _read_before(log, position, size)
        known = 0 if is_known else find_run(before, 0, most_bytes=most_bytes)
        if known is not None:
            log_bytes, target = before + bytes(data), len(before)
            found = find_enclosing(log_bytes, known, target, most_bytes=most_bytes, is_end=is_end, is_enough=is_enough)
            if found is None:
                return None
            return Enclosing(begin + found.start, None if found.stop is None else begin + found.stop)
    return None


async def _read_before(log: LogReader, position: int, size: int) -> tuple[int, bytes, bool]:
    """Return an offset, the bytes from there to ``position``, and a flag.

    The flag is True if a message is known to begin at the offset.
    """
    begin = max(0, position - size)
    is_known = False
    for _ in range(_MOST_FETCHES):
        response = await log.fetch(begin, position - begin)
        data = bytes(response.messages)
        if response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not is_known:
            begin, is_known = await log.find_earliest(), True  # the log begins behind that
        elif response.error_code or not data:
            break
        elif begin + len(data) < position:
            begin, is_known = begin + len(data), True  # a log segment ends there, and the next one begins
        else:
            return begin, data, is_known or begin == 0
        if begin >= position:
            break
    return position, b"", True
