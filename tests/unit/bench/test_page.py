# SPDX-License-Identifier: Apache-2.0
"""The page of figures is what the kept results give: each figure with the date and commit of its run."""

from __future__ import annotations

import re

from bench.page import DOCS, rewrite
from bench.report import BEGIN, END
from bench.spark.report import BEGIN as SPARK

ORIGIN = re.compile(r"2\d{3}-\d\d-\d\d, `[0-9a-f]{7,}`(?: and changes)?")


def test_page_is_what_the_kept_results_give() -> None:
    """A page that is not written anew after a change of its tables shows what nobody maintains."""
    page = (DOCS / "performance.md").read_text()

    assert rewrite(page) == page


def test_every_figure_of_the_page_has_a_date_and_a_commit() -> None:
    """Runs of different days and commits stand in one table."""
    page = (DOCS / "performance.md").read_text()
    written = "".join(page.split(begin)[1].split(END)[0] for begin in (BEGIN, SPARK))
    rows = [line for line in written.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    figures = [row for row in rows if "date and commit" not in row]

    assert len(figures) > 50
    assert [row for row in figures if not ORIGIN.search(row)] == []
