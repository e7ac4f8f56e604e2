"""The columns of a reader, those of Spark's own Kafka source, as Spark's types and as Arrow's.

::

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int
    headers array<struct<key: string, value: binary>>     (with includeHeaders)
"""

from __future__ import annotations

from typing import Final

COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
HEADERS: Final = "headers array<struct<key: string, value: binary>>"


def ddl(*, include_headers: bool) -> str:
    """Return the columns as DDL."""
    return f"{COLUMNS}, {HEADERS}" if include_headers else COLUMNS
