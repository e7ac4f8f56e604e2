# SPDX-License-Identifier: Apache-2.0
"""Which event loop is taken, and what is said of it."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest

from consumerd.aio.loops import SWITCH, describe_loop, explain_loop, find_uvloop
from tests.support.loops import new_uvloop


def test_uvloop_is_taken_where_it_is_installed() -> None:
    """And the running loop says that it is one."""
    loop = new_uvloop()
    try:
        assert find_uvloop({}) is not None
        assert describe_loop(loop) == explain_loop({})
        assert describe_loop(loop).startswith("uvloop 0.")
    finally:
        loop.close()


def test_it_can_be_switched_off() -> None:
    """To find out whether a fault is the loop's."""
    off = {SWITCH: " OFF"}

    assert find_uvloop(off) is None
    assert explain_loop(off) == "asyncio: CONSUMERD_UVLOOP=off"
    assert (find_uvloop({SWITCH: "on"}) is None) == (find_uvloop({}) is None)


def test_without_it_asyncio_runs_and_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "uvloop", None)  # importing it fails as if it were not there

    assert find_uvloop({}) is None
    assert re.search(r"pip install .*\[speed\]", explain_loop({}))


def test_asyncios_own_loop_is_told_as_such() -> None:
    """Whether uvloop is there or not."""
    loop = asyncio.new_event_loop()
    try:
        assert describe_loop(loop) == "asyncio"
    finally:
        loop.close()
