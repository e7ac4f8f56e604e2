# SPDX-License-Identifier: Apache-2.0
"""JSON objects of declared fields."""

from __future__ import annotations

import base64
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.config.field_types import parse_type
from consumerd.spark.decoding.objects import JsonDecoder


def decoder(fields: str) -> JsonDecoder:
    return JsonDecoder(parse_type(f"struct<{fields}>"))


def decode(fields: str, *values: bytes | None) -> tuple[list[object], dict[int, str]]:
    decoded = decoder(fields).decode(pa.array(values, pa.binary()))
    return decoded.values.to_pylist(), dict(decoded.reasons)


@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        ("boolean", b"true", True),
        ("int", b"-2147483648", -2147483648),
        ("bigint", b"9223372036854775807", 9223372036854775807),
        ("float", b"1.5", 1.5),
        ("double", b"1", 1.0),
        ("string", '"\u00e4\\u00e4"'.encode(), "\u00e4\u00e4"),
        ("binary", b'"AAE="', b"\x00\x01"),
        ("date", b'"2026-11-22"', date(2026, 11, 22)),
        ("timestamp", b'"2026-11-22T01:30:00.5+01:00"', datetime(2026, 11, 22, 0, 30, 0, 500000, UTC)),
        ("timestamp_ntz", b'"2026-11-22T01:30:00"', datetime(2026, 11, 22, 1, 30)),  # noqa: DTZ001 - the point of it
        ("epoch_s", b"1", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("epoch_ms", b"1001", datetime(1970, 1, 1, 0, 0, 1, 1000, tzinfo=UTC)),
        ("epoch_us", b"-1", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("decimal(20,2)", b"123456789012345678.9", Decimal("123456789012345678.90")),
        ("decimal(4,2)", b'"1.1"', Decimal("1.10")),
        ("array<int>", b"[1,null,3]", [1, None, 3]),
        ("map<string,epoch_s>", b'{"a":0}', [("a", datetime(1970, 1, 1, tzinfo=UTC))]),
        ("struct<x:int,y:string>", b'{"y":"b"}', {"x": None, "y": "b"}),
        ("array<struct<at:epoch_ms>>", b'[{"at":0}]', [{"at": datetime(1970, 1, 1, tzinfo=UTC)}]),
    ],
)
def test_each_type_is_read(kind: str, written: bytes, expected: object) -> None:
    """Exactly, without a detour over floating point."""
    assert ([{"f": expected}, None, {"f": None}], {}) == decode(
        f"f:{kind}", b'{"f":' + written + b"}", None, b'{"f":null}'
    )


_OUT_OF_YEARS = "does not fit its column: a number or a date out of range"
"""By its zone it is of a year that no date of Python's or Spark's has."""


