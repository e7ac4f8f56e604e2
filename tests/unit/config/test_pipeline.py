# SPDX-License-Identifier: Apache-2.0
"""The section of the pipeline, and where by it everything is."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.config.job import JobSettings
from consumerd.config.load import load_job_settings, load_settings
from consumerd.errors import ConfigError

DAEMON = """
cluster: {zookeeper: "zk:2181"}
group: {id: lake}
subscriptions: [{topics: [orders], sink: lake}]
sinks:
  lake: {type: parquet, path: /data/landing}
  tail: {type: stdout}
  text: {type: jsonl, path: /data/text}
"""


def load(tmp_path: Path, text: str) -> JobSettings:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    return load_job_settings(config=config, environment={})


def test_the_daemons_own_file_is_all_that_an_audit_needs(tmp_path: Path) -> None:
    """One file for both; the landing zone is where the file sinks land."""
    settings = load(tmp_path, DAEMON)

    assert (Path("/data/landing"), Path("/data/text")) == settings.landing_roots()
    assert settings.landing_topics() is None
    assert settings.cluster is not None
    assert settings.group is not None
    assert ("zk:2181", "lake") == (settings.cluster.zookeeper, settings.group.id)


def test_the_daemon_checks_what_the_jobs_go_by(tmp_path: Path) -> None:
    """check-config is where a mistake is looked for."""
    config = tmp_path / "config.yaml"
    config.write_text(DAEMON + "pipeline: {bronze: {compression: gzip}}\n")

    with pytest.raises(ConfigError, match=r"pipeline.bronze.compression: .*config.yaml, line 9"):
        load_settings(config=config, environment={})


def test_tables_are_below_one_folder_unless_they_have_a_path(tmp_path: Path) -> None:
    """Most give one path; who shards disks gives each its own."""
    settings = load(tmp_path, "pipeline: {path: /lake/, silver: {path: 'file:///other/silver%20tables'}}")

    assert Path("/lake/bronze") == settings.folder("bronze")
    assert Path("/other/silver tables/orders") == settings.folder("silver", "orders")
    assert Path("/lake/latest/orders") == settings.folder("latest", "orders")
    assert "/lake/quarantine" == settings.location("quarantine")
    assert "/lake/bronze" == settings.location("bronze")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "pipeline.path: missing, and so the table bronze has no place"),
        ("pipeline: {path: 's3a://bucket/lake'}", "pipeline.path: 's3a://bucket/lake': expected a folder"),
        ("pipeline: {path: 'file://host/lake'}", "expected a folder"),
    ],
)
def test_a_table_without_a_usable_place_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """Before Spark has been started for it."""
    with pytest.raises(ConfigError, match=expected):
        load(tmp_path, text).folder("bronze")


def test_no_landing_zone_names_the_ways_to_give_one(tmp_path: Path) -> None:
    """The message is all that a new user sees."""
    with pytest.raises(ConfigError, match=r"pipeline.landing.roots: missing.*--landing FOLDER"):
        load(tmp_path, "{}").landing_roots()


def test_the_environment_sets_what_the_jobs_go_by() -> None:
    """As for every other key."""
    settings = load_job_settings(environment={"CONSUMERD_PIPELINE__BRONZE__COMPRESSION": "snappy"})

    assert "snappy" == settings.pipeline.bronze.compression


@pytest.mark.parametrize("incarnation", ["all", "7", "7.1", "a5g7j1tvSx-Ob3bjRwaYgQ", "a5g7j1tvSx-Ob3bjRwaYgQ.2"])
def test_a_replay_takes_incarnations_as_bronze_has_them(tmp_path: Path, incarnation: str) -> None:
    """Those of clusters without ZooKeeper have topic ids."""
    assert (
        incarnation
        == load(tmp_path, f"pipeline: {{replay: {{incarnation: '{incarnation}'}}}}").pipeline.replay.incarnation
    )


@pytest.mark.parametrize(
    ("replay", "expected"),
    [
        ("{start_offset: 5, end_offset: 5, partition: 1}", "start_offset must be below end_offset"),
        ("{start_offset: 5}", "give partition, too"),
        ("{start_time: 2026-01-02T00:00:00Z, end_time: 2026-01-01T00:00:00Z}", "start_time must be before end_time"),
        ("{start_time: '2026-01-02T00:00:00'}", "start_time: expected a time with its zone"),
        ("{reason: late}", "reason goes with source: quarantine"),
        ("{again: true}", "again goes with source: quarantine"),
        ("{zookeeper: a, bootstrap_servers: b}", "give either zookeeper or bootstrap_servers"),
        ("{incarnation: newest}", "expected all, or an incarnation as bronze has it"),
        ("{group: mirror}", "group goes with map: true"),
        ("{map: true, source: quarantine}", "a map is of bronze"),
        ("{map: true, partition: 0, end_offset: 9}", "end_offset does not go with map"),
        ("{map: true, start_time: 2026-01-02T00:00:00Z}", "start_time does not go with map"),
        ("{map: true, zookeeper: a}", "give bootstrap_servers, or sink"),
        ("{map: true, keep_partition: true}", "keep_partition does not go with map"),
    ],
)
def test_a_replay_that_contradicts_itself_is_refused(tmp_path: Path, replay: str, expected: str) -> None:
    """What is sent twice or to the wrong place cannot be taken back."""
    with pytest.raises(ConfigError, match=expected):
        load(tmp_path, f"pipeline: {{replay: {replay}}}")
