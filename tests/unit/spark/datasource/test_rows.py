# SPDX-License-Identifier: Apache-2.0
"""Rows under Spark's types, from record batches of every kind."""

from __future__ import annotations

import gzip
from array import array
from datetime import UTC, datetime

import pytest

pa = pytest.importorskip("pyarrow")

from consumerd.errors import CorruptMessageError  # noqa: E402
from consumerd.model import BrokerId, PartitionKey, TopicPartition  # noqa: E402
from consumerd.spark.datasource.schema import ReaderColumns, RowMaker, arrow_schema, ddl  # noqa: E402
from consumerd.wire.compression import Codec  # noqa: E402
from consumerd.wire.legacy.message_set import decode_message_set  # noqa: E402
from consumerd.wire.legacy.stored_message import encode_message  # noqa: E402
from consumerd.wire.modern.record_set import decode_record_set  # noqa: E402
from consumerd.wire.records import Limits, RecordBatch, empty_batch  # noqa: E402
from tests.support.record_sets import RecordSpec, batch, message  # noqa: E402

P = TopicPartition.modern("orders", 3)
WITH_HEADERS = ReaderColumns(include_headers=True)


def decode(data: bytes) -> RecordBatch:
    return decode_record_set(data, partition=P, start=0)


def test_rows_of_a_batch_have_every_column() -> None:
    """Keys and values that are null stay null, empty ones empty."""
    specs = [
        RecordSpec(delta=0, timestamp_delta=1, key=b"k", value=b"v", headers=[(b"a", b"1"), (b"a", None)]),
        RecordSpec(delta=1, timestamp_delta=2, key=None, value=None),
        RecordSpec(delta=2, timestamp_delta=3, key=b"", value=b""),
    ]
    rows = RowMaker(P, WITH_HEADERS).make(decode(batch(0, specs, base_timestamp=1_000)))
    assert rows.schema == arrow_schema(WITH_HEADERS)
    base = {"topic": "orders", "partition": 3, "timestampType": 0}
    assert rows.to_pylist() == [
        base | {
            "key": b"k", "value": b"v", "offset": 0, "timestamp": datetime.fromtimestamp(1.001, UTC),
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        },
        base | {
            "key": None, "value": None, "offset": 1, "timestamp": datetime.fromtimestamp(1.002, UTC), "headers": None,
        },
        base | {"key": b"", "value": b"", "offset": 2, "timestamp": datetime.fromtimestamp(1.003, UTC), "headers": None},
    ]  # fmt: skip


def test_what_identifies_a_record_of_kafka_0_7_is_in_its_row() -> None:
    """Records of a compressed message share its offset and the next one; broker and number are two columns."""
    plain = encode_message(b"a", magic=1)
    data = plain + encode_message(gzip.compress(plain + plain), magic=1, codec=Codec.GZIP)
    legacy = TopicPartition("orders", PartitionKey(3, BrokerId(7)))
    decoded = decode_message_set(data, partition=legacy, start=100, limits=Limits())
    columns = ReaderColumns(include_broker=True)
    rows = RowMaker(legacy, columns).make(decoded)
    assert rows.schema == arrow_schema(columns)
    inner, end = 100 + len(plain), 100 + len(data)
    found = [
        tuple(row[name] for name in ("partition", "broker", "offset", "index", "next_offset"))
        for row in rows.to_pylist()
    ]
    assert found == [(3, 7, 100, 0, inner), (3, 7, inner, 0, end), (3, 7, inner, 1, end)]
    assert {(row["key"], row["value"], row["timestampType"]) for row in rows.to_pylist()} == {(None, b"a", -1)}

    (row,) = RowMaker(P, columns).make(decode(message(5, b"v", magic=0))).to_pylist()
    assert (row["broker"], row["offset"], row["index"], row["next_offset"]) == (None, 5, 0, 6)


def test_messages_without_a_time_are_as_in_sparks_source() -> None:
    """Timestamp and type -1, for what was written up to 0.9."""
    (row,) = RowMaker(P).make(decode(message(0, b"v", magic=0))).to_pylist()
    assert row["timestampType"] == -1
    assert row["timestamp"] == datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    assert "headers" not in row


@pytest.mark.parametrize("time", [1_700_000_000_000_000_000, 2**63 - 1, -(2**63), 2**63 // 1000 + 1])
def test_times_that_spark_cannot_hold_are_null(time: int) -> None:
    """A producer that counts nanoseconds; multiplied, they would be of the year 93851, and look like times."""
    (row,) = RowMaker(P).make(decode(message(0, b"v", magic=1, timestamp=time))).to_pylist()
    assert row["timestamp"] is None


def test_times_up_to_the_last_that_spark_can_hold_are_kept() -> None:
    """They are the record's own word."""
    times = [2**63 // 1000 - 1, -(2**63 // 1000) + 1, 1_700_000_000_000_000]
    for time in times:
        rows = RowMaker(P).make(decode(message(0, b"v", magic=1, timestamp=time)))
        assert [time * 1000] == rows.column("timestamp").cast(pa.int64()).to_pylist()


def test_batches_of_any_size_one_after_the_other() -> None:
    """Columns that are constant are made once, and again for a larger batch."""
    maker = RowMaker(P, WITH_HEADERS)
    for count in (1, 3000, 2, 5000, 0):
        rows = maker.make(
            decode(batch(0, [RecordSpec(delta=at, value=b"") for at in range(count)]))
            if count
            else empty_batch(P, 0, 0)
        )
        assert rows.num_rows == count
        assert rows.column("topic").to_pylist() == ["orders"] * count
        assert rows.column("partition").to_pylist() == [3] * count
        assert rows.column("offset").to_pylist() == list(range(count))
        rows.validate(full=True)


def test_headers_that_cannot_be_read_are_said() -> None:
    """Instead of rows with others."""
    broken = RecordBatch(
        partition=P, start=0, next_offset=1, buffer=b"\xff\xff", offsets=array("q", [0]), timestamps=array("q", [5]),
        key_starts=array("q", [-1]), key_ends=array("q", [-1]), value_starts=array("q", [-1]), value_ends=array("q", [-1]),
        header_starts=array("q", [0]), header_ends=array("q", [2]),
    )  # fmt: skip
    with pytest.raises(CorruptMessageError):
        RowMaker(P, WITH_HEADERS).make(broken)


def test_the_types_are_those_that_spark_derives() -> None:
    """Spark refuses a first batch whose types are not its own by the last field."""
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    header = types.StructType().add("key", "string").add("value", "binary")
    derived = (
        types.StructType()
        .add("key", "binary").add("value", "binary").add("topic", "string").add("partition", "integer")
        .add("offset", "long").add("timestamp", "timestamp").add("timestampType", "integer")
        .add("headers", types.ArrayType(header))
    )  # fmt: skip
    assert to_arrow_schema(derived, timezone="UTC").equals(arrow_schema(WITH_HEADERS))
    names = [column.split()[0] for column in ddl(ReaderColumns()).split(", ")]
    assert names == arrow_schema(ReaderColumns()).names
