# SPDX-License-Identifier: Apache-2.0
"""What alerts and dashboards may ask for: the series that there are, with the labels that they have."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from tests.support.metrics_page import list_series, list_series_of_jobs

DEPLOY = Path(__file__).parents[2] / "deploy"

#: labels that a scrape adds; those after the second only in Kubernetes
OF_THE_SCRAPE = {"job", "instance", "namespace", "pod", "container"}


@cache
def dashboard_script() -> ModuleType:
    """Return the script that makes the dashboard, as a module."""
    spec = importlib.util.spec_from_file_location("make_dashboard", DEPLOY / "grafana" / "make_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@cache
def labels_by_series() -> dict[str, frozenset[str]]:
    """Return every name that a scrape may bring, with its labels."""
    found: dict[str, frozenset[str]] = {"up": frozenset(OF_THE_SCRAPE)}
    for series in (*list_series(), *list_series_of_jobs()):
        labels = frozenset(series.labels) | OF_THE_SCRAPE
        if series.type == "histogram":
            found |= {f"{series.name}_sum": labels, f"{series.name}_count": labels}
            found[f"{series.name}_bucket"] = labels | {"le"}
        else:
            found[series.name] = labels
    for name, expression in re.findall(
        r"- record: (\S+)\n +expr: \|\n +\w+ (by \([^)]*\))", (DEPLOY / "prometheus" / "alerts.yml").read_text()
    ):
        found[name] = frozenset(re.findall(r"\w+", expression)) - {"by"}
    return found


def used(expression: str) -> set[str]:
    """Return the series of ours that an expression names; those of a histogram under the histogram's name."""
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\b(?:consumerd|process)_\w+", expression)
    }


def faults(expression: str) -> list[str]:
    """Return what an expression asks for and no scrape brings: series, and labels of series and of aggregations."""
    known = labels_by_series()
    selections = re.findall(r"\b(up|(?:consumerd|process)_\w+|consumerd:[\w:]+)\b(?:\{([^}]*)\})?", expression)
    found = [f"no series {name}" for name, _ in selections if name not in known]
    for name, matchers in selections:
        labels = re.findall(r"(\w+)\s*[=!]~?", matchers)
        found += [f"{name} has no label {label}" for label in labels if label not in known.get(name, ())]
    everything = frozenset().union(*(known.get(name, frozenset()) for name, _ in selections))
    of_any = frozenset().union(*known.values())
    for kind, labels in re.findall(r"\b(by|without)\s*\(([^)]*)\)", expression):
        # a repeated panel aggregates without labels that only some of its series have
        expected = everything if kind == "by" else of_any
        found += [f"no series in it has label {one}" for one in re.findall(r"\w+", labels) if one not in expected]
    return found if selections else ["no series of ours"]
