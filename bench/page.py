# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/performance.md anew from the results kept beside it: ``python -m bench.page``. Measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench import report
from bench.results import load_results
from bench.spark import report as spark_report

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PLOT: Final = "performance/rates.png"


def rewrite(page: str, docs: Path = DOCS) -> str:
    """Return the page with the tables that the results in ``docs`` give. Raises ValueError if it lacks their markers."""
    plot = PLOT if (docs / PLOT).exists() else None
    page = report.put_between(page, report.document(load_results(docs / "performance" / "results.json"), plot))
    of_spark = spark_report.document(spark_report.load(docs / "performance" / "spark.json"))
    return report.put_between(page, of_spark, spark_report.BEGIN)


if __name__ == "__main__":
    place = DOCS / "performance.md"
    place.write_text(rewrite(place.read_text()))
