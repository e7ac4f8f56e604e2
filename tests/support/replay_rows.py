# SPDX-License-Identifier: Apache-2.0
"""Rows as Spark gives them to the tasks of a replay with an offset map."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA = pa.schema(
    [
        ("broker", pa.int32()),
        ("partition", pa.int32()),
        ("incarnation", pa.string()),
        ("offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("index", pa.int32()),
        ("timestamp", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)


def row(offset: int, **changes: Any) -> dict[str, Any]:
    """Return a row of a record in partition 0 of incarnation 7, whose value is its offset."""
    usual: dict[str, Any] = {
        "broker": None,
        "partition": 0,
        "incarnation": "7",
        "offset": offset,
        "next_offset": offset + 1,
        "index": 0,
        "timestamp": 1000 + offset,
        "timestamp_type": 0,
        "key": None,
        "value": b"%d" % offset,
        "headers": [],
    }
    return usual | changes


def end_row(offset: int, *, broker: int | None = None, partition: int = 0, incarnation: str = "7") -> dict[str, Any]:
    """Return the end row of a log."""
    named = {"broker": broker, "partition": partition, "incarnation": incarnation, "offset": offset}
    return dict.fromkeys(_SCHEMA.names) | named


def make_rows(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Return rows as an Arrow batch."""
    return pa.RecordBatch.from_pylist(list(rows), schema=_SCHEMA)
