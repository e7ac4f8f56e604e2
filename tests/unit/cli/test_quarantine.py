# SPDX-License-Identifier: Apache-2.0
"""The quarantine commands, over files that a quarantine has written: what people find when they come to look."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from consumerd.cli.main import CONFIGURATION, DONE, FAILED, main
from consumerd.model import Incarnation, TopicPartition
from consumerd.sinks.base import QuarantinedUnit
from consumerd.sinks.quarantine_record import KeptUnit, encode_unit, unit_folders, unit_name
from tests.support.record_batches import record
from tests.support.record_sets import RecordSpec, batch, message, wrapper

BATCH = batch(10, [RecordSpec(delta=0, value=b"alpha"), RecordSpec(delta=1, key=b"k", value=b"\xff\x00")])
FLIPPED = BATCH[:-3] + bytes([BATCH[-3] ^ 1]) + BATCH[-2:]
Keep = Callable[..., Path]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Write units as the daemon does, below ``q``."""

    def keep(raw: bytes = FLIPPED, *, topic: str = "orders", **changes: object) -> Path:
        unit = QuarantinedUnit(
            partition=TopicPartition.modern(topic, 3),
            incarnation=Incarnation(7),
            offset=10,
            next_offset=12,
            index=0,
            cause="corrupt",
            reason="the checksum is wrong",
            raw=raw,
            size=len(raw),
        )
        unit = replace(unit, **changes)  # type: ignore[arg-type]  # a test's own names
        kept = KeptUnit(unit=unit, cluster="2-17", group="lake", when_ms=1_700_000_000_000)
        file = tmp_path.joinpath("q", *unit_folders(unit), unit_name(unit.offset, unit.index))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"".join(encode_unit(kept)))
        return file

    return keep


def test_the_list_shows_what_where_when_and_why(keep: Keep, tmp_path, capsys):
    """The first look after a page."""
    keep()
    keep(topic="_clicks", cause="oversized", raw=b"\x00" * 20, size=9000, reason="too large", offset=5, next_offset=6)
    assert main(["quarantine", "list", "--path", str(tmp_path / "q")]) == DONE
    heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split() == [
        "TOPIC", "PARTITION", "OFFSET", "NEXT", "OFFSET", "INDEX", "CAUSE", "SIZE", "KEPT", "WHEN", "REASON"
    ]  # fmt: skip
    assert rows[0].split()[:9] == [
        "_clicks", "3", "5", "6", "0", "oversized", "9000", "20", "2023-11-14T22:13:20+00:00"
    ]  # fmt: skip
    assert "the checksum is wrong" in rows[1]


@pytest.mark.parametrize(("filters", "topics"), [(["orders"], {"orders"}), (["--cause", "oversized"], {"clicks"})])
def test_the_list_can_be_narrowed(keep: Keep, tmp_path, capsys, filters: list[str], topics: set[str]):
    """A broken producer fills one topic; the rest is what one looks for."""
    keep()
    keep(topic="clicks", cause="oversized")
    assert main(["quarantine", "list", "--json", "--path", str(tmp_path / "q"), *filters]) == DONE
    assert {json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines()} == topics


def test_the_path_is_that_of_the_settings(keep: Keep, tmp_path, capsys):
    """One file says where everything is."""
    keep()
    config = tmp_path / "config.yaml"
    config.write_text(
        "cluster: {zookeeper: 'localhost:1'}\ngroup: {id: lake}\nsinks: {out: {type: stdout}}\n"
        f"subscriptions: [{{topics: [orders], sink: out}}]\nquarantine: {{path: {tmp_path / 'q'}}}\n"
    )
    assert main(["quarantine", "list", "--config", str(config)]) == DONE
    assert "orders" in capsys.readouterr().out
    (tmp_path / "q").rename(tmp_path / "other")
    assert main(["quarantine", "list", "--config", str(config)]) == DONE
    shown = capsys.readouterr()
    assert shown.out == "nothing is quarantined\n"
    assert "not mounted" in shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list"], "quarantine.path: not set"),
        (["show", "orders/3@11"], "give --path or --config"),
        (["show", "--path", "q", "orders/3@99"], "nothing of orders/3 is quarantined at offset 99"),
        (["show", "--path", "q", "orders/x@1"], "neither a file nor TOPIC/PARTITION@OFFSET"),
        (["show", "--path", "q", "orders"], "neither a file nor TOPIC/PARTITION@OFFSET"),
    ],
)
def test_what_cannot_be_looked_up_is_said(
    keep: Keep, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys, arguments: list[str], said: str
):
    """A wrong path and an empty quarantine must not look alike."""
    keep()
    monkeypatch.chdir(tmp_path)
    assert main(["quarantine", *arguments]) == CONFIGURATION
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("landed", "said"),
    [
        (None, "lake: cannot be read: No such file"),
        (
            "topic=orders/partition=3/chain=1/00000000000000000000.jsonl",
            "lake is no quarantine, it holds topic=orders/partition=3/chain=1/00000000000000000000.jsonl",
        ),
        ("notes.txt", "lake is no quarantine, it holds notes.txt"),
    ],
)
def test_a_folder_that_is_no_quarantine_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, landed: str | None, said: str
):
    """Nothing to see in the sink's folder is no news of the quarantine."""
    monkeypatch.chdir(tmp_path)
    if landed is not None:
        file = tmp_path / "lake" / landed
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    assert main(["quarantine", "list", "--path", "lake"]) == FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"consumerd: {said}")


