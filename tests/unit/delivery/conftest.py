# SPDX-License-Identifier: Apache-2.0
"""Logs are captured here: to be asserted upon, and since rendering them takes longer than what is tested."""

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """What was logged, as events."""
    with structlog.testing.capture_logs() as events:
        yield events
