# SPDX-License-Identifier: Apache-2.0
"""How numbers are said."""

import pytest

from consumerd.telemetry.wording import counted, format_time


@pytest.mark.parametrize(("count", "said"), [(0, "0 members"), (1, "1 member"), (2, "2 members")])
def test_one_is_not_many(count: int, said: str) -> None:
    """``1 members`` makes a person doubt the rest."""
    assert counted(count, "member") == said


def test_times_are_in_utc_whatever_the_machines_zone_is() -> None:
    """Members and operators compare them across machines."""
    assert format_time(1_795_428_000_999) == "2026-11-23T10:00:00+00:00"


@pytest.mark.parametrize("time_ms", [2**63 - 1, -(2**63), 10**15])
def test_a_time_that_no_calendar_has_is_shown_as_a_number(time_ms: int) -> None:
    """A damaged record must not end the page that shows it."""
    assert format_time(time_ms) == f"{time_ms} ms since 1970"
