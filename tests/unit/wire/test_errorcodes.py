# SPDX-License-Identifier: Apache-2.0
"""The error table against Kafka's own."""

from __future__ import annotations

import json

import pytest

from consumerd.wire.errorcodes import ErrorCode, broker_error, find_error
from tests.support.frames import VECTORS

KAFKA_ERRORS = json.loads((VECTORS / "errors-2.8.2.json").read_text())["errors"]


def test_table_is_that_of_kafka() -> None:
    """Names, retriability and the need for fresh metadata are Kafka's decision, not ours."""
    theirs = {row["code"]: (row["name"], row["retriable"], row["invalid_metadata"]) for row in KAFKA_ERRORS}

    assert theirs == {row.code: (row.name, row.retriable, row.refresh) for row in ErrorCode}


def test_documented_codes_are_there() -> None:
    """The protocol guide lists -1 to 31, but for 13, which brokers use as well."""
    assert set(range(-1, 32)) <= {row.code for row in ErrorCode}


def test_row_equals_its_number() -> None:
    """Decoded messages hold plain numbers, which are compared with rows."""
    assert find_error(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert find_error(3) == 3


@pytest.mark.parametrize("code", [999, -2, -32768, 32767])
def test_unknown_code_has_a_row(code: int) -> None:
    """A newer broker's code must be reported, not crash who reports it."""
    row = find_error(code)

    assert (code, f"UNKNOWN_{code}", False, False) == (row.code, row.name, row.retriable, row.refresh)
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
