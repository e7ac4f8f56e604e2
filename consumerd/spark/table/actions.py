# SPDX-License-Identifier: Apache-2.0
"""Delta's actions: the JSON lines of a commit, encoded and parsed. Pure.

A commit is the file ``_delta_log/<version>.json``. Of Delta's actions (PROTOCOL.md, "Actions") we write these:

=============  ======================================================================================================
action         what it says
=============  ======================================================================================================
``commitInfo`` time, job and operation; under the key ``consumerd`` our own fields: plan, writer, coverage, progress
``txn``        the plan, as ``appId``: Delta's mark for work that is committed once
``metaData``   the table's description, in version 0 and in commits that add columns
``protocol``   features that a reader must support, in version 0 and in commits that need further ones
``add``        a new file: path, values of its partition columns, size, rows, and bounds of some columns
``remove``     a file that is not part of the table any more
=============  ======================================================================================================

Example of a commit that adds one file, with its lines shortened::

    {"commitInfo":{"timestamp":1763800000000,"operation":"WRITE","consumerd":{"plan":"...","progress":{"bronze":17}}}}
    {"txn":{"appId":"...","version":1763800000000}}
    {"add":{"path":"topic=orders/0.parquet","size":4096,"stats":"{\\"numRecords\\":100}"}}

Commits of other writers (Delta on Spark, delta-rs) are read as well. One that only adds rows is an append, one that
changes no data is a compaction, any other is a replacement. A table that needs an unsupported feature, such as deletion
vectors, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote, unquote

from consumerd.landing.coverage import Coverage
from consumerd.landing.record_fields import MalformedRecord, UnknownFormat, find_number, get_number, get_text
from consumerd.spark.table.commit import (
    Bounds,
    DataFile,
    Operation,
    Scalar,
    TableCommit,
    TableRecord,
    get_numbers,
    get_texts,
    parse_bounds,
)
from consumerd.spark.table.folder_values import NULL_VALUE, escape_value, unescape_value

Action = dict[str, object]
"""Fields of one action of Delta's log, such as the object below ``add``."""

OURS: Final = "consumerd"
"""Key of our own fields in ``commitInfo`` and in the tags of a file."""
FORMAT: Final = 3
"""Version of our own fields. Versions 1 and 2 were logs that are not Delta's (``former_log``)."""

_OPERATIONS: Final = {
    Operation.APPEND: ("WRITE", {"mode": "Append"}),
    Operation.COMPACT: ("OPTIMIZE", {}),
    Operation.REPLACE: ("WRITE", {"mode": "Overwrite"}),
    Operation.DELETE: ("DELETE", {}),
    Operation.UPDATE: ("UPDATE", {}),
}
_FEATURES: Final = frozenset({"timestampNtz"})
"""Reader features, by Delta's names, that a table may require."""
_FEATURE_READER, _FEATURE_WRITER = 3, 7
"""Versions of the protocol in which features are named one by one."""
_MOST_READER, _MOST_WRITER = 1, 2
"""Highest versions of the protocol, without named features, that this release supports."""
_WRITER_2: Final = ("appendOnly", "invariants")
"""Features that writer version 2 implies, for protocols that list features by name."""

_SAFE: Final = "/!$&'()*+,;=:@"
"""Characters, besides letters and digits, that a URI path may hold unencoded (RFC 3986, section 3.3)."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US_PER_MS: Final = 1000
_CONFIGURATION: Final = {
    # other writers must not remove old commits, because our coverage and progress are in them
    "delta.enableExpiredLogCleanup": "false",
}


# -- commits


def encode_commit(commit: TableCommit, table: TableRecord) -> bytes:
    """Return a commit as lines of JSON, in Delta's format."""
    schema = commit.schema or table.schema
    actions: list[tuple[str, Action]] = [
        ("txn", {"appId": commit.plan, "version": commit.version, "lastUpdated": commit.time_ms}),
    ]
    if commit.schema is not None:
        actions.append(("protocol", make_protocol(schema)))
        actions.append(("metaData", make_metadata(table, schema)))
    data_change = commit.operation is not Operation.COMPACT
    actions += (("remove", make_remove(path, commit.time_ms, data_change=data_change)) for path in commit.removed)
    writer = FileWriter(table.partition_by, schema)
    actions += (("add", writer.make_add(file, commit.time_ms, data_change=data_change)) for file in commit.added)
    return _write_lines([("commitInfo", _describe(commit, len(actions))), *actions])


