# SPDX-License-Identifier: Apache-2.0
"""Record sets of real brokers, against what was produced: tests/vectors/records, by tests/vectors/record_sets.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumerd.model import TimestampType, TopicPartition
from consumerd.wire.modern.extent import find_stop
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Record, RecordBatch

pytestmark = pytest.mark.usefixtures("each_path")

VECTORS = Path(__file__).parents[2] / "vectors" / "records"
PARTITION = TopicPartition.modern("t", 0)


def _cases() -> list[Any]:
    documents = [json.loads(path.read_text()) for path in sorted(VECTORS.glob("kafka-*.json"))]
    return [
        pytest.param(case, id=f"{document['release']}: {case['note']}")
        for document in documents
        for case in document["cases"]
    ]


def _decode(case: dict[str, Any], data: bytes) -> RecordBatch:
    return decode_record_set(
        data,
        partition=PARTITION,
        start=case["start"],
        read_committed=case["read_committed"],
        aborted=[AbortedTransaction(producer_id=one, first_offset=first) for one, first in case["aborted"]],
    )


def _expected(case: dict[str, Any]) -> list[Record]:
    return [
        Record(
            offset=one["offset"],
            timestamp=one["timestamp"],
            timestamp_type=TimestampType(one["timestamp_type"]),
            key=None if one["key_hex"] is None else bytes.fromhex(one["key_hex"]),
            value=None if one["value_hex"] is None else bytes.fromhex(one["value_hex"]),
            headers=tuple((name, None if value is None else bytes.fromhex(value)) for name, value in one["headers"]),
        )
        for one in case["records"]
    ]


def _explained(batch: RecordBatch) -> list[int]:
    """Return every offset that is a record or in a gap, in order of appearance."""
    return sorted([*batch.offsets, *(offset for gap in batch.gaps for offset in range(gap.start, gap.end))])


@pytest.mark.parametrize("case", _cases())
def test_recorded_set_holds_what_was_produced(case: dict[str, Any]) -> None:
    """The oracle is the producer's ledger, never our own decoder."""
    batch = _decode(case, bytes.fromhex(case["record_set_hex"]))

    assert _expected(case) == list(batch.records())


@pytest.mark.parametrize("case", _cases())
def test_every_offset_of_a_recorded_set_is_explained_once(case: dict[str, Any]) -> None:
    """A sink must be able to tell what it did not get, and why."""
    data = bytes.fromhex(case["record_set_hex"])

    batch = _decode(case, data)

    assert list(range(case["start"], batch.next_offset)) == _explained(batch)
    assert case["missing"].items() <= _reasons(batch).items()
    if case["to_the_end"]:
        assert case["high_watermark"] == batch.next_offset


def _reasons(batch: RecordBatch) -> dict[str, str]:
    return {str(offset): str(gap.reason) for gap in batch.gaps for offset in range(gap.start, gap.end)}


@pytest.mark.parametrize("case", _cases())
def test_every_prefix_of_a_recorded_set_gives_a_prefix_of_its_records(case: dict[str, Any]) -> None:
    """A broker may cut a record set anywhere: what is not whole comes with the next fetch."""
    data = bytes.fromhex(case["record_set_hex"])
    expected = _expected(case)
    step = max(1, len(data) // 150)

    for cut in [*range(120), *range(120, len(data), step)]:
        batch = _decode(case, data[:cut])
        assert expected[: len(batch)] == list(batch.records())
        if batch.next_offset == case["start"] and cut >= 12:
            size = find_stop(data[:cut], 0)
            assert size is not None
            assert size > cut or cut == 0


@pytest.mark.parametrize("case", _cases())
def test_a_recorded_set_converts_to_the_same_arrow_columns(case: dict[str, Any]) -> None:
    """Files are written from Arrow columns alone, so they must say what the records say."""
    batch = _decode(case, bytes.fromhex(case["record_set_hex"]))

    table = batch.to_arrow()

    table.validate(full=True)
    expected = _expected(case)
    assert [record.offset for record in expected] == table.column("offset").to_pylist()
    assert [record.key for record in expected] == table.column("key").to_pylist()
    assert [record.value for record in expected] == table.column("value").to_pylist()
    assert [dict(record.headers) for record in expected] == [
        {one["key"]: one["value"] for one in row} for row in table.column("headers").to_pylist()
    ]
    milliseconds = table.column("timestamp").cast("int64").to_pylist()
    assert [None if record.timestamp < 0 else record.timestamp for record in expected] == milliseconds
    assert [int(record.timestamp_type) for record in expected] == table.column("timestamp_type").to_pylist()
