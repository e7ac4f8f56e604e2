# SPDX-License-Identifier: Apache-2.0
"""The dashboard is what its script makes, and shows every series that there is."""

from __future__ import annotations

import json
import re
from typing import Any

from consumerd.spark.job_metrics import SERIES
from tests.architecture.queries import DEPLOY, OF_THE_SCRAPE, dashboard_script, faults, labels_by_series

FILE = DEPLOY / "grafana" / "consumerd.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = [
    panel for row in DASHBOARD["panels"] for panel in (row, *row.get("panels", ())) if panel["type"] != "row"
]
QUERIES: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_the_dashboard_is_what_its_script_makes() -> None:
    """Edited by hand it would lose the next series; the script says how to run it instead."""
    made = dashboard_script().render()
    assert made == FILE.read_text(), "run: python deploy/grafana/make_dashboard.py > deploy/grafana/consumerd.json"


def test_every_query_asks_for_series_and_labels_that_exist() -> None:
    """A panel that asks for others stays empty, and nobody knows why."""
    assert {query: faults(query) for query in QUERIES if faults(query)} == {}


def test_every_query_goes_by_what_was_chosen_at_the_top() -> None:
    """One that does not mixes groups."""
    selections = [one for query in QUERIES for one in re.findall(r"\b((?:consumerd|process)_\w+)(\{[^}]*\})?", query)]
    chosen = {name in SERIES: given for name, given in selections}

    script = dashboard_script()
    assert chosen == {False: f"{{{script.SELECTED}}}", True: f"{{{script.SELECTED_JOBS}}}"}
    assert {(name in SERIES, given) for name, given in selections} == set(chosen.items())


def test_every_series_is_shown() -> None:
    """What nobody sees need not be counted."""
    script = dashboard_script()
    shown = {name for query in QUERIES for name in script.used(query)} | {"consumerd_info"}

    assert {series.name for series in script.catalogue()} <= shown
    assert "consumerd_info" in json.dumps(DASHBOARD["templating"])


def test_the_page_names_the_labels_that_series_have() -> None:
    """docs/metrics.md is what people write their own queries from."""
    page = (DEPLOY.parent / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `((?:consumerd|process)_\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE)
    documented = {name: (kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}

    assert documented == {
        series.name: (series.type, frozenset(series.labels)) for series in dashboard_script().catalogue()
    }
    of_ours = {name: labels for name, labels in labels_by_series().items() if ":" not in name}
    assert all(labels >= OF_THE_SCRAPE for labels in of_ours.values())


def test_panels_neither_overlap_nor_share_a_number() -> None:
    """Grafana would move the one and lose the other."""
    numbers = [panel["id"] for panel in (*PANELS, *(row for row in DASHBOARD["panels"] if row["type"] == "row"))]
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(numbers) == len(set(numbers))
    assert len(taken) == len(set(taken))
    assert all(0 <= x < 24 for x, _ in taken)