def parse_commit(data: bytes, version: int, partition_by: Sequence[str]) -> TableCommit:
    """Parse the log file of a commit, ours or another writer's. Raises MalformedRecord."""
    info: Mapping[str, object] = {}
    schema: str | None = None
    added: list[DataFile] = []
    removed: list[str] = []
    changes = False
    count = 0
    for name, action in _read_lines(data):
        if name == "commitInfo":
            info = action
            continue
        count += 1
        if name == "protocol":
            check_protocol(action)
        elif name == "metaData":
            schema = get_text(action, "schemaString")
        elif name == "add":
            added.append(parse_add(action, partition_by))
            changes |= bool(action.get("dataChange"))
        elif name == "remove":
            removed.append(parse_path(action))
            changes |= bool(action.get("dataChange"))
    ours = info.get(OURS)
    if not isinstance(ours, Mapping):
        removed = [path for path in removed if path not in {file.path for file in added}]
        operation = _guess(changes=changes, removes=bool(removed))
        time_ms = find_number(info, "timestamp") or 0
        who = str(info.get("operation", "unknown"))
        return TableCommit(
            version=version,
            plan=f"{who} of version {version}",
            operation=operation,
            job=who,
            writer="",
            time_ms=time_ms,
            added=tuple(added),
            removed=tuple(removed),
            schema=schema,
        )
    if get_number(ours, "version") != version:
        raise MalformedRecord(f"it says that it is version {get_number(ours, 'version')}; was it copied here?")
    if get_number(ours, "actions") != count:
        raise MalformedRecord(f"it has {count} of {ours['actions']} actions")
    return TableCommit(
        version=version,
        plan=get_text(ours, "plan"),
        operation=_parse_operation(ours),
        job=get_text(ours, "job"),
        writer=get_text(ours, "writer"),
        time_ms=get_number(info, "timestamp"),
        added=tuple(added),
        removed=tuple(removed),
        covered=parse_covered(ours),
        progress=get_numbers(ours, "progress"),
        counts=get_numbers(ours, "counts"),
        schema=schema,
        restores=find_number(ours, "restores"),
    )


def _describe(commit: TableCommit, actions: int) -> Action:
    operation, parameters = _OPERATIONS[commit.operation]
    restored: Action = {}
    if commit.restores is not None:
        operation, parameters = "RESTORE", {"version": str(commit.restores)}
        restored = {"restores": commit.restores}
    return {
        "timestamp": commit.time_ms,
        "operation": operation,
        "operationParameters": parameters,
        "isBlindAppend": commit.operation is Operation.APPEND,
        "engineInfo": "consumerd",
        OURS: {
            "format": FORMAT,
            "version": commit.version,
            "plan": commit.plan,
            "operation": str(commit.operation),
            "job": commit.job,
            "writer": commit.writer,
            "covered": commit.covered.encode(),
            "progress": dict(commit.progress),
            "counts": dict(commit.counts),
            "actions": actions,
            **restored,
        },
    }


def _parse_operation(ours: Mapping[str, object]) -> Operation:
    if ours.get("format") != FORMAT:
        raise UnknownFormat(f"format {ours.get('format')!r}, this release reads {FORMAT}")
    try:
        return Operation(get_text(ours, "operation"))
    except ValueError as error:
        raise MalformedRecord(str(error)) from error


def _guess(*, changes: bool, removes: bool) -> Operation:
    if not changes:
        return Operation.COMPACT
    return Operation.REPLACE if removes else Operation.APPEND


def parse_covered(fields: Mapping[str, object]) -> Coverage:
    """Parse the JSON field ``covered``: the landed offsets whose records a commit adds.

    Raises MalformedRecord.
    """
    try:
        return Coverage.parse(fields.get("covered", {}))
    except ValueError as error:
        raise MalformedRecord(f"covered: {error}") from error


