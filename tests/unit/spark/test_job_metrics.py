# SPDX-License-Identifier: Apache-2.0
"""What a job's metrics say after it has worked, found something, failed; and where the tables are then."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from consumerd.config.job import JobSettings
from consumerd.errors import ConsumerdError
from consumerd.landing.coverage import NOTHING
from consumerd.landing.footers import read_new
from consumerd.landing.plan import plan_landing
from consumerd.landing.scan import scan_landing
from consumerd.spark.cli import main
from consumerd.spark.job import JobName, Progress, Sessions, Summary
from consumerd.spark.job_metrics import SERIES, JobEnd, report_metrics
from consumerd.spark.retention import remove_days
from consumerd.spark.silver_progress import bronze_source
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.transaction import Table, create_table
from tests.support.landing_zone import LandingZone
from tests.support.tables import SCHEMA, append, make_rows

Samples = dict[tuple[str, ...], float]


def settings(tmp_path: Path, **metrics: object) -> JobSettings:
    return JobSettings.model_validate(
        {
            "cluster": {"zookeeper": "z:2181"},
            "group": {"id": "lake"},
            "pipeline": {
                "path": str(tmp_path / "lake"),
                "landing": {"roots": [str(tmp_path / "landing")]},
                "silver": {"topics": {"orders": {"key": "utf8", "value": "raw"}}},
                "metrics": metrics or {"folder": str(tmp_path)},
            },
        }
    )


def end(job: str, code: int = 0, summary: Summary | None = None, at_s: float = 1000.0) -> JobEnd:
    return JobEnd(job=JobName(job), exit_code=code, seconds=2.5, at_s=at_s, summary=summary)


def read(path: Path) -> Samples:
    """Return a file's samples: name and labels, but for job and group, to value."""
    found: Samples = {}
    for family in text_string_to_metric_families(path.read_text()):
        for one in family.samples:
            labels = [value for key, value in one.labels.items() if key not in ("job_name", "group")]
            assert (one.labels["job_name"], one.labels["group"]) == tuple(path.stem.split("_")[:0:-1])
            found[one.name, *labels] = one.value
    return found


def table(tmp_path: Path, name: str, place: str, *rows: int) -> Table:
    made = create_table(tmp_path / "lake" / place, name=name, schema=SCHEMA, partition_by=("topic", "day"))
    if rows:
        append(made, make_rows(rows), now_ms=1_700_000_000_000)
    return made


def test_a_run_tells_how_it_ended_and_what_its_table_has(tmp_path: Path) -> None:
    """Numbers of the summary as they are; texts are no metrics."""
    table(tmp_path, "bronze", "bronze", 1, 2, 3)
    summary = Summary(numbers={"table": "x", "rows": 3, "files_damaged": 1, "version": None}, findings=("damaged",))
    LandingZone(tmp_path / "landing").land("orders", 0, 0, 10)
    report_metrics(settings(tmp_path), end("bronze", 1, summary))
    found = read(tmp_path / "consumerd_lake_bronze.prom")

    assert {key: value for key, value in found.items() if key[0].startswith("consumerd_job")} == {
        ("consumerd_job_last_run_timestamp_seconds",): 1000.0,
        ("consumerd_job_last_success_timestamp_seconds",): 1000.0,
        ("consumerd_job_exit_code",): 1.0,
        ("consumerd_job_duration_seconds",): 2.5,
        ("consumerd_job_findings",): 1.0,
        ("consumerd_job_result", "rows"): 3.0,
        ("consumerd_job_result", "files_damaged"): 1.0,
    }
    of_table = {key[0]: value for key, value in found.items() if key[1:] == ("bronze",)}
    assert of_table.pop("consumerd_table_size_bytes") > 0
    assert of_table.pop("consumerd_table_log_size_bytes") > 0
    assert of_table == {
        "consumerd_table_version": 1.0,
        "consumerd_table_rows": 3.0,
        "consumerd_table_files": 1.0,
        "consumerd_table_last_commit_timestamp_seconds": 1_700_000_000.0,
        "consumerd_table_files_behind": 1.0,
        "consumerd_table_oldest_file_behind_timestamp_seconds": pytest.approx(time.time(), abs=60),
    }
    assert {key[0] for key in found} <= SERIES.keys()


