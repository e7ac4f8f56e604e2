# SPDX-License-Identifier: Apache-2.0
"""What retention removes of the landing zone and of tables, and what has to stay."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
from pydantic import ValidationError

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Retention
from consumerd.errors import ConfigError
from consumerd.landing.footers import read_all
from consumerd.landing.plan import plan_landing
from consumerd.landing.scan import scan_landing
from consumerd.spark import audit
from consumerd.spark.bronze_table import SCHEMA as BRONZE
from consumerd.spark.job import Silent, Summary
from consumerd.spark.retention import remove_days, run
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.transaction import Table, create_table
from tests.support.landing_zone import Kind, LandingZone
from tests.support.tables import append, make_rows, make_table, read_offsets

DAY_MS = 86_400_000
DAY = "2026-11-22"


def no_session() -> object:
    raise AssertionError("retention needs no Spark")


def settings(tmp_path: Path, **retention: object) -> JobSettings:
    return JobSettings.model_validate(
        {
            "pipeline": {
                "path": str(tmp_path / "lake"),
                "landing": {"roots": [str(tmp_path / "landing")]},
                "silver": {"topics": {"orders": {"key": "utf8", "value": "raw"}}},
                "retention": retention,
            }
        }
    )


def retain(tmp_path: Path, **retention: object) -> Summary:
    return run(no_session, settings(tmp_path, **retention), Silent())  # type: ignore[arg-type] # it is not to be called


def take_over(zone: LandingZone, tmp_path: Path) -> Table:
    """Have bronze cover all that has landed, as if its rows had been copied."""
    bronze = create_table(
        tmp_path / "lake" / "bronze", name="bronze", schema=BRONZE.json(), partition_by=("topic", "day")
    )
    plan = plan_landing(read_all(scan_landing([zone.path])), bronze.snapshot().covered)
    with bronze.begin(plan=str(plan.adds.encode()), job="bronze", operation=Operation.APPEND) as transaction:
        transaction.commit(covered=plan.adds)
    return bronze


def age(paths: list[Path], days: int) -> None:
    for path in paths:
        modified = path.stat().st_mtime_ns - days * DAY_MS * 1_000_000
        os.utime(path, ns=(modified, modified))


def positions(zone: LandingZone) -> list[int]:
    return [int(path.name.partition(".")[0]) for path in zone.files("orders", 0)]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_landed_files_go_from_a_chains_beginning_and_its_newest_stays(tmp_path: Path, kind: Kind) -> None:
    """The newest says where the chain ends: daemons go on from it, and audit finds nothing wrong."""
    zone = LandingZone(tmp_path / "landing", kind)
    zone.land("orders", 0, 0, 40, files=4)
    take_over(zone, tmp_path)
    zone.land("orders", 0, 40, 60, files=2)
    age(zone.files("orders", 0), 10)
    said = retain(tmp_path, landing_ms=5 * DAY_MS, dry_run=True)
    assert (said.numbers["landed_files"], positions(zone)) == (4, [0, 10, 20, 30, 40, 50])
    said = retain(tmp_path, landing_ms=5 * DAY_MS)

    assert said.numbers["landed_files"] == 4
    assert positions(zone) == [40, 50], "bronze has not taken these"
    take_over(zone, tmp_path)
    retain(tmp_path, landing_ms=5 * DAY_MS)
    assert positions(zone) == [50]
    assert len(list(zone.path.rglob("_meta/*"))) == (1 if kind == "jsonl" else 0)
    zone.land("orders", 0, 60, 70)
    assert positions(zone) == [50, 60]
    assert audit.run(no_session, settings(tmp_path), Silent()).findings == ()  # type: ignore[arg-type]
    assert plan_landing(read_all(scan_landing([zone.path])), take_over(zone, tmp_path).snapshot().covered).is_empty


def test_a_young_file_keeps_those_behind_it(tmp_path: Path) -> None:
    """A chain never has a hole."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 40, files=4)
    take_over(zone, tmp_path)
    age([path for path, position in zip(zone.files("orders", 0), positions(zone), strict=True) if position != 10], 10)
    retain(tmp_path, landing_ms=5 * DAY_MS)

    assert positions(zone) == [10, 20, 30]


