# SPDX-License-Identifier: Apache-2.0
"""Avro data of local schemas: against fastavro's writer, and against what is no datum."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from fastavro import schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import ConfigError
from consumerd.spark.decoding.avro import AvroDecoder
from consumerd.spark.decoding.avro_schema import UnfitSchema, make_schema, read_schema

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "seen", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}], "default": None},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "before", "type": ["null", "shop.State"], "default": None},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
            {"name": "sku", "type": {"type": "string", "logicalType": "uuid"}}]}}},
    ],
}  # fmt: skip
ROW = {
    "id": -5,
    "note": "x",
    "at": datetime(2026, 11, 22, 1, 2, 3, 4000, UTC),
    "seen": datetime(2026, 11, 22, 1, 2, 3, 4),  # noqa: DTZ001 - without a zone
    "day": date(2026, 11, 22),
    "total": Decimal("12.30"),
    "state": "NEW",
    "before": "DONE",
    "mark": b"\x00\xff",
    "counts": {"a": 1},
    "items": [{"sku": "7d1c7b7e"}],
}


def encode(schema: object, row: object) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, schema, row)
    return stream.getvalue()


def decode(decoder: AvroDecoder, *values: bytes | None) -> tuple[list[object], dict[int, str]]:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert decoder.type == decoded.values.type
    return decoded.values.to_pylist(), dict(decoded.reasons)


def test_every_kind_of_field_is_read() -> None:
    """A UUID is its text, an enum its symbol; times of milliseconds become microseconds."""
    schema = make_schema(ORDER)
    expected = {**ROW, "counts": [("a", 1)]}

    assert ([expected, None], {}) == decode(AvroDecoder(schema), encode(schema, ROW), None)


def test_what_is_no_datum_is_bad_and_its_neighbours_are_not() -> None:
    """Too short, too long, no text, no symbol, too many digits."""
    schema = make_schema(ORDER)
    whole = encode(schema, ROW)
    wide = encode(
        make_schema(json.loads(json.dumps(ORDER).replace('"precision": 9', '"precision": 18'))),
        {**ROW, "total": Decimal("1234567890.00")},
    )

    values, reasons = decode(AvroDecoder(schema), whole[:-1], whole + b"\x00", b"", whole, wide)

    assert {
        0: "no datum of the schema: it ends too early",
        1: "no datum of the schema: 1 bytes follow it",
        2: "no datum of the schema: it ends too early",
    }.items() <= reasons.items()
    assert {0, 1, 2, 4} == set(reasons)
    assert [False, False, False, True, False] == [value is not None for value in values]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_datum_or_have_a_reason(value: bytes) -> None:
    """Whatever fastavro makes of them."""
    values, reasons = decode(ORDERS, value)

    assert (values == [None]) == bool(reasons)


@given(st.data())
def test_a_datum_with_a_byte_changed_is_a_datum_or_has_a_reason(data: st.DataObject) -> None:
    """What comes of damage that goes deeper than the first field."""
    whole = bytearray(encode(make_schema(ORDER), ROW))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))

    values, reasons = decode(ORDERS, bytes(whole))

    assert (values == [None]) == bool(reasons)


ORDERS = AvroDecoder(make_schema(ORDER))

OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "more", "type": "string", "default": "none"}],
}


def test_a_writers_schema_is_resolved_to_the_readers() -> None:
    """Confluent's framing names it."""
    old, new = make_schema(OLD), make_schema(NEW)
    decoder = AvroDecoder(new, "confluent", {12: old, 13: new})

    values, reasons = decode(
        decoder,
        b"\x00\x00\x00\x00\x0c" + encode(old, {"id": 1}),
        b"\x00\x00\x00\x00\x0d" + encode(new, {"id": 2, "more": "m"}),
        b"\x00\x00\x00\x00\x0e" + encode(new, {"id": 3, "more": "m"}),
        b"\x01\x00\x00\x00\x0d",
        b"\x00\x00",
    )

    assert [{"id": 1, "more": "none"}, {"id": 2, "more": "m"}, None, None, None] == values
    framing = "does not begin with a zero byte and the id of a schema"
    assert {2: "schema id 14 is not among writer_schemas", 3: framing, 4: framing} == reasons


def test_a_single_object_names_its_schema_by_the_documents_fingerprint() -> None:
    """The fingerprint of ``"int"``'s record is taken from Avro's own definition, spelled out here."""
    schema = make_schema(OLD)
    canonical = b'{"name":"R","type":"record","fields":[{"name":"id","type":"int"}]}'
    marks = b"\xc3\x01" + _crc_64_avro(canonical).to_bytes(8, "little")

    values, reasons = decode(
        AvroDecoder(schema, "single_object"), marks + encode(schema, {"id": 1}), b"\xc3\x01" + bytes(8) + b"\x02"
    )

    assert [{"id": 1}, None] == values
    assert {1: "does not begin with the marks and the fingerprint of the schema"} == reasons


def _crc_64_avro(data: bytes) -> int:
    """Bit by bit, as Avro's document defines it."""
    empty = 0xC15D213AA4D7A795
    found = empty
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (empty & -(found & 1))
    return found


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (["null", "int", "string"], "R.f: a union of 2 types besides null has no column"),
        ("null", "R.f: a type that is always null has no column"),
        (["null", "R"], "R.f: R contains itself"),
        ({"type": "record", "name": "E", "fields": []}, "R.f: E has no fields"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0},
            "R.f: decimal of precision 39; expected 1 to 38",
        ),
        ({"type": "array", "items": ["int", "string"]}, "R.f, in an array: a union of 2 types"),
        ("nonsense", "no Avro schema: nonsense"),
        ({"type": "enum", "name": "E"}, "no Avro schema"),
    ],
)
def test_a_schema_without_columns_is_refused_by_its_field(kind: object, message: str) -> None:
    """Before a job begins."""
    with pytest.raises(UnfitSchema) as raised:
        make_schema({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})

    assert message in str(raised.value)


def test_names_that_spark_does_not_tell_apart_are_refused() -> None:
    """It would not say which one it means."""
    fields = [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]

    with pytest.raises(UnfitSchema, match=r"R\.A is there twice"):
        make_schema({"type": "record", "name": "R", "fields": fields})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no Avro schema: no JSON"),
        ('"int"', "expected a record at the top"),
        ("[]", "expected a record at the top"),
    ],
)
def test_a_file_that_is_no_schema_is_named(tmp_path: Path, content: str, message: str) -> None:
    """A wrong file is the usual mistake."""
    path = tmp_path / "orders.avsc"
    path.write_text(content)

    with pytest.raises(ConfigError, match=message) as raised:
        read_schema(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """And so is a path."""
    with pytest.raises(ConfigError, match=r"absent\.avsc: the schema cannot be read: No such file"):
        read_schema(tmp_path / "absent.avsc")


def test_a_decoder_travels_to_tasks() -> None:
    """Spark pickles what tasks need."""
    schema = make_schema(ORDER)
    made = pickle.loads(pickle.dumps(AvroDecoder(schema, "single_object")))

    assert AvroDecoder(schema, "single_object") == made
    assert made.type == AvroDecoder(schema).type