def test_bronze_tells_of_every_landed_file_that_it_has_not_taken_over(tmp_path: Path) -> None:
    """New files and damaged ones, also after a run that failed."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("clicks", 0, 0, 10)
    old, damaged, _ = zone.land("orders", 0, 0, 30, files=3)
    os.utime(old, (1_700_000_000, 1_700_000_000))
    damaged.write_bytes(damaged.read_bytes()[:-4])
    bronze, given = table(tmp_path, "bronze", "bronze"), settings(tmp_path)

    def behind() -> list[float | None]:
        report_metrics(given, end("bronze", 1))
        found = read(tmp_path / "consumerd_lake_bronze.prom")
        names = ("consumerd_table_files_behind", "consumerd_table_oldest_file_behind_timestamp_seconds")
        return [found.get((name, "bronze")) for name in names]

    assert behind() == [4.0, 1_700_000_000.0]
    take_all(bronze, zone)
    assert behind() == [1.0, pytest.approx(time.time(), abs=60)]
    damaged.unlink()
    assert behind() == [0.0, None]
    shutil.rmtree(zone.path)
    assert behind() == [None, None]


def take_all(bronze: Table, zone: LandingZone) -> None:
    """Have the table cover all files that can be read."""
    plan = plan_landing(read_new(scan_landing([zone.path]), NOTHING))
    append(bronze, make_rows([100]), covered=plan.adds)


def test_silver_tells_how_far_it_is_behind_bronze(tmp_path: Path) -> None:
    """What the quarantine has is decoded as far as that goes; other topics do not count."""
    bronze = table(tmp_path, "bronze", "bronze", *range(10))
    append(bronze, make_rows(range(5), topic="clicks"))
    table(tmp_path, "silver of orders", "silver/orders", *range(6))
    append(table(tmp_path, "quarantine", "quarantine"), make_rows([7]), make_rows([1, 2], topic="clicks"))
    report_metrics(settings(tmp_path), end("silver", 0, Summary(numbers={"decoded": 6})))
    found = read(tmp_path / "consumerd_lake_silver.prom")

    assert found["consumerd_table_rows_behind", "silver/orders"] == 3.0
    assert found["consumerd_table_rows_not_replayed", "quarantine"] == 3.0
    assert {key[1] for key in found if key[0] == "consumerd_table_rows"} == {"silver/orders", "quarantine"}


def test_rows_that_retention_has_removed_do_not_hide_that_silver_is_behind(tmp_path: Path) -> None:
    """Silver still has them, and bronze has others that silver lacks."""
    bronze = table(tmp_path, "bronze", "bronze")
    append(bronze, make_rows(range(10), day="2026-11-01"))
    source = bronze_source(bronze.record.id)
    silver, quarantine = (
        table(tmp_path, "silver of orders", "silver/orders"),
        table(tmp_path, "quarantine", "quarantine"),
    )
    cutoff = date(2026, 11, 22)

    def behind() -> float:
        report_metrics(settings(tmp_path), end("silver"))
        return read(tmp_path / "consumerd_lake_silver.prom")["consumerd_table_rows_behind", "silver/orders"]

    remove_days(bronze, cutoff, name="bronze")  # nobody has decoded these
    append(bronze, make_rows(range(10, 20), day="2026-11-02"))
    assert behind() == 10
    expired = {"expired": 10}
    append(quarantine, make_rows([19], day="2026-11-02"), progress={f"{source}:orders": 3, "expired:orders": 0})
    assert behind() == 9
    append(silver, make_rows(range(10, 19), day="2026-11-02"), progress={source: 3, **expired})
    append(bronze, make_rows(range(20, 27)))
    remove_days(bronze, cutoff, name="bronze")
    assert behind() == 7
    append(silver, make_rows(range(20, 27)), progress={source: 5})
    assert behind() == 0


def test_purged_rows_are_not_behind(tmp_path: Path) -> None:
    """Bronze still has them, and silver never will. So it is before silver's first commit, and beside retention."""
    bronze = table(tmp_path, "bronze", "bronze")
    append(bronze, make_rows(range(10), day="2026-11-01"), progress={"expired:orders": 3})
    source = bronze_source(bronze.record.id)
    silver, quarantine = (
        table(tmp_path, "silver of orders", "silver/orders"),
        table(tmp_path, "quarantine", "quarantine"),
    )

    def behind() -> float:
        report_metrics(settings(tmp_path), end("silver"))
        return read(tmp_path / "consumerd_lake_silver.prom")["consumerd_table_rows_behind", "silver/orders"]

    append(quarantine, make_rows([8, 9]), progress={f"{source}:orders": 1, "expired:orders": 0})
    [file] = quarantine.snapshot().files
    with quarantine.begin(plan="p", job="purge", operation=Operation.DELETE) as transaction:
        transaction.remove([file])
        transaction.commit(progress={"purged:orders": 2})
    assert behind() == 8
    append(silver, make_rows(range(8)), progress={source: 1, "expired": 3})
    assert behind() == 0
    append(bronze, make_rows(range(20, 24)))
    remove_days(bronze, date(2026, 11, 22), name="bronze")
    assert behind() == 4


