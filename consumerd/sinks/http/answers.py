# SPDX-License-Identifier: Apache-2.0
"""The meaning of a response: accepted, to be sent again, or refused. Pure.

=================================  =====================================================================
status code                        meaning
=================================  =====================================================================
2xx                                all records of the request are safe
408, 409, 425, 429, 5xx            send the same request again, after ``Retry-After`` or a backoff
400, 413, 422                      a record is refused: the request is halved until the record is found
3xx, other 4xx                     address or settings are wrong: no record is at fault, and none is passed over
=================================  =====================================================================

409 is retried because a server answers so while a request with the same idempotency key is still at work
(draft-ietf-httpapi-idempotency-key-header-07, section 2.6). Sources of the others: RFC 9110, section 15; RFC 6585,
section 4 (429); RFC 8470, section 5.2 (425).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from http import HTTPStatus
from typing import Final

_RETRIED: Final = frozenset({408, 409, 425, 429})
_OF_A_RECORD: Final = frozenset({400, 413, 422})
_LONGEST_NUMBER: Final = 18
"""Digits of a number of seconds that are read; longer numbers are not converted, which would take time."""


class AnswerKind(enum.Enum):
    """Reactions to a response."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    RECORD_REFUSED = "record refused"
    WRONG_ADDRESS = "wrong address"


def judge_status(status: int) -> AnswerKind:
    """Return what to do after a response with this status code."""
    if 200 <= status < 300:
        return AnswerKind.ACCEPTED
    if status in _RETRIED or status >= 500:
        return AnswerKind.RETRY
    return AnswerKind.RECORD_REFUSED if status in _OF_A_RECORD else AnswerKind.WRONG_ADDRESS


def describe_status(status: int) -> str:
    """Return a status code with its standard phrase, such as ``503 Service Unavailable``.

    The phrase of the response is not used: it is a text of the peer.
    """
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def name_class(status: int) -> str:
    """Return the class of a status code, as a label of metrics: ``2xx``."""
    return f"{status // 100}xx"


def read_retry_after(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """Return the seconds to wait by a response's ``Retry-After``; None without a readable one.

    The header holds seconds or a date (RFC 9110, section 10.2.3). A date is compared with the response's own ``Date``,
    so that the clocks of server and client need not agree. A date in the past is 0.

    Args:
        headers: The response's headers, by their usual names.
        now_s: The wall clock in seconds since the epoch, for a response without ``Date``.
    """
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= _LONGEST_NUMBER else float("inf")
    until = _read_date(text)
    if until is None:
        return None
    sent = _read_date(headers.get("Date", ""))
    return max(0.0, until - (now_s if sent is None else sent))


def _read_date(text: str) -> float | None:
    """Return the time of an HTTP date; None if the text is no date.

    The time is in seconds since the epoch. All three forms of RFC 9110, section 5.6.7, are read.
    """
    parts = parsedate_tz(text)
    if parts is None:
        return None
    try:
        return float(mktime_tz(parts))
    except (OverflowError, ValueError):
        return None
