# SPDX-License-Identifier: Apache-2.0
"""The pipeline's benchmark: what it declares, what it makes of readings, and what it counts as somebody's work."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.report import END, put_between
from bench.results import Run
from bench.spark import logs, memory, report, versions
from bench.spark.cases import CASES, Case, Work, Worker, select
from bench.spark.landing import audit_names, land, name
from bench.spark.processes import tree_processor_s
from bench.spark.session import Reading
from consumerd.landing.coverage import NOTHING
from consumerd.landing.footers import read_ends, read_new
from consumerd.landing.plan import plan_landing
from consumerd.landing.scan import scan_landing

RUN = Run(
    at="2026-01-01 00:00 UTC",
    command="python -m bench.spark",
    machine="2 cores",
    versions={"consumerd": "0.1.0"},
    rounds=3,
    records=4_000_000,
    load="0.10 0.10 0.10",
)


def readings(*seconds: float, processor_s: float = 4.0) -> tuple[Reading, ...]:
    return tuple(Reading(seconds=one, processor_s=processor_s, rows=4_000_000) for one in seconds)


def find_case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_targets_are_of_workers_that_take_part(case: Case) -> None:
    """A target without its peer in the same rounds would never be judged."""
    for target in case.targets:
        assert target.worker in case.workers
        assert target.peer is None or target.peer in case.workers
        compared, alone = (target.times, target.cpu), (target.rows_per_s, target.seconds, target.size)
        assert len([one for one in (*compared, *alone) if one is not None]) == 1
        assert (target.peer is not None) == (compared != (None, None))


def test_cases_of_the_topic_follow_one_another() -> None:
    """The broker is started and filled once."""
    kinds = [case.of_a_topic for case in CASES]
    assert sum(a != b for a, b in itertools.pairwise(kinds)) == 1


def test_selecting_by_name() -> None:
    """Shell patterns; one that is no case's is refused."""
    assert [case.work for case in select(["bronze-*"])] == [Work.LANDED] * 2
    with pytest.raises(ValueError, match="no case is named nothing"):
        select(["nothing"])


def test_a_source_is_judged_by_its_rate_beside_sparks_own() -> None:
    """Medians, so that a slow round decides nothing; and just below is below."""
    case = find_case("hash")
    found = {Worker.OURS: readings(2.0, 9.0, 2.0), Worker.THEIRS: readings(4.0, 3.0, 3.0)}
    [row] = report.rows_of(case, report.Measured(run=RUN, readings=found))
    assert (row.target, row.met) == ("1.5 times Spark's Kafka source", True)
    assert row.figure == "**1.50** (0.33 to 2.00)"
    slower = {**found, Worker.BESIDE: readings(2.1)}
    assert [one.met for one in report.rows_of(case, report.Measured(run=RUN, readings=slower))] == [True, False]


def test_bronze_is_judged_by_its_rate_and_by_its_processor_time() -> None:
    """Rows in files that land twice are copied twice by a plain copy: processor time counts by the row."""
    case = find_case("bronze-random")
    found = {Worker.BRONZE: readings(3.9, processor_s=5.1), Worker.COPY: readings(3.0, processor_s=4.0)}
    rows = report.rows_of(case, report.Measured(run=RUN, readings=found))
    assert [(row.figure.split(" ")[0], row.met) for row in rows] == [("**1.03", True), ("**1.27**", True)]
    worse = {**found, Worker.BRONZE: readings(4.1, processor_s=5.3)}
    assert [row.met for row in report.rows_of(case, report.Measured(run=RUN, readings=worse))] == [False, False]


def test_an_audit_is_judged_by_its_time() -> None:
    """Seconds, not a rate."""
    measured = report.Measured(run=RUN, readings={Worker.AUDIT: readings(4.9, 5.2, 1.0)})
    assert [(row.figure, row.met) for row in report.rows_of(find_case("audit"), measured)] == [
        ("**4.90 s** (1.00 to 5.20)", True)
    ]


