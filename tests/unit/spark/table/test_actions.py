# SPDX-License-Identifier: Apache-2.0
"""Commits as Delta's actions: ours say all that they are, and those of other writers are read for what they did."""

from __future__ import annotations

import json

import pytest

from consumerd.landing.record_fields import MalformedRecord, UnknownFormat
from consumerd.spark.table.actions import check_protocol, encode_commit, encode_table, parse_commit, parse_table
from consumerd.spark.table.commit import Bounds, DataFile, Operation, TableCommit, TableRecord
from consumerd.spark.table.folder_values import NULL_VALUE

FIELDS = (("offset", "long"), ("timestamp", "timestamp"), ("topic", "string"), ("day", "date"))
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS],
    }
)
TABLE = TableRecord(id="17", name="rows", schema=SCHEMA, partition_by=("topic", "day"), created_ms=5)
FOLDERS = TABLE.partition_by


def commit_of(*files: DataFile, **fields: object) -> TableCommit:
    """Return an append of these files, version 1."""
    given = {"version": 1, "plan": "p", "operation": Operation.APPEND, "job": "test", "writer": "w", "time_ms": 1000}
    return TableCommit(added=files, **given | fields)  # type: ignore[arg-type]  # of the fields' own types


def file_of(path: str = "a.parquet", *values: str, **bounds: Bounds) -> DataFile:
    return DataFile(path=path, size=7, rows=3, values=values or ("orders", "2026-11-22"), bounds=bounds)


def foreign(*actions: dict[str, object]) -> bytes:
    """Return a commit as delta-rs writes it, without a line's end at its end."""
    info = {"commitInfo": {"timestamp": 99, "operation": "MERGE", "engineInfo": "somebody"}}
    return "\n".join(json.dumps(one) for one in (info, *actions)).encode()


def add(path: str, *, data_change: bool = True, **fields: object) -> dict[str, object]:
    stats = json.dumps({"numRecords": 2})
    values = {"topic": "orders", "day": None}
    return {
        "add": {
            "path": path, "partitionValues": values, "size": 1, "modificationTime": 1, "dataChange": data_change,
            "stats": stats, **fields,
        }
    }  # fmt: skip


def remove(path: str, *, data_change: bool = True) -> dict[str, object]:
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": data_change}}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("topic=or%2Fders/day=2026-11-22/x 1.parquet", ("or%2Fders", "2026-11-22")),
        ("topic=100%25/day=__HIVE_DEFAULT_PARTITION__/ü#?.parquet", ("100%25", NULL_VALUE)),
    ],
)
def test_paths_and_values_are_read_as_they_were_written(path: str, values: tuple[str, ...]) -> None:
    """A folder's name is encoded once by Hive's rules, and once more where it stands in a URI."""
    data = encode_commit(commit_of(file_of(path, *values)), TABLE)
    (action,) = [one["add"] for one in map(json.loads, data.splitlines()) if "add" in one]

    assert parse_commit(data, 1, FOLDERS).added == (file_of(path, *values),)
    assert set("#? ").isdisjoint(action["path"])
    assert action["partitionValues"]["topic"] in ("or/ders", "100%")


def test_bounds_of_times_hold_what_is_in_the_file() -> None:
    """Delta tells them in whole ms: a reader that passes over files by them must not miss the last microseconds."""
    bounds = Bounds(low=1_700_000_000_000_001, high=1_700_000_000_999_001)
    data = encode_commit(commit_of(file_of(timestamp=bounds, offset=Bounds(low=5, high=9))), TABLE)
    (action,) = [one["add"] for one in map(json.loads, data.splitlines()) if "add" in one]
    stats = json.loads(action["stats"])

    assert stats["minValues"] == {"timestamp": "2023-11-14T22:13:20.000Z", "offset": 5}
    assert stats["maxValues"] == {"timestamp": "2023-11-14T22:13:21.000Z", "offset": 9}
    assert parse_commit(data, 1, FOLDERS).added[0].bounds["timestamp"] == bounds


