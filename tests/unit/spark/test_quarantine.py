# SPDX-License-Identifier: Apache-2.0
"""Counts, marks and purge of the quarantine, beside other jobs. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from consumerd.config.pipeline import Pipeline
from consumerd.spark import quarantine, silver
from consumerd.spark.cli import main
from consumerd.spark.decoding.loading import load_decoder
from consumerd.spark.quarantine import count, purge
from consumerd.spark.quarantine_purged import find_purged
from consumerd.spark.quarantine_rows import (
    MARKS,
    REPLAYED,
    REPLAYED_TO,
    Choice,
    add_marks,
    count_replayed,
    mark_rows,
)
from consumerd.spark.silver import TopicTables
from consumerd.spark.silver_tables import BAD_RECORD, QUARANTINE_FOLDERS
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.transaction import Table, Transaction
from tests.support.tables import append, make_rows, make_table, read_offsets, stage

SETTINGS = Pipeline.model_validate({"silver": {"topics": {"orders": {"key": "raw", "value": "raw"}}}})
DECODER = load_decoder("orders", SETTINGS.silver.topics["orders"])
AT = datetime(2026, 11, 24, tzinfo=UTC)


def bad(
    offsets: Sequence[int], *, topic: str = "orders", cause: str = "late", replayed: Sequence[int] | None = None
) -> pa.RecordBatch:
    """Return quarantined records, which landed at their offsets in seconds since the epoch.

    Args:
        replayed: offsets with a mark; None for rows without the columns of marks.
    """
    size = len(offsets)
    landed = pa.array([offset * 1_000_000 for offset in offsets], pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns: dict[str, pa.Array] = {
        "incarnation": pa.array(["7"] * size),
        "broker": pa.array([None] * size, pa.int32()),
        "partition": pa.array([0] * size, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "index": pa.array([0] * size, pa.int32()),
        "landed": landed,
        "cause": pa.array([cause] * size),
        "reason": pa.array([f"{cause} {offset}" for offset in offsets]),
    }
    if replayed is not None:
        columns[REPLAYED] = pa.array([AT if offset in replayed else None for offset in offsets], MARKS[0].type)
        columns[REPLAYED_TO] = pa.array(["again" if offset in replayed else None for offset in offsets], pa.string())
    columns["topic"] = pa.array([topic] * size)
    columns["day"] = pa.array(["2026-11-22"] * size).cast(pa.date32())
    return pa.RecordBatch.from_pydict(columns)


@pytest.fixture
def tables(tmp_path: Path) -> TopicTables:
    """The tables of a topic with 30 records, of which 6 are in quarantine."""
    bronze = make_table(tmp_path / "lake" / "bronze")
    found = silver.open_tables(
        "orders",
        DECODER,
        bronze=bronze,
        silver=tmp_path / "lake/silver/orders",
        quarantine=tmp_path / "lake/quarantine",
    )
    append(bronze, make_rows(range(30)))
    progress = {found.quarantine_source: 1, found.quarantine_rebuilds: 0}
    append(
        found.quarantine, bad([0, 5, 10], replayed=[5]), bad([1, 6], cause="bad key", replayed=[]), progress=progress
    )
    append(found.quarantine, bad([20]), bad([100, 101], topic="clicks"))
    good = [offset for offset in range(30) if offset not in (0, 1, 5, 6, 10, 20)]
    append(found.silver, make_rows(good).select(["offset", "value", "day"]), progress={found.source: 1})
    return found


@pytest.fixture
def table(tables: TopicTables) -> Table:
    return tables.quarantine


class Interrupted(Table):
    """A table on which something else happens just before each of the next transactions begins."""

    def __init__(self, table: Table, *before: Callable[[], object]) -> None:
        super().__init__(table.record, table.log)
        self._before = list(before)

    def begin(self, **how: Any) -> Transaction:
        if self._before:
            self._before.pop(0)()
        return super().begin(**how)


def compact(table: Table) -> None:
    """Put all rows of the topic orders into one file, with compaction's operation."""
    with table.begin(plan=f"c{table.snapshot().version}", job="compact", operation=Operation.COMPACT) as transaction:
        old = [file for file in transaction.base.files.values() if file.values[0] == "orders"]
        parts = [pq.read_table(table.path / file.path, partitioning=None) for file in old]
        rows = pa.concat_tables(parts, promote_options="default")
        rows = rows.append_column("topic", pa.array(["orders"] * len(rows)))
        rows = rows.append_column("day", pa.array(["2026-11-22"] * len(rows)).cast(pa.date32()))
        stage(transaction, rows.combine_chunks().to_batches())
        transaction.remove(file.path for file in old)
        transaction.commit()


def noted(table: Table) -> list[int]:
    purged = find_purged(table)
    return [] if purged is None else read_offsets(purged)


