# SPDX-License-Identifier: Apache-2.0
"""The list of effective settings: each with its value and its origin, and no secret among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumerd.cli.main import main
from consumerd.config.listing import HIDDEN, list_effective
from consumerd.config.load import load

FILE = """\
cluster:
  zookeeper: zk:2181
group: {id: lake}
subscriptions:
  - {topics: [orders], sink: lake}
sinks:
  lake: {type: jsonl, path: /none, roll_ms: 5m}
fetch: {max_wait_ms: 100, memory_budget_bytes: 512MiB}
pipeline:
  metrics: {push_gateway: "http://bob:hunter2@gateway:9091"}
  spark: {settings: {spark.hadoop.fs.s3a.secret.key: hunter2, spark.sql.shuffle.partitions: 8}}
"""
CREDENTIAL = "CONSUMERD_CLUSTER__ZOOKEEPER_AUTH__CREDENTIAL"
PASSWORD = "CONSUMERD_CLUSTER__SASL__PASSWORD"
ZOOKEEPER_PASSWORD = "CONSUMERD_CLUSTER__ZOOKEEPER_SASL__PASSWORD"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    return path


def list_by_key(config: Path, properties: Path | None = None) -> dict[str, tuple[object, str]]:
    loaded = load(
        config=config,
        properties=properties,
        overrides=[
            "group.streams=2",
            "cluster.sasl.mechanism=PLAIN",
            "cluster.sasl.username=lake",
            "cluster.zookeeper_sasl.mechanism=DIGEST-MD5",
            "cluster.zookeeper_sasl.username=lake",
            "cluster.sasl.allow_plaintext_password=true",
        ],
        environment={
            CREDENTIAL: "user:hunter2",
            PASSWORD: "hunter2",
            ZOOKEEPER_PASSWORD: "hunter2",
            "CONSUMERD_FETCH__MAX_WAIT_MS": "1s",
            "CONSUMERD_DEFAULT__HTTP__LISTEN": "0.0.0.0:9309",
        },
    )
    return {one.key: (one.value, one.origin) for one in list_effective(loaded)}


def test_each_setting_has_the_origin_that_won(config: Path, tmp_path: Path) -> None:
    """Whoever wonders why a value is what it is looks there."""
    properties = tmp_path / "consumer.properties"
    properties.write_text("# ours\nfetch.wait.max.ms=7\nclient.id=mine\n")
    listed = list_by_key(config, properties)

    assert listed["cluster.zookeeper"] == ("zk:2181", f"{config}, line 2")
    assert listed["cluster.client_id"] == ("mine", f"{properties}, line 3")
    assert listed["group.streams"] == (2, "--set group.streams")
    assert listed["fetch.max_wait_ms"] == (1000, "environment variable CONSUMERD_FETCH__MAX_WAIT_MS")
    assert listed["fetch.memory_budget_bytes"] == (512 << 20, f"{config}, line 8")
    assert listed["http.listen"] == (
        "0.0.0.0:9309",
        "environment variable CONSUMERD_DEFAULT__HTTP__LISTEN, a default of the image",
    )
    assert listed["offsets.on_missing"] == ("latest", f"{properties}, as Java's default of auto.offset.reset")
    assert listed["fetch.min_bytes"] == (1, "default")
    assert listed["subscriptions.0.topics"] == (["orders"], f"{config}, line 5")


def test_options_of_a_sink_are_those_of_its_type(config: Path) -> None:
    """Defaults, too, which only the sink's own model knows."""
    listed = list_by_key(config)

    assert listed["sinks.lake.roll_ms"] == (300_000, f"{config}, line 7")
    assert listed["sinks.lake.roll_bytes"] == (128 << 20, "default")
    assert listed["sinks.lake.compression"] == ("none", "default")


def test_secrets_are_left_out(config: Path) -> None:
    """The list goes into tickets."""
    listed = list_by_key(config)

    assert listed["cluster.zookeeper_auth.credential"] == (HIDDEN, f"environment variable {CREDENTIAL}")
    assert listed["cluster.sasl.password"] == (HIDDEN, f"environment variable {PASSWORD}")
    assert listed["cluster.zookeeper_sasl.password"] == (HIDDEN, f"environment variable {ZOOKEEPER_PASSWORD}")
    assert listed["cluster.sasl.allow_plaintext_password"][0] is True
    assert listed["cluster.sasl.password_file"][0] is None
    assert listed["pipeline.metrics.push_gateway"][0] == f"http://{HIDDEN}@gateway:9091"
    assert listed["pipeline.spark.settings.spark.hadoop.fs.s3a.secret.key"][0] == HIDDEN
    assert listed["pipeline.spark.settings.spark.sql.shuffle.partitions"][0] == "8"
    assert "hunter2" not in repr(listed)


def test_check_config_prints_the_list_for_people_and_for_programs(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings both ways."""
    monkeypatch.setenv(CREDENTIAL, "user:hunter2")
    assert 0 == main(["check-config", "--config", str(config)])
    shown, warned = capsys.readouterr()
    assert 0 == main(["check-config", "--config", str(config), "--format=json"])
    [line] = capsys.readouterr().out.splitlines()
    encoded = json.loads(line)

    rows = {row.split("  ")[0]: row for row in shown.splitlines()}
    for one in encoded["settings"]:
        assert rows[one["key"]].endswith(one["origin"])
    assert encoded["warnings"] == []
    assert warned == ""
    assert "hunter2" not in shown + line


def test_settings_of_jobs_are_shown_where_one_is_set(
    config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They are as many as those of the daemon, which most people look for."""
    main(["check-config", "--config", str(config)])
    assert "pipeline.bronze.commit_bytes" in capsys.readouterr().out
    config.write_text(FILE[: FILE.index("pipeline:")])
    main(["check-config", "--config", str(config)])
    assert "pipeline." not in capsys.readouterr().out