def test_landed_files_stay_without_bronze_and_with_anothers(tmp_path: Path) -> None:
    """Nobody else has their records."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 20, files=2)
    age(zone.files("orders", 0), 10)
    assert retain(tmp_path, landing_ms=0).notes == ("nothing is old enough",)
    LandingZone(tmp_path / "other", cluster="3-1").land("orders", 0, 0, 20)
    take_over(LandingZone(tmp_path / "other"), tmp_path)
    with pytest.raises(ConfigError, match=r"bronze holds records of cluster 3-1.*nothing was removed"):
        retain(tmp_path, landing_ms=0)
    assert positions(zone) == [0, 10]


def test_old_days_go_and_are_counted(tmp_path: Path) -> None:
    """By topic, over all runs; older versions stay readable until a vacuum, and appends are still read one by one."""
    table = make_table(tmp_path / "table")
    append(table, make_rows(range(5), day="2026-11-01"), make_rows(range(5, 7), topic="clicks", day="2026-11-02"))
    append(table, make_rows(range(7, 10), day="2026-11-21"))
    removed = remove_days(table, date(2026, 11, 2), name="bronze", dry_run=True)
    assert (removed.files, removed.rows, table.snapshot().version) == (1, 5, 2)
    remove_days(table, date(2026, 11, 2), name="bronze")
    remove_days(table, date(2026, 11, 21), name="bronze")

    assert read_offsets(table) == [7, 8, 9]
    assert read_offsets(table, 2) == [*range(10)]
    snapshot = table.snapshot()
    assert (snapshot.progress, snapshot.last_replace) == ({"expired:orders": 5, "expired:clicks": 2}, 0)
    assert table.log.read(3).operation is Operation.DELETE
    assert remove_days(table, date(2026, 11, 21), name="bronze").files == 0
    assert table.snapshot().version == 4


def test_rows_that_silver_has_not_decoded_stay_in_bronze(tmp_path: Path) -> None:
    """Nobody would ever see them."""
    bronze = make_table(tmp_path / "lake" / "bronze")
    append(bronze, make_rows([1], day="2020-01-01"), make_rows([2], day="2020-01-01", topic="raw"))
    silver = make_table(tmp_path / "lake" / "silver" / "orders")
    append(silver, make_rows([1], day="2020-01-01"), progress={f"bronze:{bronze.record.id}": 1})
    append(bronze, make_rows([3], day="2020-01-02"), make_rows([4], day="2020-01-02", topic="raw"))
    said = retain(tmp_path, bronze_ms=DAY_MS)

    assert read_offsets(bronze) == [3]
    assert said.notes == ("orders: 1 files of bronze stay until silver has decoded them",)
    assert said.numbers["rows"] == 3


def test_what_nobody_can_intend_is_refused(tmp_path: Path) -> None:
    """Silver would decode again what it had removed."""
    with pytest.raises(ValidationError, match="silver_ms must not be below bronze_ms"):
        Retention(bronze_ms=2, silver_ms=1)
    with pytest.raises(ValidationError, match="quarantine_ms must not be below bronze_ms"):
        Retention(quarantine_ms=1)
    with pytest.raises(ConfigError, match=r"pipeline\.retention: nothing is set there"):
        retain(tmp_path)


class Killed(BaseException):
    """The process dies here."""


def test_run_that_dies_leaves_no_landed_file_without_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be a damaged file to everybody else."""
    zone = LandingZone(tmp_path / "landing", kind="jsonl")
    age(zone.land("orders", 0, 0, 30, files=3), days=9)
    take_over(zone, tmp_path)
    unlink, left = Path.unlink, iter([True])

    def die_at_the_second(path: Path, missing_ok: bool = False) -> None:
        if not next(left, False):
            raise Killed
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", die_at_the_second)
        with pytest.raises(Killed):
            retain(tmp_path, landing_ms=DAY_MS)
    [chain] = read_all(scan_landing([zone.path])).chains

    assert positions(zone) == [10, 20]
    assert [file.damage for file in chain.files] == [None, None]