def test_a_failure_leaves_the_time_of_the_last_success(tmp_path: Path) -> None:
    """An alert goes by it."""
    folder = tmp_path / "consumerd_lake_stats.prom"
    report_metrics(settings(tmp_path), end("stats", 1, at_s=900.0))
    assert ("consumerd_job_last_success_timestamp_seconds",) not in read(folder)
    report_metrics(settings(tmp_path), end("stats", 0, Summary(numbers={"hours": 2})))
    report_metrics(settings(tmp_path), end("stats", 1, at_s=2000.0))
    report_metrics(settings(tmp_path), end("stats", 2, at_s=3000.0))

    assert read(folder) == {
        ("consumerd_job_last_run_timestamp_seconds",): 3000.0,
        ("consumerd_job_last_success_timestamp_seconds",): 1000.0,
        ("consumerd_job_exit_code",): 2.0,
        ("consumerd_job_duration_seconds",): 2.5,
    }
    folder.write_text("cut off {")
    report_metrics(settings(tmp_path), end("stats", 1, at_s=4000.0))
    assert read(folder)[("consumerd_job_last_run_timestamp_seconds",)] == 4000.0


def test_a_gateway_that_does_not_answer_is_told_with_its_setting(tmp_path: Path) -> None:
    """Whoever reads it knows what to mend."""
    wanted = settings(tmp_path, push_gateway="http://127.0.0.1:1")
    with pytest.raises(ConsumerdError, match=r"pipeline.metrics.push_gateway http://127.0.0.1:1: .*refused"):
        report_metrics(wanted, end("stats"))


def test_metrics_that_cannot_be_written_do_not_change_how_a_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its caller waits for the job's own outcome."""

    def run(_spark: Sessions, _settings: JobSettings, _progress: Progress) -> Summary:
        return Summary(numbers={"rows": 1})

    monkeypatch.setitem(sys.modules, "consumerd.spark.stats", SimpleNamespace(run=run))
    gone = tmp_path / "gone"
    assert main(["stats", "--quiet", "--json", "--set", f"pipeline.metrics.folder={gone}"]) == 0
    out, err = capsys.readouterr()

    assert json.loads(out)["status"] == "ok"
    assert err.startswith("consumerd-spark: metrics were not written: ")
    assert str(gone) in err
    gone.mkdir()
    assert main(["stats", "--quiet", "--json", "--set", f"pipeline.metrics.folder={gone}"]) == 0
    assert capsys.readouterr().err == ""
    assert [path.name for path in gone.iterdir()] == ["consumerd_stats.prom"]
