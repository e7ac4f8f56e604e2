# SPDX-License-Identifier: Apache-2.0
"""A DataFrame's rows as records to be written: which columns count, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from consumerd.errors import ConfigError, ProduceError
from consumerd.spark.datasource.outgoing import OutgoingColumns, plan_columns

HEADERS = "array<struct<key:string,value:binary>>"


@dataclass
class _Type:
    text: str

    def simpleString(self) -> str:  # noqa: N802
        return self.text


@dataclass
class _Column:
    name: str
    dataType: _Type  # noqa: N815


def _schema(**columns: str) -> list[_Column]:
    return [_Column(name, _Type(text)) for name, text in columns.items()]


def test_columns_are_found_by_their_names_and_others_are_passed_over() -> None:
    """What a reader gives can be written as it is: offset, timestamp and timestampType do not count."""
    schema = _schema(
        key="binary", value="binary", topic="string", partition="int", offset="bigint", timestamp="timestamp",
        timestampType="int", headers=HEADERS,
    )  # fmt: skip

    assert OutgoingColumns(key=0, value=1, topic=2, partition=3, headers=7) == plan_columns(schema)
    assert plan_columns(schema, keep_timestamps=True).timestamp == 5


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (_schema(key="string", topic="string"), {}, "no column value, which is what is written; it has key, topic"),
        (_schema(value="string"), {}, "set the option topic, or give the DataFrame a column topic"),
        (_schema(value="bigint"), {"topic": "t"}, "column value: expected binary or string, got bigint"),
        (_schema(value="string", partition="bigint"), {"topic": "t"}, "column partition: expected int, got bigint"),
        (_schema(value="string", headers="string"), {"topic": "t"}, f"column headers: expected {HEADERS}, got string"),
        (_schema(value="string"), {"topic": "no/topic"}, "option topic: no topic can have this name: 'no/topic'"),
        (_schema(value="string"), {"topic": "t", "keep_timestamps": True}, "the DataFrame has no column timestamp"),
        ([*_schema(value="string"), *_schema(value="string")], {"topic": "t"}, "two columns value"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    schema: list[_Column], options: dict[str, object], said: str
) -> None:
    """On the driver, by the column's name: not by a task, half-way."""
    with pytest.raises(ConfigError) as refused:
        plan_columns(schema, **options)

    assert said in str(refused.value)


def test_rows_become_records_in_order() -> None:
    """Nulls stay nulls, text is UTF-8, an empty list of headers is none."""
    batch = pa.record_batch(
        {
            "topic": ["a", "b"],
            "key": pa.array([b"k", None], pa.binary()),
            "value": ["é", None],
            "partition": pa.array([None, 3], pa.int32()),
            "timestamp": pa.array([1_500_000, None], pa.timestamp("us", "UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    columns = OutgoingColumns(topic=0, key=1, value=2, partition=3, timestamp=4, headers=5)

    assert [
        ("a", b"k", "é".encode(), None, 1500, (("h", b"1"), ("h", None))),
        ("b", None, None, 3, None, ()),
    ] == list(columns.records(batch))


def test_what_the_dataframe_does_not_have_is_left_to_the_producer() -> None:
    """The option topic counts before the column."""
    batch = pa.record_batch({"value": pa.array([b"1", b"2"], pa.large_binary()), "topic": ["x", None]})

    assert [("t", None, b"1", None, None, ()), ("t", None, b"2", None, None, ())] == list(
        OutgoingColumns(value=0, topic=1, fixed_topic="t").records(batch)
    )


def test_a_null_topic_is_named_by_its_row() -> None:
    """A job of millions of rows must say which one."""
    batch = pa.record_batch({"topic": ["t", None], "value": ["a", "b"]})

    with pytest.raises(ProduceError, match="row 41 of the task: the column topic is null"):
        OutgoingColumns(topic=0, value=1).records(batch, first_row=40)


def test_a_header_without_a_key_is_named_by_its_row() -> None:
    """Kafka's headers have keys."""
    headers = pa.array(
        [[], [{"key": None, "value": b"1"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    batch = pa.record_batch({"value": ["a", "b"], "headers": headers})

    with pytest.raises(ProduceError, match="row 1 of the task: header 0 has no key"):
        list(OutgoingColumns(value=0, headers=1, fixed_topic="t").records(batch))
