# SPDX-License-Identifier: Apache-2.0
"""Columns of the decoded tables: one table per topic, and the quarantine of all topics."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from consumerd.spark.decoding.records import MOMENT, RecordDecoder
from consumerd.spark.quarantine_rows import MARKS

SILVER: Final = "silver"
"""First part of the name of a topic's table."""
SILVER_FOLDERS: Final = ("day",)
"""Partition columns of a topic's table."""
QUARANTINE_FOLDERS: Final = ("topic", "day")
"""Partition columns of the quarantine."""
BOUNDS: Final = ("incarnation", "partition", "offset", "timestamp", "event_time")
"""Columns whose smallest and largest value the log stores for each file."""

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_PLACE: Final = [
    ("incarnation", pa.string()),
    ("broker", pa.int32()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("index", pa.int32()),
    ("timestamp", MOMENT),
    ("timestamp_type", pa.int32()),
    ("event_time", MOMENT),
]
"""Identity and times of a record. ``event_time`` is decoded from it, as the settings say."""

READ: Final = pa.schema(
    [
        ("incarnation", pa.string()),
        ("broker", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("index", pa.int32()),
        ("timestamp", MOMENT),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("landed", MOMENT),
        ("topic", pa.string()),
        ("day", pa.date32()),
    ]
)
"""Columns of bronze that decoding reads."""

_BAD: Final = [
    *_PLACE,
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", _HEADERS),
    ("landed", MOMENT),
    ("cause", pa.string()),
    ("reason", pa.string()),
]
_FOLDERS: Final = [("topic", pa.string()), ("day", pa.date32())]
BAD_RECORD: Final = pa.schema([*_BAD, *_FOLDERS])
"""Columns of a bad record, as decoding writes it.

``cause`` is one of ``decoding.records.CAUSES``. ``day`` is bronze's.
"""
QUARANTINE_SCHEMA: Final = pa.schema([*_BAD, *MARKS, *_FOLDERS])
"""Columns of the quarantine: those of bad records, and the marks of replays."""


def silver_schema(decoder: RecordDecoder) -> pa.Schema:
    """Return the columns of a topic's decoded table.

    ``key`` and ``value`` have the types that the decoder gives them; ``day``, the partition column, is that of bronze.
    """
    return pa.schema(
        [
            *_PLACE,
            ("key", decoder.key.type),
            ("value", decoder.value.type),
            ("headers", _HEADERS),
            ("landed", MOMENT),
            ("day", pa.date32()),
        ]
    )


def find_misfit(old: str, new: StructType) -> str | None:
    """Describe a column that the new schema drops or changes; None without any.

    Args:
        old: columns of the table, as Spark's JSON.
        new: columns by the settings.
    """
    return _find_misfit(StructType.fromJson(json.loads(old)), new, "")


def _find_misfit(old: DataType, new: DataType, place: str) -> str | None:
    if isinstance(old, StructType) and isinstance(new, StructType):
        fields = {field.name: field.dataType for field in new.fields}
        for field in old.fields:
            path = f"{place}.{field.name}" if place else field.name
            if field.name not in fields:
                return f"{path} is gone"
            if misfit := _find_misfit(field.dataType, fields[field.name], path):
                return misfit
        return None
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _find_misfit(old.elementType, new.elementType, f"{place}[]")
    if isinstance(old, MapType) and isinstance(new, MapType):
        return _find_misfit(old.valueType, new.valueType, f"{place}[]")
    if old.simpleString() != new.simpleString():
        return f"{place} was {old.simpleString()} and is to be {new.simpleString()}"
    return None
