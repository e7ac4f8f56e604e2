# SPDX-License-Identifier: Apache-2.0
"""The event loops that the product runs on, for tests that run on each of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from consumerd.aio.loops import SWITCH, find_uvloop

LOOP_ENVIRONMENTS: Final[Mapping[str, Mapping[str, str]]] = {"asyncio": {SWITCH: "off"}, "uvloop": {}}
"""Each loop's name, and the environment in which ``consumerd run`` takes it."""


def new_uvloop() -> asyncio.AbstractEventLoop:
    """Return a new loop of uvloop's; without it the test skips, or fails where ``CONSUMERD_REQUIRE_TOOLS=1``."""
    new_loop = find_uvloop({})
    if new_loop is not None:
        return new_loop()
    reason = "uvloop is not installed: pip install -e '.[test]'"
    if os.environ.get("CONSUMERD_REQUIRE_TOOLS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def require_loop(name: str) -> None:
    """Skip, or fail, as :func:`new_uvloop`, where this loop is not there."""
    if name == "uvloop":
        new_uvloop().close()


LOOPS: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": new_uvloop,
}
"""What makes each: for ``pytest_asyncio_loop_factories`` in a package's ``conftest``."""
