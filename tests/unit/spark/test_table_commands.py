# SPDX-License-Identifier: Apache-2.0
"""The commands over tables, as they are typed: what they say, and what they change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumerd.spark.cli import main
from consumerd.spark.job import COMMANDS
from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.transaction import Table, create_table
from tests.support.tables import SCHEMA, append, make_rows, read_offsets, stage


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Bronze with three commits, the second a compaction, and a topic's table of which settings say nothing."""
    path = tmp_path / "lake"
    bronze = make("bronze", path / "bronze")
    append(bronze, make_rows(range(5)), now_ms=1_700_000_000_000)
    with bronze.begin(plan="c", job="compact", operation=Operation.COMPACT) as transaction:
        stage(transaction, [make_rows(range(5))])
        transaction.remove(list(transaction.base.files))
        transaction.commit()
    append(bronze, make_rows(range(5, 8)), now_ms=1_700_000_000_000)
    append(make("silver of orders", path / "silver" / "orders"), make_rows(range(3)))
    return path


def make(name: str, path: Path) -> Table:
    return create_table(path, name=name, schema=SCHEMA, partition_by=("topic", "day"))


def say(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """Run a command and return what it says as JSON."""
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_describe_says_what_there_is(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With no settings but the folder."""
    said = say(capsys, "describe", "--path", str(lake))["tables"]

    assert said.keys() == {"bronze", "silver/orders"}
    assert {name: (one["version"], one["rows"], one["files"]) for name, one in said.items()} == {
        "bronze": (3, 8, 2),
        "silver/orders": (1, 3, 1),
    }
    older = say(capsys, "describe", "bronze", "--version", "1", "--path", str(lake))["tables"]["bronze"]
    assert (older["rows"], older["changed"]) == (5, "2023-11-14T22:13:20+00:00")
    assert main(["describe", "bronze", "--path", str(lake)]) == 0
    assert "offset  long" in capsys.readouterr().out


def test_describe_lists_the_tables_of_a_folder_above(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a topic, too, by names that other commands take. What changes tables stays with one pipeline's."""
    make("below a folder of partitions", lake / "topic=orders" / "other")
    place = lake.parent / "srv" / "data" / "lake"
    place.parent.mkdir(parents=True)
    lake.rename(place)

    for path, names in [
        (place.parent, ["lake/bronze", "lake/silver/orders"]),
        (place.parent.parent, ["data/lake/bronze", "data/lake/silver/orders"]),
    ]:
        assert list(say(capsys, "describe", "--path", str(path))["tables"]) == names
        assert say(capsys, "files", names[1], "--path", str(path))["rows"] == 3
    assert say(capsys, "vacuum", "--dry-run", "--path", str(path))["tables"] == {}


def test_history_says_what_made_the_versions(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first, and that there are more."""
    said = say(capsys, "history", "bronze", "--limit", "2", "--path", str(lake))

    assert [(one["version"], one["operation"], one["job"], one["rows"]) for one in said["versions"]] == [
        (3, "append", "test", 3),
        (2, "compact", "compact", 5),
    ]
    assert said["notes"] == ["there are older ones, from version 1 on (--limit, --version)"]
    older = say(capsys, "history", str(lake / "bronze"), "--version", "1")
    assert [one["version"] for one in older["versions"]] == [1]
    assert older["notes"] == []


def test_history_begins_with_the_oldest_commit_that_has_not_expired(
    lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many versions are asked for."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 2)
    bronze = make("bronze", lake / "bronze")
    for offset in (8, 9, 10):
        append(bronze, make_rows([offset]))
    assert bronze.log.expire(2**50) > 0
    oldest = bronze.log.oldest()

    said = say(capsys, "history", "bronze", "--path", str(lake))

    assert oldest > 1
    assert [one["version"] for one in said["versions"]] == list(range(6, oldest - 1, -1))
    assert said["notes"] == []


def test_files_are_those_of_a_version(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what is known of each."""
    said = say(capsys, "files", "bronze", "--version", "2", "--path", str(lake))

    assert (said["version"], said["files"], said["rows"]) == (2, 1, 5)
    assert [(one["rows"], one["bounds"]["offset"], one["values"]) for one in said["listed"]] == [
        (5, [0, 4], ["orders", "2026-11-22"])
    ]


def test_vacuum_says_what_it_would_remove_and_removes_that(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run leaves everything as it is; somebody else's table is not looked at."""
    foreign = make("theirs", lake / "theirs")
    append(foreign, make_rows([1]))
    append(make("raw", lake / "raw"), make_rows([1]), progress={"stream:6bd1c2f0": 0})
    keep = ("--set", "pipeline.compact.keep_ms=0", "--set", "pipeline.compact.keep_log_ms=0", "--path", str(lake))
    before = sorted(lake.rglob("*.parquet"))
    planned = say(capsys, "vacuum", "--dry-run", *keep)

    assert sorted(lake.rglob("*.parquet")) == before
    assert planned["tables"].keys() == {"bronze", "silver/orders", "raw"}
    assert planned["files_vacuumed"] == 1
    done = say(capsys, "vacuum", *keep)
    assert done["tables"] == planned["tables"]
    assert len(before) - len(sorted(lake.rglob("*.parquet"))) == 1
    assert say(capsys, "vacuum", "bronze", *keep)["files_vacuumed"] == 0


def test_restore_goes_back_and_says_what_follows(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run first."""
    words = ("restore", "bronze", "--version", "2", "--path", str(lake))
    planned = say(capsys, *words, "--dry-run")
    bronze = make("bronze", lake / "bronze")

    assert (planned["version"], planned["rows_before"], planned["rows"]) == (3, 8, 5)
    assert read_offsets(bronze) == [*range(8)]
    done = say(capsys, *words)
    assert (done["version"], done["rows_before"], done["rows"]) == (4, 8, 5)
    assert read_offsets(bronze) == [*range(5)]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["history", "brnze"], "there is no table 'brnze'; there are: bronze, silver/orders"),
        (["files", "bronze", "--version", "9"], "there is no version 9; the newest is 3"),
        (["restore", "./nowhere", "--version", "1"], "there is no table (it has no _delta_log)"),
    ],
)
def test_what_is_not_there_is_said(
    lake: Path, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    assert main([*words, "--path", str(lake)]) != 0
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(("name", "folder"), [("quarantine", "quarantine"), ("purged", "quarantine_purged")])
def test_quarantine_does_not_go_back_by_itself(
    lake: Path, capsys: pytest.CaptureFixture[str], name: str, folder: str
) -> None:
    """It would lack what topics' tables count on; and without the notes purged records would come back."""
    append(make(name, lake / folder), make_rows([1]))

    assert main(["restore", folder, "--version", "0", "--path", str(lake)]) == 2
    assert "restore silver/TOPIC" in capsys.readouterr().err


QUARANTINED = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("offset", "long"), ("cause", "string"), ("reason", "string"), ("landed", "timestamp"), ("topic", "string"), ("day", "date"))
        ],
    }
)  # fmt: skip


def quarantined(topic: str, *rows: tuple[str, str, int | None]) -> pa.RecordBatch:
    """Return quarantined records by cause, reason and time of landing in ms."""
    causes, reasons, landed = map(list, zip(*rows, strict=True))
    columns = [
        pa.array(range(len(rows)), pa.int64()),
        pa.array(causes, pa.string()),
        pa.array(reasons, pa.string()),
        pa.array(landed, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        pa.array([topic] * len(rows), pa.string()),
        pa.array(["2026-11-22"] * len(rows), pa.string()).cast(pa.date32()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["offset", "cause", "reason", "landed", "topic", "day"])


def test_a_misspelt_cause_is_refused(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would look as if nothing were in quarantine for this reason."""
    create_table(lake / "quarantine", name="quarantine", schema=QUARANTINED, partition_by=("topic", "day"))

    assert main(["quarantine", "--path", str(lake), "--cause", "latee"]) == 2
    assert "--cause: expected bad key, bad value, bad event time, late or early, got 'latee'" in capsys.readouterr().err


def test_quarantine_is_counted_by_topic_and_cause(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The most frequent first, with the newest row's reason, of the version that is asked for."""
    table = create_table(lake / "quarantine", name="quarantine", schema=QUARANTINED, partition_by=("topic", "day"))
    command = ("quarantine", "--path", str(lake))
    assert say(capsys, *command)["notes"] == ["nothing is in quarantine"]
    append(
        table,
        quarantined("orders", ("late", "by 2 h", 2_000), ("late", "by 3 h", 3_000), ("bad key", "no text", 1_000)),
    )
    append(table, quarantined("pay ments", ("late", "by 9 h", None)))
    append(table, quarantined("orders", ("late", "by 1 h", 9_000)))

    said = say(capsys, *command)

    assert (said["version"], said["rows"]) == (3, 5)
    at = "1970-01-01T00:00:0{}+00:00".format
    assert [tuple(one.values()) for one in said["causes"]] == [
        ("orders", "late", 3, 0, at(2), at(9), "by 1 h"),
        ("orders", "bad key", 1, 0, at(1), at(1), "no text"),
        ("pay ments", "late", 1, 0, None, None, "by 9 h"),
    ]
    assert say(capsys, *command, "--version", "1")["rows"] == 3
    assert main(list(command)) == 0
    assert "replay --source quarantine" in capsys.readouterr().out


def test_without_a_place_or_a_table_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And no folder is made."""
    assert main(["describe"]) == 2
    assert "pipeline.path: missing" in capsys.readouterr().err
    assert main(["describe", "--path", str(tmp_path / "lake")]) == 0
    assert "there is no table yet" in capsys.readouterr().out
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert ("--version N" if name == "quarantine" else "TABLE") in capsys.readouterr().out


def test_a_version_is_a_whole_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["history", "bronze", "--version", "-1"])
    assert "expected a whole number, not '-1'" in capsys.readouterr().err