def test_memory_is_judged_by_the_largest_reading() -> None:
    """A driver that is killed once in five runs is not below its limit."""
    sizes = [replace(one, size=size << 20) for one, size in zip(readings(1, 1, 1), (100, 1025, 90), strict=True)]
    case = find_case("memory")
    rows = [
        report.rows_of(case, report.Measured(run=RUN, readings={Worker.DRIVER: some})) for some in (sizes, sizes[::2])
    ]
    assert [(row.figure, row.target, row.met) for [row] in rows] == [
        ("**100.0 MiB** (90.0 to 1025.0)", "at most 1024.0 MiB", False),
        ("**95.0 MiB** (90.0 to 100.0)", "at most 1024.0 MiB", True),
    ]


def test_a_long_log_is_opened_as_fast_as_a_short_one(tmp_path: Path) -> None:
    """The case really runs, on short logs, one of which has checkpoints."""
    sizes = []
    for commits in (3, 160):
        logs.make_log(tmp_path / f"{commits}", commits)
        reading = logs.open_often(tmp_path / f"{commits}", commits)
        assert reading.seconds > 0
        sizes.append(reading.size or 0)
    assert 0 < sizes[0] < sizes[1]
    with pytest.raises(ValueError, match="is at version 3; 4 were committed"):
        logs.open_often(tmp_path / "3", 4)


def test_a_driver_plans_a_zone_of_values(tmp_path: Path) -> None:
    """In a process of its own, whose memory is that of plans and nothing else."""
    landing = memory.make_landing(20, 3000)
    holes = sum(len(file.metadata.gaps) for chain in landing.chains for file in chain.files if file.metadata)
    assert (landing.file_count, holes) == (23, 3000)
    reading = memory.measure_driver(tmp_path / "table", 20, 3000)
    assert reading.rows == 23
    assert 10 << 20 < (reading.size or 0) < 1 << 30


def test_results_are_kept_and_written_into_their_section(tmp_path: Path) -> None:
    """The page's other section and its own text stay."""
    results = {"hash": report.Measured(run=RUN, readings={Worker.OURS: readings(2.0)}, failures=("hash: no",))}
    report.save(results, tmp_path / "performance" / "spark.json")
    loaded = report.load(tmp_path / "performance" / "spark.json")
    assert results == loaded
    page = f"before\n<!-- other -->\nold\n{END}\n{report.BEGIN}\nold\n{END}\nafter"
    written = put_between(page, report.document(loaded), report.BEGIN)
    assert written.startswith(f"before\n<!-- other -->\nold\n{END}\n{report.BEGIN}")
    assert "2.00 M" in written
    assert "Failed: hash: no" in written
    assert written.endswith(f"{END}\nafter")


def test_processor_time_is_a_process_and_all_its_children_even_those_that_ended() -> None:
    """A session's work is mostly its JVM's and its workers', which come and go."""
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print('', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert tree_processor_s(process.pid) >= 0.3
        process.communicate(b"\n")
    assert tree_processor_s(process.pid) == 0


def test_the_zone_that_bronze_takes_over_has_what_it_is_said_to_have(tmp_path: Path) -> None:
    """Whole files, and some that land twice: what a plan of it gives is each record once."""
    different, rows = land(tmp_path, "repeated", 100_000)
    landing = read_new(scan_landing([tmp_path]), NOTHING)
    assert rows == sum(file.metadata.count for chain in landing.chains for file in chain.files if file.metadata)
    assert different == 100_000
    assert rows == 102_500
    plan = plan_landing(landing)
    assert different == sum(span.size for planned in plan.files for span in planned.ranges.spans)


def test_a_zone_has_as_many_names_as_it_is_said_to_have(tmp_path: Path) -> None:
    """An audit of fewer would be quicker, and one that finds damage is another one."""
    name(tmp_path, 5001)
    assert audit_names(tmp_path) == 5001
    landing = read_ends(scan_landing([tmp_path]))
    assert [len(chain.files) for chain in landing.chains] == [5000, 1]
    assert [chain.end for chain in landing.chains] == [5000, 1]
    assert all(chain.files[-1].damage is None for chain in landing.chains)


def test_two_versions_are_held_against_each_other_by_their_medians() -> None:
    """One bad round of either is no verdict."""
    assert versions.compare({"before": readings(2.0, 2.0, 9.0), "after": readings(1.0, 1.0, 9.0)}) == pytest.approx(2.0)
    assert versions.compare({"before": readings(1.0), "after": readings(1.25)}) == pytest.approx(0.8)
