# SPDX-License-Identifier: Apache-2.0
"""A job's work is in the table once or not at all, whatever dies when and whoever else is at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd import failpoints
from consumerd.landing.coverage import Coverage
from consumerd.landing.filesystem import OsFileSystem
from consumerd.landing.ranges import RangeSet
from consumerd.landing.values import LogId
from consumerd.model import Incarnation, PartitionKey
from consumerd.spark.table.commit import LOG_FOLDER, Operation, commit_name
from consumerd.spark.table.errors import TableConflict, TableError
from consumerd.spark.table.transaction import Table, create_table, open_table
from tests.support.faulty_files import RecordingFileSystem
from tests.support.tables import SCHEMA, append, make_rows, make_table, plain_offsets, read_offsets, stage

pytestmark = pytest.mark.records

LOG = LogId("orders", PartitionKey(0), Incarnation(7))

PROGRAM = """
import sys
from pathlib import Path
from tests.unit.spark.table.test_transaction import do_work

do_work(Path(sys.argv[1]))
"""

POINTS = [
    "before_table_file=kill",
    "before_table_file=kill@2",
    "after_table_file=kill@2",
    "before_table_links=kill",
    "after_table_link=kill",
    "after_table_link=kill@2",
    "before_table_commit=kill",
    "before_fsync=kill@2",
    "after_fsync=kill@2",
    "before_link=kill@2",
    "after_link=kill@2",
    "before_folder_sync=kill@2",
    "after_folder_sync=kill@2",
    "after_table_commit=kill",
]
"""Every step of the job; the first of those that publishing a record takes is that of version 0."""


def covering(start: int, end: int) -> Coverage:
    return Coverage(covered={LOG: RangeSet.of([(start, end)])})


def doubting(start: int, end: int) -> Coverage:
    """Return what a file covers that does not say which of these offsets it holds."""
    return Coverage(doubtful={LOG: RangeSet.of([(start, end)])})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "table")


def do_work(path: Path) -> None:
    """Be a job without Spark: stage two files and commit them."""
    table = make_table(path)
    append(table, make_rows(range(10)), make_rows(range(10, 20), topic="payments"), plan="the work")


def do_work_in_a_process(path: Path, points: str) -> int:
    environment = {**os.environ, failpoints.VARIABLE: points}
    root = Path(__file__).parents[4]
    return subprocess.run([sys.executable, "-c", PROGRAM, str(path)], env=environment, cwd=root, check=False).returncode


def strays(table: Table) -> list[str]:
    """What is left of attempts."""
    staged = [str(path) for path in (table.path / "_staging").rglob("*")]
    return staged + [str(path) for path in table.path.rglob(".*.tmp")]


@pytest.mark.parametrize("points", POINTS)
def test_job_killed_at_any_point_and_run_again_has_its_rows_once(tmp_path: Path, points: str) -> None:
    """Half a commit would be rows that nobody can tell from the others."""
    path = tmp_path / "table"
    expected = list(range(20))

    assert do_work_in_a_process(path, points) == -signal.SIGKILL
    table = open_table(path)
    assert read_offsets(table) in ([], expected)
    do_work(path)
    assert read_offsets(table) == expected
    assert plain_offsets(table) == expected
    assert [commit.plan for commit in table.log.read_after(0)] == ["the work"]
    do_work(path)
    assert read_offsets(table) == plain_offsets(table) == expected
    assert strays(table) == []


def test_failure_leaves_nothing(table: Table) -> None:
    """A job that fails is run again, and its first try must not count."""
    append(table, make_rows([1]))
    begun = table.begin(plan="fails", job="test", operation=Operation.APPEND)
    with pytest.raises(ZeroDivisionError), begun as transaction:
        stage(transaction, [make_rows([2])])
        raise ZeroDivisionError

    assert read_offsets(table) == plain_offsets(table) == [1]
    assert strays(table) == []


class Interrupting(OsFileSystem):
    """Ctrl-C comes as soon as a data file has its name."""

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        if target.suffix == ".parquet":
            raise KeyboardInterrupt


def test_signal_behind_a_link_leaves_nothing(table: Table) -> None:
    """Who reads folders would see rows that are of no version."""
    with pytest.raises(KeyboardInterrupt):
        append(open_table(table.path, files=Interrupting()), make_rows([1]))

    assert plain_offsets(table) == []
    assert strays(table) == []


def test_plan_that_is_in_the_log_is_not_committed_again(table: Table) -> None:
    """The job died after its commit, and does not know."""
    first = append(table, make_rows([1]), plan="the work")
    again = append(table, make_rows([1]), plan="the work")

    assert first == again
    assert table.snapshot().version == 1
    assert plain_offsets(table) == [1]


def test_jobs_beside_each_other_commit_one_behind_the_other(table: Table) -> None:
    """Each has its own part of the landing zone, and neither needs to know of the other."""
    one = table.begin(plan="one", job="test", operation=Operation.APPEND)
    two = table.begin(plan="two", job="test", operation=Operation.APPEND)
    with one as first, two as second:
        stage(first, [make_rows([1])])
        stage(second, [make_rows([2])])
        second.commit(covered=covering(5, 9), progress={"a": 1})
        first.commit(covered=covering(0, 5), progress={"b": 1})

    assert read_offsets(table) == [1, 2]
    assert [commit.plan for commit in table.log.read_after(0)] == ["two", "one"]
    assert table.snapshot().covered == covering(0, 9)


def test_second_of_two_jobs_of_one_plan_finds_it_done(table: Table) -> None:
    """Two schedulers have started the same job."""
    one = table.begin(plan="same", job="test", operation=Operation.APPEND)
    two = table.begin(plan="same", job="test", operation=Operation.APPEND)
    with one as first, two as second:
        stage(first, [make_rows([1])])
        stage(second, [make_rows([1])])
        done = second.commit(covered=covering(0, 5))
        assert first.commit(covered=covering(0, 5)) == done

    assert read_offsets(table) == plain_offsets(table) == [1]


@pytest.mark.parametrize(
    ("mine", "others", "reason"),
    [
        ({"covered": covering(0, 5)}, {"covered": covering(4, 9)}, r"has taken \[4, 5\) of orders/0@7"),
        ({"covered": doubting(0, 5)}, {"covered": doubting(4, 9)}, r"has taken \[4, 5\) of orders/0@7"),
        ({"covered": doubting(0, 5)}, {"covered": covering(4, 9)}, r"has taken \[4, 5\) of orders/0@7"),
        ({"covered": covering(0, 5)}, {"covered": doubting(4, 9)}, r"has taken \[4, 5\) of orders/0@7"),
        ({"progress": {"bronze": 3}}, {"progress": {"bronze": 2, "x": 1}}, "has moved on with bronze"),
        (
            {"covered": Coverage(cluster="a")},
            {"covered": Coverage(cluster="b")},
            "is of cluster b, this of a: give each",
        ),
    ],
)
def test_job_that_another_contradicts_is_refused_and_leaves_nothing(
    table: Table, mine: dict[str, object], others: dict[str, object], reason: str
) -> None:
    """Its rows are in the table already, by the other's commit."""
    one = table.begin(plan="mine", job="bronze", operation=Operation.APPEND)
    two = table.begin(plan="others", job="bronze", operation=Operation.APPEND)
    with pytest.raises(TableConflict, match=reason), one as first:
        stage(first, [make_rows([1])])
        with two as second:
            stage(second, [make_rows([1])])
            second.commit(**others)  # type: ignore[arg-type]  # of the parameters' own types
        first.commit(**mine)  # type: ignore[arg-type]

    assert read_offsets(table) == plain_offsets(table) == [1]
    assert strays(table) == []


