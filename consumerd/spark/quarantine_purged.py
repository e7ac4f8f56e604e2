# SPDX-License-Identifier: Apache-2.0
"""Identities of purged records: a table beside the quarantine, ``<quarantine>_purged``. Needs no Spark.

Bronze still has the records of a purge. Silver usually knows from bronze's log what it has decoded. If the log no
longer says so, silver compares identities, and the purged ones count as decoded: they are not quarantined again.

The identities are stored with the topic's number of rebuilds, and are valid until the next rebuild, which decodes all
records of bronze again.

They are committed before the rows are removed. If a purge dies in between, the rows are still in the quarantine, and
the identities have no effect.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow as pa

from consumerd.spark.quarantine_rows import IDENTITY
from consumerd.spark.table.commit import Operation, rows_of
from consumerd.spark.table.folder_values import escape_value
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.transaction import Table, create_table, find_table

PURGED: Final = "purged"
"""Name of the table."""
JOB: Final = "purge"
"""Name of the job in the table's commits."""

REBUILDS_COLUMN: Final = "rebuilds"
"""Column with the topic's number of rebuilds at the time of the purge."""
_COLUMNS: Final = pa.schema(
    [
        ("incarnation", pa.string()),
        ("broker", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("index", pa.int32()),
        (REBUILDS_COLUMN, pa.int64()),
        ("purged", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of the table's files. The partition column ``topic`` is the folder."""
_KINDS: Final = ("string", "integer", "integer", "long", "integer", "long", "timestamp", "string")
_SCHEMA: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in zip((*_COLUMNS.names, "topic"), _KINDS, strict=True)
        ],
    }
)


def find_purged(quarantine: Table) -> Table | None:
    """Return the table with identities of records purged from a quarantine, or None.

    None before the first purge. Raises TableError, OSError.
    """
    return find_table(_path(quarantine))


def record_purged(
    quarantine: Table, identities: Mapping[str, Sequence[pa.Table]], *, rebuilds: Mapping[str, int], now_ms: int
) -> None:
    """Commit the identities of records that are about to be purged from the quarantine.

    Args:
        identities: identities (incarnation, broker, partition, offset, index) by topic.
        rebuilds: by topic, the number of times that all its records were decoded again.
        now_ms: wall clock, in ms since the epoch.

    Raises TableError, TableConflict, OSError.
    """
    table = create_table(_path(quarantine), name=PURGED, schema=_SCHEMA, partition_by=("topic",))
    with table.begin(plan=f"{JOB}:{uuid.uuid4().hex}", job=JOB, operation=Operation.APPEND) as transaction:
        writer = PartitionedWriter(
            transaction.staging,
            prefix=f"{transaction.attempt}-00000",
            partition_by=("topic",),
            settings=FileSettings(bounds=("partition", "offset")),
            files=table.log.files,
        )
        with closing(writer):
            for topic, parts in identities.items():
                for batch in pa.concat_tables(parts).combine_chunks().to_batches():
                    writer.append_part((escape_value(topic),), _make_rows(batch, rebuilds.get(topic, 0), now_ms))
            files = writer.finish()
        transaction.add(files)
        transaction.commit(counts={"purged": rows_of(files)})


def _path(quarantine: Table) -> Path:
    return quarantine.path.with_name(f"{quarantine.path.name}_{PURGED}")


def _make_rows(identities: pa.RecordBatch, rebuilds: int, now_ms: int) -> pa.RecordBatch:
    count = len(identities)
    columns = [identities[name].cast(_COLUMNS.field(name).type) for name in IDENTITY]
    columns.append(pa.repeat(pa.scalar(rebuilds, pa.int64()), count))
    columns.append(pa.repeat(pa.scalar(now_ms * 1000, pa.int64()), count).cast(_COLUMNS.field("purged").type))
    return pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)