def test_a_quarantine_whose_units_were_all_taken_away_is_empty(keep: Keep, tmp_path, capsys):
    """Files may be moved or deleted at any time; folders and the record of whose it is stay."""
    keep().unlink()
    (tmp_path / "q" / "_consumerd.json").write_text("{}")
    assert main(["quarantine", "list", "--path", str(tmp_path / "q")]) == DONE
    assert capsys.readouterr().out == "nothing is quarantined\n"


def test_files_that_cannot_be_read_are_named_and_hide_no_other(keep: Keep, tmp_path, capsys):
    """One written by a later release, or damaged, is no reason to see nothing."""
    file = keep()
    newer = file.with_name(unit_name(50, 0))
    newer.write_bytes(b'{"format":3}\n')
    file.with_name(".00000000000000000060-0.jsonl.w-q1.tmp").write_bytes(b"half")
    assert main(["quarantine", "list", "--path", str(tmp_path / "q")]) == FAILED
    shown = capsys.readouterr()
    assert "orders" in shown.out
    assert shown.err == f"consumerd: {newer}: format 3, this release reads 1 and 2\n"
    assert main(["quarantine", "show", str(newer)]) == FAILED


@pytest.mark.parametrize("place", ["orders/3@10", "orders/3@11", "FILE", "RELATIVE"])
def test_a_unit_is_found_by_place_and_by_file(keep: Keep, tmp_path, capsys, place: str):
    """The log has the offset, the list the file; any offset of a batch will do."""
    file = keep()
    place = {"FILE": str(file), "RELATIVE": str(file.relative_to(tmp_path / "q"))}.get(place, place)
    assert main(["quarantine", "show", place, "--path", str(tmp_path / "q"), "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["offset"], found["next_offset"], found["group"]) == (10, 12, "lake")


@pytest.mark.parametrize(
    ("raw", "values", "note"),
    [
        (BATCH, ["alpha", None], None),
        (FLIPPED, ["alpha", None], "in spite of the checksum"),
        (message(10, b"one", magic=0), ["one"], None),
        (message(10, b"one")[:-1] + b"!", ["on!"], "in spite of the checksum"),
        (wrapper(10, message(0, b"one"), 1), ["one"], None),
        (wrapper(10, b"", 1, compressed=b"no gzip"), [], "gzip"),
        (BATCH[:40], [], f"cut off: 40 of {len(BATCH)} bytes"),
        (BATCH[:16] + b"\x07" + BATCH[17:], [], "magic 7 is unknown"),
        (b"", [], None),
    ],
)
def test_records_are_read_as_far_as_they_can_be(
    keep: Keep, capsys, raw: bytes, values: list[str | None], note: str | None
):
    """What was lost is the question; a flipped bit seldom hides all of it."""
    file = keep(raw)
    assert main(["quarantine", "show", str(file), "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert [one.get("value") for one in found["records"]] == values
    assert found["note"] is None if note is None else note in found["note"]


def test_a_unit_is_shown_for_people(keep: Keep, capsys):
    """Metadata, records, bytes."""
    file = keep()
    assert main(["quarantine", "show", str(file), "--bytes", "32"]) == DONE
    shown = capsys.readouterr().out
    assert "cause        corrupt" in shown
    assert "2 records (" in shown
    assert '"value": "alpha"' in shown
    assert shown.endswith(f"... {len(FLIPPED) - 32} bytes more\n\n")
    assert "00000000  00 00 00 00 00 00 00 0a  " in shown


def test_a_rejected_record_is_shown_as_it_would_have_landed(keep: Keep, capsysbinary):
    """What the sink refused, whole: to be put in by hand, or to fix the producer."""
    refused = record(10, b"\xffvalue", key=b"k", timestamp=5, headers=(("trace", b"a"),))
    file = keep(b"", cause="rejected", record=refused, next_offset=11)
    assert main(["quarantine", "show", str(file), "--json"]) == DONE
    (found,) = json.loads(capsysbinary.readouterr().out)["records"]
    assert found == {
        "offset": 10,
        "index": 0,
        "timestamp": 5,
        "key": "k",
        "value_base64": base64.b64encode(b"\xffvalue").decode(),
        "headers": [{"key": "trace", "value": "a"}],
    }
    assert main(["quarantine", "show", str(file), "--raw"]) == DONE
    assert capsysbinary.readouterr().out == b"\xffvalue"


def test_raw_gives_the_bytes_of_one_unit(keep: Keep, tmp_path, capsysbinary):
    """For other tools: nothing but the bytes, and never two units in one."""
    keep()
    assert main(["quarantine", "show", "orders/3@11", "--raw", "--path", str(tmp_path / "q")]) == DONE
    assert capsysbinary.readouterr().out == FLIPPED
    keep(BATCH, incarnation=Incarnation(9))
    assert main(["quarantine", "show", "orders/3@11", "--raw", "--path", str(tmp_path / "q")]) == CONFIGURATION
    assert b"name one of their files" in capsysbinary.readouterr().err
