# SPDX-License-Identifier: Apache-2.0
"""The command around the jobs: what it makes of options, results, failures and signals. No job and no Spark takes part."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumerd.config.job import JobSettings
from consumerd.errors import ConfigError, NotFound
from consumerd.spark.cli import main, make_parser
from consumerd.spark.job import JOBS, PrintedTable, Progress, Sessions, Summary

JobBody = Callable[[JobSettings, Progress], Summary]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, JobBody], list[JobSettings]]:
    """Put a function in the place of a job; returns the settings that it is called with."""

    def replace(name: str, body: JobBody) -> list[JobSettings]:
        seen: list[JobSettings] = []

        def run(_spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
            seen.append(settings)
            return body(settings, progress)

        monkeypatch.setitem(sys.modules, f"consumerd.spark.{name}", SimpleNamespace(run=run))
        return seen

    return replace


def nothing(_settings: JobSettings, _progress: Progress) -> Summary:
    return Summary(numbers={"rows": 12345})


def raising(error: BaseException) -> JobBody:
    def body(_settings: JobSettings, _progress: Progress) -> Summary:
        raise error

    return body


def test_a_job_that_finds_nothing_is_done(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What a scheduler goes by is the exit code, what a person reads is on stdout."""
    job("stats", nothing)

    assert 0 == main(["stats", "--quiet"])
    out, err = capsys.readouterr()
    assert "12,345" in out
    assert "stats: done, no findings (" in out
    assert "" == err


def test_findings_make_the_exit_code_1_and_are_all_in_the_json(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """An audit that has found a gap must not look like one that has not."""
    findings = tuple(f"orders/0: gap {n}" for n in range(150))
    job("audit", lambda _settings, _progress: Summary(numbers={"gaps": 150}, findings=findings, notes=("a note",)))

    assert 1 == main(["audit", "--quiet", "--json"])
    [line] = capsys.readouterr().out.splitlines()
    summary = json.loads(line)
    assert summary.pop("seconds") >= 0
    assert {
        "job": "audit",
        "status": "found",
        "gaps": 150,
        "findings": list(findings),
        "notes": ["a note"],
    } == summary

    assert 1 == main(["audit", "--quiet"])
    out = capsys.readouterr().out
    assert "! orders/0: gap 99\n" in out
    assert "and 50 more" in out
    assert "150 findings" in out


def test_tables_are_for_people(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows in a program's output would have to be parsed."""
    table = PrintedTable(title="by partition", heads=("partition", "rows"), rows=(("orders/0", 5),))
    job("audit", lambda _settings, _progress: Summary(numbers={}, tables=(table,)))

    main(["audit", "--quiet"])
    assert "by partition\nPARTITION  ROWS\norders/0      5\n" in capsys.readouterr().out
    main(["audit", "--quiet", "--json"])
    assert "orders/0" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (ConfigError("pipeline.path: missing"), 2, "configuration"),
        (NotFound("orders: no such topic"), 1, "failed"),
        (PermissionError(13, "Permission denied", "/data/lake"), 1, "failed"),
        (KeyboardInterrupt(), 130, "failed"),
        (SystemExit(143), 143, "failed"),
    ],
)
def test_failures_are_told_in_words_and_in_json(
    job: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, status: str
) -> None:
    """A traceback is no message, and a program that asked for JSON gets JSON."""
    job("bronze", raising(error))

    assert code == main(["bronze", "--quiet", "--json"])
    out, err = capsys.readouterr()
    assert status == json.loads(out)["status"]
    told = err.removeprefix("consumerd-spark: ").rstrip("\n")
    assert told == json.loads(out)["error"]
    assert "Traceback" not in err


def test_a_mistake_of_ours_is_not_made_up_as_a_failure(job: Any) -> None:
    """Its traceback is what we need."""
    job("bronze", raising(ZeroDivisionError()))

    with pytest.raises(ZeroDivisionError):
        main(["bronze", "--quiet"])


