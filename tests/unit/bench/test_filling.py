# SPDX-License-Identifier: Apache-2.0
"""Topics are filled with documents of the length that is said, and record sets are cut into their units."""

from __future__ import annotations

import json

import pytest

from bench.filling import split_units
from bench.payloads import LONGEST, SHORTEST, documents
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.records import NewRecord


def test_documents_are_json_of_all_lengths() -> None:
    """Each of 100 to 400 bytes, the same each time."""
    found = list(documents(2000))
    assert found == list(documents(2000))
    lengths = {len(one) for one in found}
    assert (min(lengths), max(lengths)) == (SHORTEST, LONGEST)
    assert len({json.loads(one)["id"] for one in found}) == 2000
    assert len(set(found)) == 2000


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [0, 1])
def test_units_of_a_record_set(magic: int, codec: int) -> None:
    """All of them, byte for byte; one that is cut off at the end is none."""
    records = [NewRecord(value=b"x" * 100, timestamp=1 if magic else -1) for _ in range(10)]
    one = build_record_set(records, magic=magic, codec=codec)
    units = list(split_units(one + one + one[:-1]))
    single = list(split_units(one))
    assert b"".join(data for _, data in single) == one
    assert len(units) == 3 * len(single) - 1
    assert units[: len(single)] == single
    assert single[-1][0] == 10
