# SPDX-License-Identifier: Apache-2.0
"""Identities of purged records: a Delta table beside the quarantine, ``<quarantine>_purged``. Needs no Spark.

Bronze still has the records of a purge. If its log no longer tells which records silver has decoded, silver compares
identities. Those noted here count as decoded, so they are not quarantined again. A note holds the topic's number of
rebuilds. It ends with the next rebuild, which decodes all records of bronze.

A note is committed before the rows are removed. If a purge dies in between, the rows are still in the quarantine, and
the note has no effect.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from consumerd.spark.quarantine_rows import IDENTITY
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.folder_values import escape_value
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.transaction import Table, create_table, find_table

PURGED: Final = "purged"
"""Name of the table."""
JOB: Final = "purge"

REBUILDS_COLUMN: Final = "rebuilds"
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
    """Return the table of a quarantine's purged records; None before the first purge.

    Raises TableError, OSError.
    """
    return find_table(_place(quarantine))


def note_purged(
    quarantine: Table, identities: Mapping[str, Sequence[pa.Table]], *, rebuilds: Mapping[str, int], now_ms: int
) -> None:
    """Commit the identities of records that are about to be purged.

    Args:
        identities: by topic, with the columns ``IDENTITY``.
        rebuilds: number of rebuilds by topic.

    Raises TableError, TableConflict, OSError.
    """
    table = create_table(_place(quarantine), name=PURGED, schema=_SCHEMA, partition_by=("topic",))
    with table.begin(plan=f"{JOB}:{uuid.uuid4().hex}", job=JOB, operation=Operation.APPEND) as transaction:
        writer = PartitionedWriter(
            transaction.staging,
            prefix=f"{transaction.attempt}-00000",
            partition_by=("topic",),
            settings=FileSettings(bounds=("partition", "offset")),
            files=table.log.files,
        )
        try:
            for topic, parts in identities.items():
                for batch in pa.concat_tables(parts).combine_chunks().to_batches():
                    writer.append_part((escape_value(topic),), _note(batch, rebuilds.get(topic, 0), now_ms))
            files = writer.finish()
        except BaseException:
            writer.abort()
            raise
        transaction.add(files)
        transaction.commit(counts={"purged": sum(file.rows for file in files)})


def _place(quarantine: Table) -> Path:
    return quarantine.path.with_name(f"{quarantine.path.name}_{PURGED}")


def _note(identities: pa.RecordBatch, rebuilds: int, now_ms: int) -> pa.RecordBatch:
    count = len(identities)
    columns = [identities[name].cast(_COLUMNS.field(name).type) for name in IDENTITY]
    columns.append(pa.repeat(pa.scalar(rebuilds, pa.int64()), count))
    columns.append(pa.repeat(pa.scalar(now_ms * 1000, pa.int64()), count).cast(_COLUMNS.field("purged").type))
    return pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)
