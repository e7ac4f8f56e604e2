# SPDX-License-Identifier: Apache-2.0
"""Every test here runs on each event loop: sockets must behave the same on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tests.support.loops import LOOPS


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run coroutines on each loop."""
    return LOOPS