def test_marks_are_those_of_the_given_rows() -> None:
    """By number; rows that were marked before keep their marks."""
    rows = pa.Table.from_batches([bad(range(5), replayed=[4])])
    columns = [pa.array([1, 3], pa.int64()), pa.array([AT, AT], MARKS[0].type), pa.array(["a", "b"])]
    marks = pa.StructArray.from_arrays(columns, names=["_row", REPLAYED, REPLAYED_TO])

    for before in (rows, rows.drop_columns([REPLAYED, REPLAYED_TO])):
        marked = mark_rows(before, marks.field("_row"), marks)
        last = "again" if before is rows else None
        assert marked[REPLAYED_TO].to_pylist() == [None, "a", None, "b", last]
        assert marked[REPLAYED].to_pylist() == [None, AT, None, AT, AT if last else None]
        assert marked.drop_columns([REPLAYED, REPLAYED_TO]) == rows.drop_columns([REPLAYED, REPLAYED_TO])


def test_columns_of_marks_are_added_before_the_folders_once() -> None:
    """A table of an earlier release, with a column that others have added, keeps it."""
    old = json.loads(from_arrow_schema(BAD_RECORD).json())
    theirs = {"name": "theirs", "type": "string", "nullable": True, "metadata": {}}
    old["fields"].insert(0, theirs)
    wider = add_marks(json.dumps(old), QUARANTINE_FOLDERS)

    assert wider is not None
    names = [field["name"] for field in json.loads(wider)["fields"]]
    assert names == ["theirs", *BAD_RECORD.names[:-2], REPLAYED, REPLAYED_TO, "topic", "day"]
    assert add_marks(wider, QUARANTINE_FOLDERS) is None


def test_counts_say_how_many_were_replayed(table: Table) -> None:
    """Files without the columns of marks have none; conditions are those of a purge."""
    snapshot = table.snapshot()
    found = count(table, snapshot, Choice())

    assert [(one.topic, one.cause, one.rows, one.replayed) for one in found] == [
        ("orders", "late", 4, 1),
        ("clicks", "late", 2, 0),
        ("orders", "bad key", 2, 0),
    ]
    assert count_replayed(table, snapshot.files.values()) == 1
    chosen = Choice(topic="orders", cause="late", before=datetime.fromtimestamp(10, UTC))
    assert [one.rows for one in count(table, snapshot, chosen)] == [2]


def test_rows_without_a_time_of_landing_are_not_chosen_by_their_age() -> None:
    """A purge of old records must not take one that may have landed a moment ago."""
    landed = pa.array([1_000_000, None, 9_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"cause": ["late"] * 3, "landed": landed, REPLAYED: pa.nulls(3, MARKS[0].type)})

    assert Choice(before=datetime.fromtimestamp(5, UTC)).find(rows).to_pylist() == [True, False, False]


@pytest.mark.parametrize(
    ("choice", "gone"),
    [
        (Choice(replayed=True), {5}),
        (Choice(topic="orders"), {0, 1, 5, 6, 10, 20}),
        (Choice(cause="bad key"), {1, 6}),
        (Choice(cause="bad key", replayed=True), set()),
        (Choice(before=datetime.fromtimestamp(10, UTC)), {0, 1, 5, 6}),
        (Choice(), {0, 1, 5, 6, 10, 20, 100, 101}),
    ],
)
def test_a_purge_removes_the_chosen_rows(tables: TopicTables, table: Table, choice: Choice, gone: set[int]) -> None:
    """They are counted, so silver's counts hold; their identities are kept."""
    before = read_offsets(table)
    untouched = {path for path in table.snapshot().files if not set(_offsets_in(table, path)) & gone}
    done = purge(table, choice, now_ms=1)

    snapshot = table.snapshot()
    assert read_offsets(table) == [offset for offset in before if offset not in gone]
    assert untouched <= snapshot.files.keys()
    assert noted(table) == sorted(gone)
    assert done.rows.total() == len(gone)
    of_orders = len(gone & set(range(30)))
    assert snapshot.progress.get("purged:orders", 0) == of_orders
    assert silver.check_counts(tables) == []
    assert read_offsets(table, 2) == before, "older versions stay readable"
    assert snapshot.last_replace == 0
    assert all(commit.operation is Operation.DELETE for commit in table.log.read_after(2))


def _offsets_in(table: Table, path: str) -> list[int]:
    return pq.read_table(table.path / path, columns=["offset"], partitioning=None)["offset"].to_pylist()


def test_rows_that_stay_keep_their_marks_order_and_bounds(table: Table) -> None:
    append(table, bad([40, 30, 35, 50], replayed=[35, 50]))
    purge(table, Choice(before=datetime.fromtimestamp(34, UTC)), now_ms=1)

    [file] = [one for one in table.snapshot().files.values() if one.values[0] == "orders"]
    rows = pq.read_table(table.path / file.path, partitioning=None)
    assert rows["offset"].to_pylist() == [40, 35, 50]
    assert rows[REPLAYED_TO].to_pylist() == [None, "again", "again"]
    assert (file.rows, file.bounds["offset"].low, file.bounds["offset"].high) == (3, 35, 50)


