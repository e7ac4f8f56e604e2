# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal and in a file."""

from __future__ import annotations

import io

from consumerd.spark.progress import Reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_changes() -> None:
    """What was longer before is wiped out, and the summary begins on a clean line."""
    stream, clock = Terminal(), [0.0]
    reporter = Reporter("bronze", stream, lambda: clock[0])

    reporter.step("reading")
    reporter.done(1, 2000, "files")  # too soon to be said
    clock[0] = 1.0
    reporter.done(1000, 2000, "files")
    reporter.step("on")
    reporter.clear()
    reporter.clear()

    first, long, last = "bronze: reading", "bronze: reading: 1,000 of 2,000 files", "bronze: on"
    blank = " " * len(last)
    assert f"\r{first}\r{long}\r{last.ljust(len(long))}\r{blank}\r" == stream.getvalue()


def test_a_job_without_steps_names_only_what_is_done() -> None:
    """Silver has no step where no topic has anything new."""
    stream = io.StringIO()
    Reporter("silver", stream, lambda: 0.0).done(1, 2, "topics")

    assert ["silver: 1 of 2 topics"] == stream.getvalue().splitlines()


def test_in_a_file_lines_come_now_and_then() -> None:
    """A log of a scheduler is no place for a line a file."""
    stream, clock = io.StringIO(), [0.0]
    reporter = Reporter("bronze", stream, lambda: clock[0])

    reporter.step("reading")
    for second in range(25):
        clock[0] = float(second)
        reporter.done(second, 25, "files")
    reporter.clear()

    assert [
        "bronze: reading",
        "bronze: reading: 10 of 25 files",
        "bronze: reading: 20 of 25 files",
    ] == stream.getvalue().splitlines()
