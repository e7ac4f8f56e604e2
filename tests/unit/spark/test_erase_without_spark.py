# SPDX-License-Identifier: Apache-2.0
"""Mistakes that the job ``erase`` finds before it starts Spark."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.errors import ConfigError
from consumerd.spark import erase
from consumerd.spark.job import Silent
from consumerd.spark.table.transaction import create_table
from tests.support.landing_zone import LandingZone
from tests.support.tables import SCHEMA, append, make_rows


class SparkStarted(Exception):
    """The job has asked for the session."""


def start() -> NoReturn:
    """Stand in for the session: no test here may need it."""
    raise SparkStarted


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    """Landed files of the topic orders, and bronze with some of its rows."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 10)
    bronze = create_table(tmp_path / "lake" / "bronze", name="bronze", schema=SCHEMA, partition_by=("topic", "day"))
    append(bronze, make_rows(range(10)))
    return zone


def make_settings(zone: LandingZone, **options: object) -> JobSettings:
    """Return settings of the job over the zone, without any topic declared."""
    pipeline = {
        "path": str(zone.path.parent / "lake"),
        "landing": {"roots": [str(zone.path)]},
        "erase": options,
    }
    return JobSettings(pipeline=Pipeline.model_validate(pipeline))


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("choice", [{"key": "anna"}, {"where": "offset = 3"}], ids=["key", "predicate"])
def test_a_misspelt_topic_is_found_without_spark(zone: LandingZone, choice: dict[str, str], dry_run: bool) -> None:
    """A JVM takes seconds to start, and gives no other answer."""
    summary = erase.run(start, make_settings(zone, topic="ordres", dry_run=dry_run, **choice), Silent())

    assert summary.findings == ("nothing has landed of topic ordres: is its name spelt right?",)
    assert summary.numbers["identities"] == 0


def test_a_predicate_on_a_table_that_is_not_there_is_refused_without_spark(zone: LandingZone) -> None:
    """``--in silver`` of a topic that is not decoded."""
    with pytest.raises(ConfigError, match="there is no table silver of orders"):
        erase.run(start, make_settings(zone, topic="orders", where="value.n = 3", where_in="silver"), Silent())


def test_a_topic_with_records_is_searched_by_spark(zone: LandingZone) -> None:
    """So the tests above prove something."""
    with pytest.raises(SparkStarted):
        erase.run(start, make_settings(zone, topic="orders", key="anna", dry_run=True), Silent())