@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REPLACE])
def test_file_that_another_job_has_removed_cannot_be_removed_again(table: Table, operation: Operation) -> None:
    """Both have put its rows into files of their own."""
    append(table, make_rows([1]))
    (old,) = table.snapshot().files
    one = table.begin(plan="mine", job="compact", operation=operation)
    two = table.begin(plan="others", job="compact", operation=operation)
    with pytest.raises(TableConflict, match="has removed"), one as first:
        stage(first, [make_rows([1])])
        first.remove([old])
        with two as second:
            stage(second, [make_rows([1])])
            second.remove([old])
            second.commit()
        first.commit()

    assert read_offsets(table) == [1]


def test_rows_are_not_replaced_by_who_has_not_seen_those_before(table: Table) -> None:
    """A latest view made of an older version would lose what was appended since."""
    append(table, make_rows([1]))
    with pytest.raises(TableConflict, match="has changed the rows"):  # noqa: SIM117 - the inner one is entered first
        with table.begin(plan="mine", job="latest", operation=Operation.REPLACE) as first:
            append(table, make_rows([2]))
            first.remove(list(first.base.files))
            first.commit()

    assert read_offsets(table) == [1, 2]


def test_columns_are_not_added_by_two_jobs_at_once(table: Table) -> None:
    """The second one's would be the table's, and those of the first be gone with what they hold."""

    def wider(name: str) -> str:
        kind = json.loads(SCHEMA)
        return json.dumps({**kind, "fields": [{**kind["fields"][1], "name": name}, *kind["fields"]]})

    with pytest.raises(TableConflict, match="changes the columns as well"):  # noqa: SIM117 - the inner one is entered first
        with table.begin(plan="mine", job="test", operation=Operation.APPEND) as mine:
            with table.begin(plan="other", job="test", operation=Operation.APPEND) as other:
                other.commit(schema=wider("other"))
            mine.commit(schema=wider("mine"))

    assert table.schema(table.snapshot()) == wider("other")


