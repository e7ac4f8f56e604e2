# SPDX-License-Identifier: Apache-2.0
"""Whole records: each row comes out once, good or bad."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.config.pipeline_topics import SilverTopic
from consumerd.errors import ConfigError
from consumerd.spark.decoding.loading import load_decoder
from consumerd.spark.decoding.records import BAD_KEY, BAD_TIME, BAD_VALUE, EARLY, LATE, RecordDecoder

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("landed", pa.timestamp("us", "UTC")),
    ]
)
Row = tuple[datetime | None, bytes | None, bytes | None]


def make_decoder(**options: object) -> RecordDecoder:
    value = {"format": "json", "fields": {"n": "int", "at": "epoch_s", "in": "struct<at:timestamp>"}}
    return load_decoder("orders", SilverTopic.model_validate({"key": "utf8", "value": value, **options}))


def make_batch(rows: Sequence[Row], landed: datetime = NOON) -> pa.RecordBatch:
    columns = [
        list(range(len(rows))),
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [landed] * len(rows),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def test_good_and_bad_rows_part() -> None:
    """Good ones are decoded, bad ones are as they came, with cause and reason."""
    batch = make_batch([(NOON, b"a", b'{"n":1}'), (NOON, b"\xff", b"{"), (NOON, b"\xff", b"{}"), (None, None, None)])

    divided = make_decoder().divide(batch)

    assert [0, 3] == divided.good["offset"].to_pylist()
    assert ["a", None] == divided.good["key"].to_pylist()
    assert [{"n": 1, "at": None, "in": None}, None] == divided.good["value"].to_pylist()
    assert [NOON, None] == divided.good["event_time"].to_pylist()
    assert [1, 2] == divided.bad["offset"].to_pylist()
    assert [b"{", b"{}"] == divided.bad["value"].to_pylist()
    assert [b"\xff"] * 2 == divided.bad["key"].to_pylist()
    assert [BAD_KEY] * 2 == divided.bad["cause"].to_pylist()
    assert ["not UTF-8 at byte 0: invalid start byte"] * 2 == divided.bad["reason"].to_pylist()


def test_both_parts_have_their_columns_whatever_they_hold() -> None:
    """Files of a table have one schema."""
    decoder = make_decoder()
    good = decoder.divide(make_batch([(NOON, b"a", b"{}")]))
    bad = decoder.divide(make_batch([(NOON, b"a", b"")]))

    assert good.good.schema == bad.good.schema
    assert good.bad.schema == bad.bad.schema
    assert [BAD_VALUE] == bad.bad["cause"].to_pylist()


@pytest.mark.parametrize(
    ("path", "template"), [("value.at", '{{"at":{0}}}'), ("value.in.at", '{{"in":{{"at":"{1}"}}}}')]
)
def test_late_and_early_are_told_by_the_arrival(path: str, template: str) -> None:
    """At the limit a record is in time; one without a timestamp is held against the time of landing."""

    def value(moment: datetime) -> bytes:
        return template.format(seconds(moment), moment.isoformat()).encode()

    hour = timedelta(hours=1)
    batch = make_batch(
        [
            (NOON, None, value(NOON - hour)),
            (NOON, None, value(NOON - hour - timedelta(seconds=1))),
            (NOON, None, value(NOON + hour)),
            (NOON, None, value(NOON + hour + timedelta(seconds=1))),
            (None, None, value(NOON + 24 * hour - timedelta(hours=2))),
            (None, None, value(NOON + 24 * hour)),
            (NOON, None, b"{}"),
            (NOON, None, None),
        ],
        landed=NOON + 24 * hour,
    )

    divided = make_decoder(event_time=path, late_ms=3_600_000, early_ms=3_600_000).divide(batch)

    assert [0, 2, 5, 6, 7] == divided.good["offset"].to_pylist()
    assert [1, 3, 4] == divided.bad["offset"].to_pylist()
    assert [LATE, EARLY, LATE] == divided.bad["cause"].to_pylist()
    assert [
        "its event time is 3601000 ms before its arrival; 3600000 are allowed",
        "its event time is 3601000 ms behind its arrival; 3600000 are allowed",
        "its event time is 7200000 ms before its arrival; 3600000 are allowed",
    ] == divided.bad["reason"].to_pylist()
    assert [None, None] == divided.good["event_time"].to_pylist()[-2:]


def test_an_event_time_that_nobody_can_show_is_bad() -> None:
    """Such a moment would end whatever looks at it."""
    batch = make_batch([(NOON, None, b'{"in":{"at":"0001-01-01T00:00:00+05:00"}}'), (NOON, None, b"{}")])

    divided = make_decoder(event_time="value.in.at", late_ms=1000).divide(batch)

    assert [BAD_VALUE] == divided.bad["cause"].to_pylist()
    assert [None] == divided.bad["event_time"].to_pylist()
    assert [1] == divided.good["offset"].to_pylist()


def test_a_records_own_time_that_nobody_can_show_is_bad() -> None:
    """A producer that counts microseconds."""
    beyond = pa.array([1_700_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = make_batch([(NOON, None, b"{}")])
    column = batch.schema.get_field_index("timestamp")
    batch = batch.set_column(column, batch.schema.field(column), beyond)

    divided = make_decoder().divide(batch)

    assert [BAD_TIME] == divided.bad["cause"].to_pylist()
    assert [None] == divided.bad["event_time"].to_pylist()


@given(
    st.lists(
        st.tuples(
            st.none() | st.just(NOON),
            st.none() | st.sampled_from([b"k", b"\xff"]),
            st.none() | st.sampled_from([b"{}", b"", b'{"n":1}', b'{"n":2.5}', b'{"at":0}', b'{"at":1795348800}']),
        )
    )
)
def test_a_record_is_the_same_alone_and_in_company(rows: list[Row]) -> None:
    """What a batch is does not matter, and no row is lost or doubled."""
    decoder = make_decoder(event_time="value.at", late_ms=1000)
    batch = make_batch(rows)

    together = decoder.divide(batch)
    alone = [decoder.divide(batch.slice(row, 1)) for row in range(len(rows))]

    assert sorted([*together.good["offset"].to_pylist(), *together.bad["offset"].to_pylist()]) == list(range(len(rows)))
    assert [row for one in alone for row in one.good.to_pylist()] == together.good.to_pylist()
    assert [row for one in alone for row in one.bad.to_pylist()] == together.bad.to_pylist()


AVRO = '{"type":"record","name":"R","fields":[{"name":"at","type":"long"},{"name":"x","type":["int","string"]}]}'


@pytest.mark.parametrize(
    ("content", "event_time", "message"),
    [
        (None, None, r"pipeline\.silver\.topics\.orders\.value: .*r\.avsc: the schema cannot be read"),
        (AVRO, None, r"orders\.value: .*r\.avsc: R\.x: a union of 2 types"),
        (AVRO.replace('["int","string"]', '"int"'), "value.at", r"orders\.event_time: value\.at is of type int64"),
        (AVRO.replace('["int","string"]', '"int"'), "value.when", r"orders\.event_time: .* there is no field 'when'"),
    ],
)
def test_what_an_avro_schema_lacks_is_told_before_a_job_begins(
    tmp_path: Path, content: str | None, event_time: str | None, message: str
) -> None:
    """Settings cannot know what is in a file."""
    path = tmp_path / "r.avsc"
    if content is not None:
        path.write_text(content)
    value = {"format": "avro", "schema_file": str(path)}

    with pytest.raises(ConfigError, match=message):
        load_decoder("orders", SilverTopic.model_validate({"value": value, "event_time": event_time}))
