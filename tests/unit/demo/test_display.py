# SPDX-License-Identifier: Apache-2.0
"""What the demo shows: bars for people, lines for logs."""

from __future__ import annotations

import errno
import io

import pytest
from rich.console import Console

from consumerd.demo.display import BarDisplay, PlainDisplay
from tests.support.clocks import ManualClock


def test_plain_lines_say_when_and_do_not_repeat_themselves() -> None:
    """A CI log with a line for each record would be of no use."""
    clock, out = ManualClock(), io.StringIO()
    with PlainDisplay(clock, out) as display:
        display.say("begun")
        display.show({"produced": 0}, {"produced": 2000})
        clock.seconds += 1
        display.show({"produced": 500}, {"produced": 2000})
        clock.seconds += 1.5
        display.show({"produced": 1000}, {"produced": 2000})
        clock.seconds += 5
        display.show({"produced": 1000}, {"produced": 2000})

    assert out.getvalue().splitlines() == [
        "   0.0 s  begun",
        "   0.0 s  produced: 0 of 2,000",
        "   2.5 s  produced: 1,000 of 2,000",
    ]


class Gone(io.StringIO):
    """A stream that nobody reads any more."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, "gone")


def test_a_terminal_that_has_gone_leaves_the_end_to_its_signal() -> None:
    """The first line after it was closed must not end the demo in the middle; a pipe that was closed does."""
    clock = ManualClock()
    with BarDisplay(clock, Console(file=Gone(errno.EIO), force_terminal=True, width=120)) as bars:
        bars.say("begun")
        bars.show({"produced": 0}, {"produced": 2000})
    PlainDisplay(clock, Gone(errno.EIO)).say("begun")
    with pytest.raises(BrokenPipeError):
        PlainDisplay(clock, Gone(errno.EPIPE)).say("begun")


def test_bars_show_how_far_things_are_and_lines_stand_above_them() -> None:
    """As on a terminal; markup in a text is shown as it is."""
    clock, out = ManualClock(), io.StringIO()
    with BarDisplay(clock, Console(file=out, force_terminal=True, width=120)) as display:
        display.show({"produced": 0}, {"produced": 2000})
        clock.seconds += 1.5
        display.say("files are in [bold]here")
        display.show({"produced": 2000}, {"produced": 2000})
    text = out.getvalue()

    assert "   1.5 s  files are in [bold]here" in text
    assert "2000/2000" in text
    assert text.index("files are in") < text.index("2000/2000")
