# SPDX-License-Identifier: Apache-2.0
"""The dashboard is what its script makes, and shows every series that there is."""

from __future__ import annotations

import json
import re
from typing import Any

from consumerd.spark.job_metrics import SERIES
from tests.architecture.queries import DEPLOY, OF_THE_SCRAPE, dashboard_script, faults, labels_by_series, used
from tests.support.metrics_page import list_series, list_series_of_jobs

FILE = DEPLOY / "grafana" / "consumerd.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = [
    panel for row in DASHBOARD["panels"] for panel in (row, *row.get("panels", ())) if panel["type"] != "row"
]
ASKED: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]


def chosen_by(selector: str, given: str) -> list[str]:
    """Return the series that a variable of the dashboard has, if ``given`` selects the daemons or the jobs."""
    matchers = re.findall(r'__name__(=~|!~)"([^"]*)"', selector)
    kinds = dashboard_script().SELECTED_JOBS if "$J" in selector else dashboard_script().SELECTED
    return [
        name
        for name in labels_by_series()
        if given == kinds
        and (name in SERIES) == ("$J" in selector)
        and all((re.fullmatch(pattern, name) is not None) == (kind == "=~") for kind, pattern in matchers)
    ]


def expand(query: str) -> list[str]:
    """Return a query for each series that it is repeated for."""
    for name, selector in dashboard_script().SERIES_OF.items():
        repeated = re.search(rf'\{{__name__="\${name}", ([^}}]*)\}}', query)
        if repeated is not None:
            values = chosen_by(selector, repeated[1])
            return [query.replace(repeated[0], f"{one}{{{repeated[1]}}}") for one in values]
    return [query]


QUERIES: list[str] = [query for asked in ASKED for query in expand(asked)]


def test_the_dashboard_is_what_its_script_makes() -> None:
    """Edited by hand it would lose the next series; the script says how to run it instead."""
    made = dashboard_script().render()
    assert made == FILE.read_text(), "run: make metrics"


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


def test_every_series_is_shown_by_the_panels_that_are_repeated() -> None:
    """A series that comes with a later release is seen without a new dashboard."""
    script = dashboard_script()
    variables = {one["name"]: one["query"] for one in DASHBOARD["templating"]["list"]}
    repeated = [panel for panel in PANELS if "repeat" in panel]
    shown = {name for panel in repeated for query in expand(panel["targets"][0]["expr"]) for name in used(query)}

    assert {panel["repeat"] for panel in repeated} == set(script.SERIES_OF) <= variables.keys()
    assert all("__name__" in variables[panel["repeat"]]["query"] for panel in repeated)
    assert shown == {series.name for series in (*list_series(), *list_series_of_jobs())}


def test_every_series_has_the_labels_of_the_scrape() -> None:
    """Alerts and panels select by them."""
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
