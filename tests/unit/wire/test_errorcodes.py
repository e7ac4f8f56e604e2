# SPDX-License-Identifier: Apache-2.0
"""The error table against Kafka's own."""

from __future__ import annotations

import json

import pytest

from consumerd.wire.errorcodes import ErrorCode, broker_error
from tests.support.frames import VECTORS

KAFKA_ERRORS = json.loads((VECTORS / "errors-2.8.2.json").read_text())["errors"]


def test_table_is_that_of_kafka() -> None:
    """Names, retriability and the need for fresh metadata are Kafka's decision, not ours."""
    theirs = {row["code"]: (row["name"], row["retriable"], row["invalid_metadata"]) for row in KAFKA_ERRORS}

    ours = {code: ErrorCode(code) for code in {*theirs, *ErrorCode}}

    assert theirs == {code: (row.name, row.retriable, row.refresh) for code, row in ours.items()}


def test_documented_codes_are_there() -> None:
    """The protocol guide lists -1 to 31, but for 13, which brokers use as well."""
    assert not [
        code for code in range(-1, 32) if ErrorCode(code).name.startswith("UNKNOWN_") and code not in (-1, 3, 25)
    ]


def test_row_equals_its_number() -> None:
    """Decoded messages hold plain numbers, which are compared with rows."""
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode(3) == 3


@pytest.mark.parametrize("code", [999, -2, -32768, 32767])
def test_unknown_code_has_a_row(code: int) -> None:
    """A newer broker's code must be reported, not crash who reports it."""
    row = ErrorCode(code)

    assert (code, f"UNKNOWN_{code}", False, False) == (row.value, row.name, row.retriable, row.refresh)
    assert str(code) in repr(row)


def test_a_row_is_looked_up_by_number_only() -> None:
    """A name instead of a code is a bug of the caller's."""
    with pytest.raises(ValueError, match="NONE"):
        ErrorCode("NONE")


def test_broker_error_carries_the_row() -> None:
    """Whoever catches it decides by its flags and logs its name."""
    error = broker_error(6, "Fetch of t/0 from broker 1")

    assert (error.code, error.name, error.retriable, error.refresh) == (6, "NOT_LEADER_OR_FOLLOWER", True, True)
    assert str(error) == "Fetch of t/0 from broker 1: broker answered error 6 (NOT_LEADER_OR_FOLLOWER)"
