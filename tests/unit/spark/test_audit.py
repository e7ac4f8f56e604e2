# SPDX-License-Identifier: Apache-2.0
"""The job ``audit`` without Spark: what it reads, what it writes, what it says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from consumerd.config.job import JobSettings
from consumerd.errors import ConfigError
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.offsets.positions import KeptPositions, Position
from consumerd.offsets.store import Validity
from consumerd.spark.audit import run
from consumerd.spark.bronze import run as run_bronze
from consumerd.spark.job import Run, Silent, Summary
from tests.support.landing_zone import LandingZone, truncate_file


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 100, files=4, gaps=[Gap(10, 20, GapReason.RETENTION)])
    zone.land("orders", 0, 50, 70, request="again")
    zone.land("clicks <b>", 1, 0, 50)
    return zone


def no_session() -> object:
    raise AssertionError("an audit of names and footers needs no Spark")


@pytest.mark.parametrize("job", [run, run_bronze], ids=["audit", "bronze"])
def test_topics_of_which_nothing_has_landed_are_named(job: Run, zone: LandingZone, tmp_path: Path) -> None:
    """A misspelt name looks like a topic without new records."""
    landing = {"roots": [zone.path], "topics": ["ordrs"]}
    settings = JobSettings.model_validate({"pipeline": {"path": str(tmp_path / "lake"), "landing": landing}})

    summary = job(no_session, settings, Silent())  # type: ignore[arg-type] # there is nothing to copy
    assert "no file has landed of ordrs: look at the names (--topics, pipeline.landing.topics)" in summary.notes


def audit(zone: LandingZone, **options: object) -> Summary:
    settings = JobSettings.model_validate({"pipeline": {"landing": {"roots": [zone.path]}, "audit": options}})
    return run(no_session, settings, Silent())  # type: ignore[arg-type] # it is not to be called


def test_summary_of_a_sound_zone(zone: LandingZone) -> None:
    """Nothing to act upon; what explains itself is noted."""
    summary = audit(zone)

    assert () == summary.findings
    assert {
        "depth": "footers",
        "logs": 2,
        "chains": 3,
        "files": 7,
        "records": 160,
        "gap_offsets": 10,
        "missing_offsets": 0,
        "repeated_offsets": 20,
        "errors": 0,
        "warnings": 1,
    }.items() <= summary.numbers.items()
    assert "gap: orders/0@7: [10, 20) was not landed: retention" in summary.notes
    chain = zone.path / "topic=orders" / "partition=0" / "chain=1"
    assert f"repeated: orders/0@7: [50, 70) of {chain} is in another chain, too, and counts there" in summary.notes
    assert ["clicks <b>/1@7", "orders/0@7"] == [str(row[0]) for row in summary.tables[0].rows]


def test_findings_of_a_damaged_zone(zone: LandingZone) -> None:
    """A finding names the file."""
    path = zone.files("orders", 0)[1]
    truncate_file(path)

    [finding] = audit(zone).findings

    assert finding.startswith(f"file damaged: {path}: its metadata cannot be read")


def test_positions_are_read_before_names(zone: LandingZone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are landed and committed in between would look as if nobody had landed them."""
    partition = TopicPartition.modern("orders", 0)

    def land_and_commit(*_: object, **__: object) -> KeptPositions:
        zone.land("orders", 0, 70, 150)
        position = Position(value=150, validity=Validity.VALID, incarnation=Incarnation(7), text="150")
        return KeptPositions(zookeeper={partition: position})

    monkeypatch.setattr("consumerd.spark.audit.read_positions", land_and_commit)
    settings = JobSettings.model_validate(
        {
            "cluster": {"zookeeper": "127.0.0.1:1"},
            "group": {"id": zone.group},
            "pipeline": {"landing": {"roots": [zone.path]}},
        }
    )

    summary = run(no_session, settings, Silent())  # type: ignore[arg-type] # it is not to be called

    assert summary.numbers["group"] == zone.group
    assert summary.findings == ()


def test_names_alone(zone: LandingZone) -> None:
    """Where footers are too many, names tell of chains; records are not known then."""
    summary = audit(zone, footers=False)

    assert {"depth": "names", "files": 7}.items() <= summary.numbers.items()
    assert "records" not in summary.numbers


def test_json_file_holds_everything(zone: LandingZone, tmp_path: Path) -> None:
    """What was found can be kept, also below a folder that is not there yet."""
    target = tmp_path / "reports" / "audit.json"

    audit(zone, json_file=target)

    report = json.loads(target.read_bytes())
    assert ["clicks <b>", "orders"] == [log["topic"] for log in report["logs"]]
    assert ["audit.json"] == [path.name for path in target.parent.iterdir()]


class _Page(HTMLParser):
    """Notes what a page loads, and whether its elements are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.loads += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()


def test_page_stands_alone(zone: LandingZone, tmp_path: Path) -> None:
    """The page loads nothing, escapes what comes from outside, and is whole."""
    target = tmp_path / "audit.html"
    truncate_file(zone.files("orders", 0)[1])

    audit(zone, html=target)

    text = target.read_text()
    page = _Page()
    page.feed(text)
    assert [] == page.open
    assert ["data:,"] == page.loads
    assert "url(" not in text
    assert "@import" not in text
    assert {"svg", "rect", "table"} <= page.seen
    assert "clicks &lt;b&gt;/1@7" in text
    assert "clicks <b>" not in text
    assert "1 to act upon" in text
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"<(script|img|iframe|object)", text)


def test_page_of_an_empty_zone(zone: LandingZone, tmp_path: Path) -> None:
    """Nothing has landed yet: the page says so, and does not divide by it."""
    target = tmp_path / "audit.html"
    settings = {"landing": {"roots": [zone.path], "topics": ["none"]}, "audit": {"html": target}}

    summary = run(no_session, JobSettings.model_validate({"pipeline": settings}), Silent())  # type: ignore[arg-type]

    assert 0 == summary.numbers["logs"]
    assert "complete" in target.read_text()


def test_path_that_is_no_landing_zone(tmp_path: Path) -> None:
    """An unmounted volume is an error of the configuration, and not an empty zone."""
    with pytest.raises(ConfigError, match="is the volume mounted"):
        audit(LandingZone(tmp_path))