# -- the table


def encode_table(table: TableRecord) -> bytes:
    """Return the log file of version 0, which has the table's description and no rows."""
    info: Action = {
        "timestamp": table.created_ms,
        "operation": "CREATE TABLE",
        "operationParameters": {},
        "engineInfo": "consumerd",
    }
    return _write_lines(
        [
            ("commitInfo", info),
            ("protocol", make_protocol(table.schema)),
            ("metaData", make_metadata(table, table.schema)),
        ]
    )


def parse_table(data: bytes) -> TableRecord:
    """Parse a table's description from the log file of version 0. Raises MalformedRecord."""
    found: TableRecord | None = None
    for name, action in _read_lines(data):
        if name == "protocol":
            check_protocol(action)
        elif name == "metaData":
            found = parse_metadata(action)
    if found is None:
        raise MalformedRecord("it has no metaData")
    return found


def make_metadata(table: TableRecord, schema: str) -> Action:
    """Return Delta's action ``metaData``: the description of a table.

    Args:
        schema: Spark's JSON of the columns.
    """
    return {
        "id": table.id,
        "name": table.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": list(table.partition_by),
        "configuration": dict(_CONFIGURATION),
        "createdTime": table.created_ms,
    }


def parse_metadata(action: Mapping[str, object]) -> TableRecord:
    """Parse Delta's action ``metaData``, the description of a table. Raises MalformedRecord."""
    return TableRecord(
        id=get_text(action, "id"),
        name=str(action.get("name") or ""),
        schema=get_text(action, "schemaString"),
        partition_by=get_texts(action, "partitionColumns"),
        created_ms=find_number(action, "createdTime") or 0,
    )


def make_protocol(schema: str) -> Action:
    """Return Delta's action ``protocol``: the features that a table with these columns needs."""
    features = sorted({"timestampNtz"} if '"timestamp_ntz"' in schema else ())
    if not features:
        return {"minReaderVersion": _MOST_READER, "minWriterVersion": _MOST_WRITER}
    return {
        "minReaderVersion": _FEATURE_READER,
        "minWriterVersion": _FEATURE_WRITER,
        "readerFeatures": features,
        "writerFeatures": [*_WRITER_2, *features],
    }


def check_protocol(action: Mapping[str, object]) -> None:
    """Raise UnknownFormat for a table with features that this release does not support."""
    if get_number(action, "minReaderVersion") <= _MOST_READER:
        return
    features = action.get("readerFeatures")
    if not isinstance(features, Sequence) or isinstance(features, str):
        raise UnknownFormat(f"Delta's reader version {action['minReaderVersion']}, this release has {_MOST_READER}")
    if unknown := sorted({str(one) for one in features} - _FEATURES):
        raise UnknownFormat(f"Delta's feature {unknown[0]}, which this release lacks")


# -- files


class FileWriter:
    """Makes Delta's actions ``add`` for files of one table.

    ``schema`` is Spark's JSON of the table's columns.
    """

    def __init__(self, partition_by: Sequence[str], schema: str) -> None:
        self._partition_by = tuple(partition_by)
        fields = json.loads(schema)["fields"]
        self._kinds: dict[str, object] = {field["name"]: field["type"] for field in fields}

    def make_add(self, file: DataFile, time_ms: int, *, data_change: bool) -> Action:
        """Return Delta's action ``add``, which makes a file part of the table.

        It has the bounds twice: in Delta's form, with timestamps in ms, and exactly, under our own tag.

        Args:
            time_ms: wall clock, in ms since the epoch.
            data_change: False if the same rows were in other files before.
        """
        values = map(unescape_value, file.values)
        return {
            "path": _encode_path(file.path),
            "partitionValues": dict(zip(self._partition_by, values, strict=True)),
            "size": file.size,
            "modificationTime": time_ms,
            "dataChange": data_change,
            "stats": _compact(self._make_stats(file)),
            "tags": {OURS: _compact({name: [one.low, one.high] for name, one in file.bounds.items()})},
        }

    def _make_stats(self, file: DataFile) -> Action:
        low: dict[str, Scalar] = {}
        high: dict[str, Scalar] = {}
        for name, bounds in file.bounds.items():
            pair: tuple[Scalar, Scalar] | None = bounds.low, bounds.high
            if self._kinds.get(name) in ("timestamp", "timestamp_ntz"):
                pair = _moments(bounds, zone="Z" if self._kinds[name] == "timestamp" else "")
            if pair is not None:
                low[name], high[name] = pair
        return {"numRecords": file.rows, "minValues": low, "maxValues": high}


