# SPDX-License-Identifier: Apache-2.0
"""Every table of the pipeline as others read it: the same rows as ``read_table``, at every version that is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from consumerd.spark.cli import main
from consumerd.spark.table.commit import LOG_FOLDER, parse_checkpoint_name
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import open_table
from consumerd.spark.table.vacuum import vacuum
from tests.support.delta_readers import READERS, Rows, open_by_delta_rs, rows_of
from tests.support.lake import TABLES, make_lake
from tests.support.reading_beside_jobs import assert_whole_versions, read_beside_jobs

pytestmark = pytest.mark.records


Versions = Mapping[int, Rows]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lake(spark, tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def expected(spark: SparkSession, lake: Path) -> Mapping[str, Versions]:
    """What each table has at each version, by ``read_table``."""
    return {
        table: {
            version: rows_of(read_table(spark, lake / table, version).toArrow())
            for version in range(1, open_table(lake / table).snapshot().version + 1)
        }
        for table in TABLES
    }


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_others_read_what_we_read(
    lake: Path, expected: Mapping[str, Versions], table: str, reader: Callable[..., pa.Table]
) -> None:
    """Each version, and the newest without its number."""
    rows = expected[table]

    assert len(rows) >= 3
    assert {version: rows_of(reader(lake / table, version)) for version in rows} == rows
    assert rows_of(reader(lake / table)) == rows[max(rows)]
    assert rows[max(rows)]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_others_read_what_vacuum_has_kept(
    lake: Path, expected: Mapping[str, Versions], tmp_path: Path, table: str, reader: Callable[..., pa.Table]
) -> None:
    """The log begins with a checkpoint then: what came before it is gone, and the versions behind it are as they were."""
    path = Path(shutil.copytree(lake / table, tmp_path / "table"))
    held = open_table(path)
    newest = held.snapshot()
    checkpoints = filter(None, (parse_checkpoint_name(file.name) for file in (path / LOG_FOLDER).iterdir()))
    last = max(version for version in checkpoints if version < newest.version)
    kept_ms = newest.time_ms - held.log.read(last).time_ms - 1
    gone = vacuum(held, keep_ms=kept_ms, now_ms=newest.time_ms, keep_log_ms=0)
    kept = {version: rows for version, rows in expected[table].items() if version >= last}

    assert gone.expired
    assert open_table(path).log.oldest() == last
    assert {version: rows_of(reader(path, version)) for version in kept} == kept


def test_the_quarantine_is_counted_without_spark(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every ten orders one is no JSON, one has a bad key, one is late; after compactions, too."""
    assert main(["quarantine", "--path", str(lake), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)

    assert {(one["topic"], one["cause"]): one["rows"] for one in said["causes"]} == {
        ("orders", "bad value"): 18,
        ("orders", "bad key"): 18,
        ("orders", "late"): 18,
    }
    assert said["rows"] == 54


def test_times_and_offsets_pass_over_files_that_cannot_have_them(lake: Path) -> None:
    """What the log says of a file is why a query of an hour does not read a year."""

    found = open_by_delta_rs(lake / "bronze")
    actions = pa.table(found.get_add_actions(flatten=True)).to_pylist()

    assert {"min.offset", "max.offset", "min.timestamp", "max.timestamp", "partition.topic"} <= actions[0].keys()
    for action in actions:
        rows = found.to_pyarrow_table(filters=[("topic", "=", action["partition.topic"])]).to_pylist()
        held = [row for row in rows if action["min.offset"] <= row["offset"] <= action["max.offset"]]
        assert len(held) >= action["num_records"]


def is_there(reader: Callable[..., pa.Table], table: Path) -> bool:
    """Tell whether a reader's package is installed."""
    try:
        reader(table)
    except pytest.skip.Exception:
        return False
    return True


def test_others_read_whole_commits_while_jobs_compact_and_vacuum(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """Beside all jobs, each reader sees a version of each table, never half of one."""
    readers = {name: reader for name, reader in READERS.items() if is_there(reader, lake / "bronze")}
    if not readers:
        pytest.skip("no reader is installed: pip install -e '.[readers]'")

    seen = read_beside_jobs(spark, tmp_path, readers)

    assert_whole_versions(spark, seen)