def test_a_purge_is_in_commits_of_some_files(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that none is larger than memory and time allow, and all of them count."""
    monkeypatch.setattr(quarantine, "FILES_AT_ONCE", 2)
    for offset in (30, 31, 32):
        append(table, bad([offset, offset + 10], replayed=[offset]))
    done = purge(table, Choice(replayed=True), now_ms=1)

    assert (done.rows.total(), done.rewritten, done.dropped) == (4, 4, 0)
    assert table.snapshot().version == 5 + 2
    assert table.snapshot().progress["purged:orders"] == 4
    assert noted(table) == [5, 30, 31, 32]


def test_what_others_do_between_plan_and_commit_stays(table: Table) -> None:
    """Silver adds rows; compaction moves the planned ones, and the purge is planned anew."""
    beside = Interrupted(table, lambda: append(table, bad([25])), lambda: compact(table))
    late_first = Choice(cause="late", before=datetime.fromtimestamp(22, UTC))
    assert purge(beside, Choice(replayed=True), now_ms=1).rows.total() == 1
    assert purge(beside, late_first, now_ms=1).rows["orders"] == 3

    assert read_offsets(table) == [1, 6, 25, 100, 101]
    assert table.snapshot().progress["purged:orders"] == 4


def test_two_purges_at_once_count_each_row_once(table: Table) -> None:
    """The second one meets the first one's commit."""
    beside = Interrupted(table, lambda: purge(table, Choice(topic="orders", cause="late"), now_ms=1))
    done = purge(beside, Choice(topic="orders"), now_ms=2)

    assert done.rows["orders"] == 2
    assert read_offsets(table) == [100, 101]
    assert table.snapshot().progress["purged:orders"] == 6


def test_a_purge_gives_up_where_others_come_between_all_the_time(table: Table) -> None:
    """With an error, and with all rows that it has not committed."""
    beside = Interrupted(table, *[lambda: compact(table)] * 10)
    with pytest.raises(TableConflict, match="was replaced by another job"):
        purge(beside, Choice(), now_ms=1)
    assert read_offsets(table) == [0, 1, 5, 6, 10, 20, 100, 101]


def say(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_command_says_what_it_would_purge_and_purges_that(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run leaves the table as it is."""
    words = ("quarantine", "--path", str(tmp_path / "lake"), "--topic", "orders", "--cause", "late")
    counted = say(capsys, *words)
    assert (counted["rows"], counted["replayed"]) == (4, 1)
    purging = (*words, "--before", "1970-01-01T00:00:15Z", "--purge", "all")
    planned = say(capsys, *purging, "--dry-run")
    assert (planned["chosen"], planned["purged"], planned["version"]) == (3, 0, 2)
    assert "nothing was removed (--dry-run)" in planned["notes"]
    assert find_purged(table) is None
    done = say(capsys, *purging)

    assert (done["chosen"], done["purged"], done["rows"]) == (3, 3, 5)
    assert done["causes"] == planned["causes"]
    assert read_offsets(table) == [1, 6, 20, 100, 101]
    assert say(capsys, *words, "--older-than-ms", "0", "--purge", "replayed")["notes"] == ["nothing is chosen"]
    everything = ("quarantine", "--path", str(tmp_path / "lake"))
    assert [
        say(capsys, *everything, *age)["rows"]
        for age in (("--older-than", "7d"), ("--older-than-ms", "36h"), ("--older-than", "36500d"))
    ] == [5, 5, 0]
    assert (
        say(capsys, "history", "quarantine", "--path", str(tmp_path / "lake"))["versions"][0]["operation"] == "delete"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--purge", "all", "--version", "1"], "a purge removes rows of the newest version"),
        (["--before", "2026-03-01"], "expected a time with its zone"),
        (["--before", "2026-03-01T00:00:00Z", "--older-than-ms", "5"], "not allowed with argument"),
        (["--older-than", "7d", "--older-than-ms", "5"], "not allowed with argument"),
        (["--older-than", "7"], "expected a duration with its unit, such as 12h or 7d, not '7'"),
        (["--older-than", "a week"], "500ms, 60s, 5m, 1h or 7d, got 'a week'"),
        (["--older-than-ms", "-5"], "expected"),
    ],
)
def test_a_purge_of_something_else_is_refused(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    try:
        code = main(["quarantine", "--path", str(tmp_path / "lake"), *words])
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert error in capsys.readouterr().err
    assert table.snapshot().version == 2


def test_a_note_without_its_purge_does_no_harm(
    tables: TopicTables, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge that dies between its two commits is run again."""

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "_publish", _dying_at(2, Transaction._publish))
        with pytest.raises(KeyboardInterrupt):
            purge(table, Choice(replayed=True), now_ms=1)
    assert (noted(table), table.snapshot().version) == ([5], 2)
    purge(table, Choice(replayed=True), now_ms=1)

    assert noted(table) == [5, 5]
    assert table.snapshot().progress["purged:orders"] == 1
    assert silver.check_counts(tables) == []


def _dying_at(turn: int, publish: Callable[..., Any]) -> Callable[..., Any]:
    turns = iter(range(1, 100))

    def dying(*given: object) -> Any:
        if next(turns) == turn:
            raise KeyboardInterrupt
        return publish(*given)

    return dying
