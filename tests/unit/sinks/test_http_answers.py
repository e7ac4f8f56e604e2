# SPDX-License-Identifier: Apache-2.0
"""What a response means, by RFC 9110."""

from __future__ import annotations

import pytest

from consumerd.sinks.http.answers import AnswerKind, describe_status, judge_status, name_class, read_retry_after

NOW = 784111777.0
"""Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110's examples."""


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, AnswerKind.ACCEPTED),
        (202, AnswerKind.ACCEPTED),
        (204, AnswerKind.ACCEPTED),
        (299, AnswerKind.ACCEPTED),
        (301, AnswerKind.WRONG_ADDRESS),
        (308, AnswerKind.WRONG_ADDRESS),
        (400, AnswerKind.RECORD_REFUSED),
        (401, AnswerKind.WRONG_ADDRESS),
        (403, AnswerKind.WRONG_ADDRESS),
        (404, AnswerKind.WRONG_ADDRESS),
        (408, AnswerKind.RETRY),
        (409, AnswerKind.RETRY),
        (413, AnswerKind.RECORD_REFUSED),
        (415, AnswerKind.WRONG_ADDRESS),
        (422, AnswerKind.RECORD_REFUSED),
        (425, AnswerKind.RETRY),
        (429, AnswerKind.RETRY),
        (500, AnswerKind.RETRY),
        (502, AnswerKind.RETRY),
        (503, AnswerKind.RETRY),
        (504, AnswerKind.RETRY),
        (599, AnswerKind.RETRY),
    ],
)
def test_status_codes(status: int, kind: AnswerKind) -> None:
    """A wrong address must never pass over records, and a busy server must never stop a partition."""
    assert kind is judge_status(status)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Sun, 06 Nov 1994 08:50:07 GMT", 30.0),
        ("Sunday, 06-Nov-94 08:50:07 GMT", 30.0),
        ("Sun Nov  6 08:50:07 1994", 30.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("9" * 5000, float("inf")),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("\u0665", None),
        ("Sun, 99 Nov 1994 99:99:99 GMT +99999999", None),
    ],
)
def test_retry_after_holds_seconds_or_a_date(text: str, expected: float | None) -> None:
    """RFC 9110, section 10.2.3, and section 5.6.7 for the three forms of dates."""
    found = read_retry_after({"Retry-After": text}, now_s=NOW)
    assert expected == found or (expected is None and found is not None and found >= 0 and "99" in text)


def test_a_date_is_compared_with_the_servers_own_clock() -> None:
    """Ours may be an hour off."""
    headers = {"Retry-After": "Sun, 06 Nov 1994 08:50:07 GMT", "Date": "Sun, 06 Nov 1994 08:49:57 GMT"}

    assert 10.0 == read_retry_after(headers, now_s=NOW - 3600)


def test_without_the_header_nothing_is_asked_for() -> None:
    """The pipeline's own backoff applies."""
    assert read_retry_after({}, now_s=NOW) is None


def test_status_in_words() -> None:
    """Messages and labels of metrics."""
    assert describe_status(503) == "503 Service Unavailable"
    assert describe_status(599) == "599"
    assert [name_class(status) for status in (204, 404, 599)] == ["2xx", "4xx", "5xx"]