@pytest.mark.parametrize(
    ("fields", "value", "reason"),
    [
        ("a:int", b"", "no JSON of these fields: Input data was truncated"),
        ("a:int", b"{", "no JSON of these fields: Input data was truncated"),
        ("a:int", b"[]", "no JSON of these fields: Expected `object`, got `array`"),
        ("a:int", b'{"a":1} {}', "no JSON of these fields: JSON is malformed: trailing characters (byte 9)"),
        ("a:int not null", b"{}", "no JSON of these fields: Object missing required field `a`"),
        ("a:int not null", b'{"a":null}', "no JSON of these fields: Expected `int`, got `null` - at `$.a`"),
        ("a:int", b'{"a":"1"}', "no JSON of these fields: Expected `int | null`, got `str` - at `$.a`"),
        ("a:int", b'{"a":1.5}', "no JSON of these fields: Expected `int | null`, got `float` - at `$.a`"),
        ("a:int", b'{"a":2147483648}', "no JSON of these fields: Expected `int` <= 2147483647 - at `$.a`"),
        ("a:float", b'{"a":1e39}', "no JSON of these fields: Expected `float` <= 3.4028234663852886e+38 - at `$.a`"),
        (
            "a:array<int not null>",
            b'{"a":[null]}',
            "no JSON of these fields: Expected `int`, got `null` - at `$.a[0]`",
        ),
        (
            "a:decimal(4,2)",
            b'{"a":1.234}',
            "does not fit its column: a number with more decimal places than its column",
        ),
        ("a:decimal(4,2)", b'{"a":12345}', "does not fit its column: a number with more digits than its column"),
        ("a:decimal(4,2)", b'{"a":"NaN"}', "does not fit its column: a number that its decimal column cannot hold"),
        ("a:timestamp", b'{"a":"9999-12-31T23:59:59-12:00"}', _OUT_OF_YEARS),
        ("a:timestamp", b'{"a":"0001-01-01T00:00:00+12:00"}', _OUT_OF_YEARS),
        ("a:array<struct<b:timestamp>>", b'{"a":[{"b":"9999-12-31T23:59:59-12:00"}]}', _OUT_OF_YEARS),
        ("a:map<string,timestamp>", b'{"a":{"b":"9999-12-31T23:59:59-12:00"}}', _OUT_OF_YEARS),
        # Python 3.14 bounds the stack by its size: 100,000 levels fit
        ("a:int", b'{"x":' * 1_000_000, "no JSON of these fields: nested too deeply"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(fields: str, value: bytes, reason: str) -> None:
    """Without the value itself: that is in the quarantine."""
    assert ([None, None, None], {1: reason}) == decode(fields, None, value, None)


def test_text_that_is_not_utf8_is_bad() -> None:
    """In a declared field."""
    values, reasons = decode("a:string", b'{"a":"\xff"}', b'{"a":"b"}')

    assert ([None, {"a": "b"}], {0}) == (values, set(reasons))


def test_many_rows_of_which_some_fit_no_column_keep_their_places() -> None:
    """Arrow refuses whole batches; which rows it means is found by halves."""
    values = [b'{"a":%s}' % (b"1.234" if row % 7 == 3 else b"%d" % (row % 90)) for row in range(100)]

    rows, reasons = decode("a:decimal(4,2)", *values)

    assert {row for row in range(100) if row % 7 == 3} == set(reasons)
    assert [None if row % 7 == 3 else {"a": Decimal(row % 90)} for row in range(100)] == rows


def test_an_empty_column_has_the_type() -> None:
    """Batches without rows come, too."""
    made = decoder("a:int,b:array<epoch_s>")

    assert made.type == made.decode(pa.array([], pa.binary())).values.type


def test_a_decoder_travels_to_tasks() -> None:
    """Spark pickles what tasks need."""
    made = decoder("a:int")

    assert made == pickle.loads(pickle.dumps(made))
    assert [{"a": 1}] == pickle.loads(pickle.dumps(made)).decode(pa.array([b'{"a":1}'])).values.to_pylist()


FIELDS = "a:bigint,b:string,c:array<double>,d:map<string,boolean>,e:struct<x:int,y:binary>"
ROW = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        "c": st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none()),
        "d": st.none() | st.dictionaries(st.sampled_from("abc"), st.booleans() | st.none()),
        "e": st.none()
        | st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.binary().map(lambda b: base64.b64encode(b).decode())}),
    },
)


@given(st.lists(st.none() | ROW))
def test_what_is_written_is_read(rows: list[dict[str, object] | None]) -> None:
    """Against Python's own JSON."""
    values, reasons = decode(FIELDS, *[None if row is None else json.dumps(row).encode() for row in rows])

    assert not reasons
    assert [None if row is None else _as_arrow(row) for row in rows] == values


def _as_arrow(row: dict[str, object]) -> dict[str, object]:
    found = dict.fromkeys("abcde") | row
    if isinstance(found["d"], dict):
        found["d"] = list(found["d"].items())
    if isinstance(found["e"], dict):
        found["e"] = {**found["e"], "y": base64.b64decode(found["e"]["y"])}
    return found


@given(st.binary())
def test_any_bytes_are_values_or_have_a_reason(value: bytes) -> None:
    """Nothing is raised, whatever comes."""
    values, reasons = decode(FIELDS, value)

    assert (values == [None]) == bool(reasons)
