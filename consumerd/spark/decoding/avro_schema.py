# SPDX-License-Identifier: Apache-2.0
"""Avro schemas: reads them from files, and gives their columns' types.

A record becomes a struct, an enum text, a fixed bytes. A union must be of one type and null: a nullable column. The
logical types decimal, date and timestamps (in ms and us) are used. Others are ignored, so a time of day becomes a
number, and a UUID text. Schemas with types that no column can hold are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from consumerd.errors import ConfigError

Schema = dict[str, object]

_KEPT_LOGICAL: Final = frozenset(
    {
        "decimal",
        "date",
        "timestamp-millis",
        "timestamp-micros",
        "local-timestamp-millis",
        "local-timestamp-micros",
    }
)
_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_LARGEST_PRECISION: Final = 38


class UnfitSchema(ValueError):
    """Raised for an Avro schema with a type that no column can hold.

    The message names the field.
    """


def read_schema(path: Path) -> Schema:
    """Read an Avro schema from a file; its top must be a record. Raises ConfigError."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: the schema cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: no Avro schema: no JSON: {error}") from None
    try:
        return make_schema(content)
    except UnfitSchema as error:
        raise ConfigError(f"{path}: {error}") from None


def make_schema(content: object) -> Schema:
    """Return an Avro schema, given as JSON, in fastavro's form. Raises UnfitSchema."""
    plain = _without_other_logical_types(content)
    if not isinstance(plain, dict):
        raise UnfitSchema("expected a record at the top of the schema")
    try:
        parsed = parse_schema(plain)
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnfitSchema(f"no Avro schema: {error}") from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise UnfitSchema("expected a record at the top of the schema")
    arrow_type(parsed)
    return parsed


def arrow_type(schema: object) -> pa.DataType:
    """Return an Avro schema's Arrow type, with the schema's own units of time. Raises UnfitSchema."""
    return _arrow_type(schema, "the record", {})


def column_type(kind: pa.DataType) -> pa.DataType:
    """Return an Arrow type with its timestamps in microseconds, Spark's unit."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(column_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, column_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(column_type(kind.value_type))
    return kind


def _arrow_type(schema: object, place: str, named: dict[str, pa.DataType | None]) -> pa.DataType:
    if isinstance(schema, list):
        return _union(schema, place, named)
    if isinstance(schema, str):
        return _by_name(schema, place, named)
    assert isinstance(schema, dict)  # parse_schema has checked that
    logical = schema.get("logicalType")
    if logical == "decimal":
        return _decimal(schema, place)
    if isinstance(logical, str) and logical in _LOGICAL:
        return _LOGICAL[logical]
    match schema["type"]:
        case "record":
            return _record(schema, place, named)
        case "enum" | "fixed" as kind:
            found = pa.string() if kind == "enum" else pa.binary()
            named[schema["name"]] = found
            return found
        case "array":
            return pa.list_(_arrow_type(schema["items"], f"{place}, in an array", named))
        case "map":
            return pa.map_(pa.string(), _arrow_type(schema["values"], f"{place}, in a map", named))
        case inner:
            return _arrow_type(inner, place, named)


def _record(schema: Mapping[str, object], place: str, named: dict[str, pa.DataType | None]) -> pa.DataType:
    name = str(schema["name"])
    fields = schema["fields"]
    assert isinstance(fields, list)
    if not fields:
        raise UnfitSchema(f"{place}: {name} has no fields")
    seen: set[str] = set()
    for field in fields:
        if field["name"].lower() in seen:
            raise UnfitSchema(f"{name}.{field['name']} is there twice (Spark does not tell upper case from lower)")
        seen.add(field["name"].lower())
    named[name] = None
    found = pa.struct(
        [pa.field(field["name"], _arrow_type(field["type"], f"{name}.{field['name']}", named)) for field in fields]
    )
    named[name] = found
    return found


def _union(branches: list[object], place: str, named: dict[str, pa.DataType | None]) -> pa.DataType:
    types = [branch for branch in branches if branch != "null"]
    if len(types) != 1:
        raise UnfitSchema(f"{place}: a union of {len(types)} types besides null has no column; expected one")
    return _arrow_type(types[0], place, named)


def _by_name(name: str, place: str, named: Mapping[str, pa.DataType | None]) -> pa.DataType:
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    if name == "null":
        raise UnfitSchema(f"{place}: a type that is always null has no column")
    found = named.get(name)
    if found is None:
        raise UnfitSchema(f"{place}: {name} contains itself, which no column can")
    return found


def _decimal(schema: Mapping[str, object], place: str) -> pa.DataType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 1 <= precision <= _LARGEST_PRECISION:
        raise UnfitSchema(f"{place}: decimal of precision {precision}; expected 1 to {_LARGEST_PRECISION}")
    return pa.decimal128(precision, scale)


def _without_other_logical_types(content: object) -> object:
    if isinstance(content, list):
        return [_without_other_logical_types(part) for part in content]
    if not isinstance(content, dict):
        return content
    return {
        key: part if key in ("default", "doc") else _without_other_logical_types(part)
        for key, part in content.items()
        if key != "logicalType" or part in _KEPT_LOGICAL
    }