def parse_add(action: Mapping[str, object], partition_by: Sequence[str]) -> DataFile:
    """Parse Delta's action ``add``, which makes a file part of the table. Raises MalformedRecord."""
    if action.get("deletionVector") is not None:
        raise UnknownFormat("Delta's feature deletionVectors, which this release lacks")
    path = parse_path(action)
    values = action.get("partitionValues")
    if not isinstance(values, Mapping):
        raise MalformedRecord(f"{path}: partitionValues is {values!r}, expected an object")
    stats = _parse_json(action.get("stats"), f"stats of {path}")
    tags = action.get("tags")
    exact = tags.get(OURS) if isinstance(tags, Mapping) else None
    return DataFile(
        path=path,
        size=get_number(action, "size"),
        rows=get_number(stats, "numRecords"),
        values=tuple(
            NULL_VALUE if (value := values.get(name)) is None else escape_value(str(value)) for name in partition_by
        ),
        bounds=parse_bounds(_parse_json(exact, f"tags of {path}")) if exact is not None else {},
    )


def make_remove(path: str, time_ms: int, *, data_change: bool) -> Action:
    """Return Delta's action ``remove``, which takes a file out of the table.

    ``time_ms`` is the wall clock then, in ms since the epoch.
    """
    return {"path": _encode_path(path), "deletionTimestamp": time_ms, "dataChange": data_change}


def _encode_path(path: str) -> str:
    """Percent-encode a path exactly as Spark does, because some readers compare paths as text."""
    return quote(path, safe=_SAFE)


def parse_path(action: Mapping[str, object]) -> str:
    """Return the path in a file's action, relative to the table. Raises MalformedRecord."""
    path = unquote(get_text(action, "path"))
    if path.startswith("/") or "://" in path:
        raise UnknownFormat(f"the file {path} lies outside of the table (a shallow clone?)")
    return path


def _moments(bounds: Bounds, *, zone: str) -> tuple[str, str] | None:
    """Return bounds in microseconds as Delta's timestamps, None beyond the year 9999.

    Delta's have milliseconds, so the lower bound is rounded down and the upper one up.
    """
    assert isinstance(bounds.low, int)
    assert isinstance(bounds.high, int)
    whole = bounds.low // _US_PER_MS, -(-bounds.high // _US_PER_MS)
    try:
        low, high = (_EPOCH + timedelta(milliseconds=one) for one in whole)
    except OverflowError:
        return None
    return _delta_timestamp(low, zone), _delta_timestamp(high, zone)


def _delta_timestamp(moment: datetime, zone: str) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone


# -- lines


def _write_lines(actions: Iterable[tuple[str, Action]]) -> bytes:
    return b"".join(_compact({name: action}).encode() + b"\n" for name, action in actions)


def _compact(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _read_lines(data: bytes) -> Iterator[tuple[str, Mapping[str, object]]]:
    for line in data.splitlines():
        for name, action in _parse_json(line, "a line").items():
            if action is None:
                continue
            if not isinstance(action, Mapping):
                raise MalformedRecord(f"{name} is {action!r}, expected an object")
            yield name, action


def _parse_json(text: object, what: str) -> Mapping[str, object]:
    if not isinstance(text, str | bytes):
        raise MalformedRecord(f"{what}: {text!r}, expected JSON")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(f"{what}: no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MalformedRecord(f"{what}: no JSON object")
    return fields