def test_options_set_settings(job: Any, tmp_path: Path) -> None:
    """Each is short for a setting, and wins over the file."""
    config = tmp_path / "config.yaml"
    config.write_text("pipeline: {path: /from/file, replay: {target: from-file}}\n")
    seen = job("replay", nothing)

    main(
        ["replay", "--quiet", "--config", str(config), "--topic", "orders", "--partition", "3", "--start-offset", "10",
         "--end-offset", "20", "--end-time", "2026-03-01T12:00:00Z", "--source", "quarantine", "--reason", "late", "--again",
         "--bootstrap-servers", "b:9092", "--keep-partition", "--dry-run", "--master", "local[1]"]
    )  # fmt: skip
    [settings] = seen
    replay = settings.pipeline.replay
    assert ("orders", 3, 10, 20) == (replay.topic, replay.partition, replay.start_offset, replay.end_offset)
    assert ("quarantine", "late", "b:9092") == (replay.source, replay.reason, replay.bootstrap_servers)
    assert replay.keep_partition
    assert replay.again
    assert replay.dry_run
    assert "from-file" == replay.target
    assert ("/from/file", "local[1]") == (settings.pipeline.path, settings.pipeline.spark.master)


def test_options_of_a_restore_set_settings(job: Any) -> None:
    """Also without a file."""
    seen = job("replay", nothing)

    main(["replay", "--quiet", "--map", "--topic", "orders", "--group", "g", "--positions-topic", "p", "--sink", "new"])
    replay = seen[0].pipeline.replay
    assert (True, "g", "p", "new") == (replay.map, replay.group, replay.positions_topic, replay.sink)


def test_an_audit_needs_no_file(job: Any, tmp_path: Path) -> None:
    """The first thing that somebody tries."""
    seen = job("audit", nothing)

    main(
        ["audit", "--quiet", "--landing", f"{tmp_path}/a,{tmp_path}/b", "--topics", "orders, clicks", "--no-positions"]
    )
    [settings] = seen
    assert (tmp_path / "a", tmp_path / "b") == settings.landing_roots()
    assert {"orders", "clicks"} == settings.landing_topics()
    assert not settings.pipeline.audit.positions


def test_folders_that_are_given_one_option_after_the_other_count_all(job: Any, tmp_path: Path) -> None:
    """The last alone would leave rows out, with exit code 0."""
    seen = job("audit", nothing)
    main(["audit", "--quiet", "--landing", f"{tmp_path}/a", "--landing", f"{tmp_path}/b,{tmp_path}/c"])
    [settings] = seen
    assert (tmp_path / "a", tmp_path / "b", tmp_path / "c") == settings.landing_roots()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--set", "pipeline.bronz.path=x"],
            "pipeline.bronz: unknown key; did you mean bronze?; there is audit, bronze, compact",
        ),
        (["--set", "pipelin.path=x"], "pipelin: unknown key; did you mean pipeline?; there is cluster, fetch"),
        (
            ["--set", "pipeline.bronze.commit_bytes=0"],
            "pipeline.bronze.commit_bytes: expected more than 0, got 0 (--set pipeline.bronze.commit_bytes)",
        ),
        (["--set", "cluster.client_id=x"], "cluster.zookeeper: missing; give --zookeeper CONNECT"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read"),
    ],
)
def test_wrong_settings_name_their_key(
    job: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """A misspelt key must not be a default silently."""
    seen = job("bronze", nothing)

    assert 2 == main(["bronze", "--quiet", *arguments])
    assert message in capsys.readouterr().err
    assert [] == seen


@pytest.mark.parametrize("name", ["bronze", "describe"])
def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """consumerd works without pyspark, and its command says what brings it."""

    def refuse(_name: str) -> None:
        raise ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")

    monkeypatch.setattr(importlib, "import_module", refuse)

    assert 2 == main([name, "--quiet", "--path", "/data/lake", *(["bronze"] if name == "describe" else [])])
    err = capsys.readouterr().err
    assert err.startswith(f"consumerd-spark: {name} needs pyspark, which is not installed: ")
    assert re.search(r"pip install .*\[spark\]", err)


def test_progress_goes_to_stderr(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout is the summary's."""

    def body(_settings: JobSettings, progress: Progress) -> Summary:
        progress.step("reading footers")
        return Summary(numbers={})

    job("audit", body)
    main(["audit"])
    assert "audit: reading footers\n" == capsys.readouterr().err


@pytest.mark.parametrize("name", JOBS)
def test_every_job_says_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help is the first documentation that anybody reads."""
    with pytest.raises(SystemExit) as end:
        make_parser().parse_args([name, "--help"])
    assert 0 == end.value.code
    out = capsys.readouterr().out
    assert "--config" in out
    assert "PIPELINE." not in out