def test_bounds_beyond_the_calendar_are_left_out_for_others() -> None:
    """The year 10000 has no text there."""
    far = Bounds(low=0, high=10**18)
    data = encode_commit(commit_of(file_of(timestamp=far)), TABLE)

    assert b"10000" not in data.replace(b"1000000000000000000", b"")
    assert parse_commit(data, 1, FOLDERS).added[0].bounds == {"timestamp": far}


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_commit_that_lacks_lines_is_damaged(cut: int) -> None:
    """Rows would be missing, or counted twice, and nobody would know."""
    data = encode_commit(commit_of(file_of("a"), file_of("b"), removed=("c",)), TABLE)

    with pytest.raises(MalformedRecord, match=rf"it has {4 - cut} of 4 actions"):
        parse_commit(b"".join(data.splitlines(keepends=True)[:-cut]), 1, FOLDERS)


@pytest.mark.parametrize(
    ("actions", "operation"),
    [
        ([add("a")], Operation.APPEND),
        ([add("a"), remove("b")], Operation.REPLACE),
        ([remove("b")], Operation.REPLACE),
        ([add("a", data_change=False), remove("b", data_change=False)], Operation.COMPACT),
        ([{"txn": {"appId": "x", "version": 3}}], Operation.COMPACT),
    ],
)
def test_commits_of_others_are_what_they_did(actions: list[dict[str, object]], operation: Operation) -> None:
    """Somebody runs OPTIMIZE, MERGE or DELETE: the jobs go on, and increments know what they may pass over."""
    found = parse_commit(foreign(*actions), 7, FOLDERS)

    assert (found.version, found.operation, found.job, found.time_ms) == (7, operation, "MERGE", 99)
    assert [file.path for file in found.added] == [one["add"]["path"] for one in actions if "add" in one]  # type: ignore[index]
    assert found.removed == tuple(one["remove"]["path"] for one in actions if "remove" in one)  # type: ignore[index]
    for file in found.added:
        assert (file.rows, file.values, file.bounds) == (2, ("orders", NULL_VALUE), {})


@pytest.mark.parametrize("operation", Operation)
def test_a_compaction_says_to_others_that_it_changes_no_rows(operation: Operation) -> None:
    """Streams of Delta and of delta-rs pass such a commit over: its rows were read before."""
    data = encode_commit(commit_of(file_of(), operation=operation, removed=("b.parquet",)), TABLE)
    changes = [
        action["dataChange"] for line in data.splitlines() for action in json.loads(line).values() if "path" in action
    ]

    assert changes == [operation is not Operation.COMPACT] * 2


def test_two_commits_of_others_are_two_plans() -> None:
    """A plan that is in the log is never committed again: theirs must not hide one another."""
    plans = {parse_commit(foreign(add("a")), version, FOLDERS).plan for version in (1, 2)}

    assert len(plans) == 2


@pytest.mark.parametrize(
    "actions",
    [
        [add("a", deletionVector={"storageType": "u"})],
        [add("s3://elsewhere/a")],
        [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}],
        [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"]}}],
    ],
)
def test_what_this_release_cannot_read_is_refused(actions: list[dict[str, object]]) -> None:
    """Rows that are deleted by a vector would come back, and columns have other names than their files say."""
    with pytest.raises(UnknownFormat):
        parse_commit(foreign(*actions), 1, FOLDERS)


@pytest.mark.parametrize("line", [b"[]", b"{", b"17", b'{"add": 5}', b'{"add": {"path": "a"}}', b"\xff"])
def test_lines_that_are_no_actions_are_damage(line: bytes) -> None:
    """Told of as that, and not as a fault in our code."""
    with pytest.raises(MalformedRecord):
        parse_commit(line, 1, FOLDERS)


def test_a_time_without_zone_needs_readers_that_know_it() -> None:
    """Others would take it for UTC."""
    plain = SCHEMA
    local = SCHEMA.replace('"type": "timestamp"', '"type": "timestamp_ntz"')
    tables = [TableRecord(id="1", name="n", schema=one, partition_by=()) for one in (plain, local)]
    protocols = [json.loads(encode_table(one).splitlines()[1])["protocol"] for one in tables]

    assert protocols[0] == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert protocols[1]["readerFeatures"] == ["timestampNtz"]
    for protocol in protocols:
        check_protocol(protocol)
    assert [parse_table(encode_table(one)) for one in tables] == tables
