# SPDX-License-Identifier: Apache-2.0
"""The catalogue of all series, and the tables of ``docs/metrics.md``, which are written from it.

``make metrics`` writes the tables and the dashboard anew. Name, type, labels and help text of a series stand in the code
alone: ``daemon.readings`` for gauges, ``telemetry.metrics`` for counters and histograms, ``spark.job_metrics`` for jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.daemon.readings import GAUGES
from consumerd.spark import job_metrics
from consumerd.telemetry.metrics import MetricsHooks, make_registry

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
BEGIN: Final = "<!-- series of {kind}: written by `make metrics` -->"
END: Final = "<!-- end of series -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series. ``type`` is Prometheus's; a counter's name ends in ``_total``."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...]


def list_series() -> tuple[Series, ...]:
    """Return every series of a daemon: gauges, counters and histograms, and the process's own."""
    registry = make_registry()
    hooks = MetricsHooks(registry)
    gauges = (Series(name=spec.name, type="gauge", help=spec.help, labels=spec.labels) for spec in GAUGES)
    labels = {
        metric._name: tuple(metric._labelnames) for metric in vars(hooks).values() if hasattr(metric, "_labelnames")
    }
    counted = [
        Series(
            name=f"{family.name}_total" if family.type == "counter" else family.name,
            type=family.type,
            help=family.documentation,
            labels=labels.get(family.name, ()),  # the process's own have none
        )
        for family in registry.collect()
    ]
    return (*gauges, *sorted(counted, key=lambda one: one.name.startswith("process_")))


def list_series_of_jobs() -> tuple[Series, ...]:
    """Return every series of a job of the pipeline."""
    return tuple(
        Series(name=name, type="gauge", help=text, labels=(*job_metrics.LABELS, *labels))
        for name, (text, labels) in job_metrics.SERIES.items()
    )


def write_tables(page: str) -> str:
    """Return the page with both tables written anew. Raises ValueError where the marks of one are missing."""
    for kind, series in (("the daemon", list_series()), ("jobs", list_series_of_jobs())):
        begin = BEGIN.format(kind=kind)
        before, marked, rest = page.partition(f"{begin}\n")
        _, ended, behind = rest.partition(END)
        if not (marked and ended):
            raise ValueError(f"{PAGE.name}: expected {begin} and {END}")
        page = f"{before}{marked}{make_table(series)}{ended}{behind}"
    return page


def make_table(series: Iterable[Series]) -> str:
    """Return the rows of series below a head."""
    rows = (f"| `{one.name}` | {one.type} | {', '.join(one.labels) or '–'} | {one.help} |\n" for one in series)  # noqa: RUF001
    return "".join(("| name | type | labels | meaning |\n|---|---|---|---|\n", *rows))


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text()))
