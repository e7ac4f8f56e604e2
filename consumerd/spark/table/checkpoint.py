# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: a snapshot as one Parquet file, ``_delta_log/<version>.checkpoint.parquet``.

Source: Delta's PROTOCOL.md, "Checkpoints". Each row is one action: ``protocol``, ``metaData``, a plan as ``txn``, a
file as ``add``, or as ``remove`` a file that readers of older versions may still need. Our own state (coverage,
progress) is in the Parquet footer under the key ``consumerd``. Checkpoints of other writers lack it and are ignored.

Example: versions 1 to 100 have added 140 files and removed 100 of them, of which vacuum has deleted 80. Checkpoint 100
has 40 rows ``add``, 20 rows ``remove``, up to 100 rows ``txn``, one ``protocol`` and one ``metaData``.

Pure: bytes in, bytes out. Encoding blocks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from consumerd.landing.record_fields import MalformedRecord, UnknownFormat, get_number
from consumerd.spark.table.actions import (
    FORMAT,
    OURS,
    Action,
    FileWriter,
    check_protocol,
    make_metadata,
    make_protocol,
    make_remove,
    parse_add,
    parse_covered,
    parse_metadata,
    parse_path,
)
from consumerd.spark.table.commit import TableRecord, get_numbers
from consumerd.spark.table.snapshot import Snapshot

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_LIST: Final = pa.list_(pa.string())
_SCHEMA: Final = pa.schema(
    {
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _LIST,
                "writerFeatures": _LIST,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": _LIST,
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
            }
        ),
        "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}),
    }
)
_MAPS: Final = frozenset({"partitionValues", "tags", "configuration"})
_KEY: Final = OURS.encode()


def encode_checkpoint(snapshot: Snapshot, table: TableRecord) -> bytes:
    """Return the checkpoint file of a snapshot, with the table's description."""
    rows = [{name: _as_arrow(action)} for name, action in _list_actions(snapshot, table)]
    state = {
        "format": FORMAT,
        "version": snapshot.version,
        "covered": snapshot.covered.encode(),
        "progress": dict(snapshot.progress),
        "last_replace": snapshot.last_replace,
        "schema_changed": snapshot.schema is not None,
        "time_ms": snapshot.time_ms,
    }
    schema = _SCHEMA.with_metadata({_KEY: json.dumps(state).encode()})
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), target, compression="zstd")
    return target.getvalue()


def parse_checkpoint(data: bytes, version: int) -> tuple[Snapshot, TableRecord]:
    """Parse a checkpoint file into the snapshot and the table's description.

    Raises MalformedRecord for a damaged checkpoint, or one of another writer.
    """
    found = _read(data)
    state, table = _get_state(found.schema, version), _get_table(found)
    files = [parse_add(one, table.partition_by) for one in _present(found, "add")]
    return (
        Snapshot(
            version=version,
            files={file.path: file for file in files},
            covered=parse_covered(state),
            progress=get_numbers(state, "progress"),
            plans=_get_plans(found),
            last_replace=get_number(state, "last_replace"),
            schema=table.schema if state.get("schema_changed") else None,
            removed={parse_path(one): get_number(one, "deletionTimestamp") for one in _present(found, "remove")},
            time_ms=get_number(state, "time_ms"),
        ),
        table,
    )


def parse_time_of(data: bytes, version: int) -> int:
    """Return the time of a checkpoint's newest commit, in ms since the epoch.

    Only the file's footer is read. Raises MalformedRecord for a damaged checkpoint, or one of another writer.
    """
    try:
        schema = pq.read_schema(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise MalformedRecord(f"no checkpoint: {error}") from error
    return get_number(_get_state(schema, version), "time_ms")


def _read(data: bytes) -> pa.Table:
    try:
        return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise MalformedRecord(f"no checkpoint: {error}") from error


def _get_state(schema: pa.Schema, version: int) -> Mapping[str, object]:
    """Return our own fields, which are in the footer."""
    try:
        state = json.loads((schema.metadata or {})[_KEY])
    except KeyError as error:
        raise UnknownFormat("a checkpoint of another writer") from error
    except ValueError as error:
        raise MalformedRecord(f"no checkpoint: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UnknownFormat(f"a checkpoint of another format, this release reads {FORMAT}")
    if get_number(state, "version") != version:
        raise MalformedRecord(f"it says that it is version {state['version']}; was it copied here?")
    return state


def _get_table(found: pa.Table) -> TableRecord:
    for protocol in _present(found, "protocol"):
        check_protocol(protocol)
    tables = [parse_metadata(one) for one in _present(found, "metaData")]
    if len(tables) != 1:
        raise MalformedRecord(f"it has {len(tables)} metaData, expected one")
    return tables[0]


def _get_plans(found: pa.Table) -> dict[str, int]:
    """Return each plan's version. Reads columns instead of rows, because there may be thousands."""
    column = found["txn"]
    plans = column.filter(column.is_valid()).combine_chunks()
    names, versions = (plans.field(name).to_pylist() for name in ("appId", "version"))
    if None in names or None in versions:
        raise MalformedRecord("a plan without a name or a version")
    return dict(zip(names, versions, strict=True))


def _list_actions(snapshot: Snapshot, table: TableRecord) -> Iterator[tuple[str, Action]]:
    schema = snapshot.schema or table.schema
    yield "protocol", make_protocol(schema)
    yield "metaData", make_metadata(table, schema)
    for plan, version in snapshot.plans.items():
        yield "txn", {"appId": plan, "version": version, "lastUpdated": snapshot.time_ms}
    writer = FileWriter(table.partition_by, schema)
    for file in snapshot.files.values():
        yield "add", writer.make_add(file, snapshot.time_ms, data_change=False)
    for path, time_ms in snapshot.removed.items():
        yield "remove", make_remove(path, time_ms, data_change=False)


def _as_arrow(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action with its maps as lists of pairs, the form that Arrow takes."""
    maps: dict[str, Any] = {name: list(value.items()) for name, value in action.items() if name in _MAPS}
    if "format" in action:
        maps["format"] = {**action["format"], "options": []}
    return {**action, **maps}


def _present(found: pa.Table, name: str) -> Iterator[dict[str, Any]]:
    """Yield the actions of one kind, such as ``add``, with their maps as dictionaries."""
    column = found[name]
    for action in column.filter(column.is_valid()).to_pylist():
        yield {key: dict(value) if key in _MAPS and value is not None else value for key, value in action.items()}