def test_a_table_in_other_folders_is_refused(table: Table) -> None:
    """Files of a job would lie where readers take other values from their places."""
    with pytest.raises(TableError, match=r"in folders by topic, day; this job writes 'rows' by day: give it a path"):
        create_table(table.path, name="rows", schema=SCHEMA, partition_by=("day",))


def test_compaction_goes_on_behind_appends(table: Table) -> None:
    """Bronze is written to all day."""
    append(table, make_rows([1]))
    append(table, make_rows([2]))
    with table.begin(plan="compaction", job="compact", operation=Operation.COMPACT) as transaction:
        stage(transaction, [make_rows([1, 2])])
        transaction.remove(list(transaction.base.files))
        append(table, make_rows([3]))
        transaction.commit()

    assert read_offsets(table) == [1, 2, 3]
    assert [read_offsets(table, version) for version in range(5)] == [[], [1], [1, 2], [1, 2, 3], [1, 2, 3]]
    assert plain_offsets(table) == [1, 1, 2, 2, 3]  # who goes by folders sees both, until a vacuum


def test_what_is_not_in_the_table_cannot_be_removed(table: Table) -> None:
    """The log would contradict itself for every reader from then on."""
    begun = table.begin(plan="mine", job="test", operation=Operation.COMPACT)
    with pytest.raises(TableError, match=r"version 0 has no x\.parquet"), begun as transaction:
        transaction.remove(["x.parquet"])
        transaction.commit()

    assert table.snapshot().version == 0


def test_a_commit_names_only_what_is_durable(tmp_path: Path) -> None:
    """A power cut right after the commit must find its rows: first content, then names, then the commit, in that order."""
    files = RecordingFileSystem()
    table = make_table(tmp_path / "table", files)
    files.calls.clear()
    append(table, make_rows([1], day="2026-11-21"), make_rows([2], day="2026-11-22"))

    calls = files.calls
    commit = calls.index(("link", commit_name(1)))
    data = [name for operation, name in calls if operation == "link" and name.endswith(".parquet")]
    assert 2 == len(data)
    assert set(data) <= {name for operation, name in calls if operation == "sync_path"}
    for name in data:
        assert calls.index(("sync_path", name)) < calls.index(("link", name)) < commit
    last_link = max(calls.index(("link", name)) for name in data)
    synced = [name for operation, name in calls[last_link:commit] if operation == "sync_folder"]
    assert ["day=2026-11-22", "day=2026-11-21", "topic=orders", "table"] == synced, (
        "a folder's own name stands in its parent"
    )
    assert "sync" in [operation for operation, _ in calls[last_link:commit]], "the commit's own content"
    assert ("sync_folder", LOG_FOLDER) in calls[commit:]


def test_job_at_work_is_not_taken_for_a_dead_one(table: Table) -> None:
    """A second job that begins cleans up after dead ones, and this one's files look just like theirs."""
    with table.begin(plan="slow", job="test", operation=Operation.APPEND) as slow:
        stage(slow, [make_rows([1])])
        append(table, make_rows([2]))
        slow.commit()

    assert read_offsets(table) == [1, 2]
