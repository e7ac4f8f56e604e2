# SPDX-License-Identifier: Apache-2.0
"""Rewrites the tables of docs/performance.md from the stored results: ``python -m bench.page``.

It measures nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench import report
from bench.results import load_results
from bench.spark import report as spark_report

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PLOT: Final = "performance/rates.png"


def rewrite(page: str, docs: Path = DOCS) -> str:
    """Return the page with its tables rewritten from the results in ``docs``.

    Raises ValueError if the page lacks the markers of the tables.
    """
    plot = PLOT if (docs / PLOT).exists() else None
    page = report.put_between(page, report.document(load_results(docs / "performance" / "results.json"), plot))
    of_spark = spark_report.document(spark_report.load(docs / "performance" / "spark.json"))
    return report.put_between(page, of_spark, spark_report.BEGIN)


if __name__ == "__main__":
    place = DOCS / "performance.md"
    place.write_text(rewrite(place.read_text()))
