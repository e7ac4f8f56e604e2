"""What all tests share: how property tests are run, and that no test's logging is another's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# no test asserts an absolute time: machines are shared, and a slow example is no failure
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# what lands was judged by the same examples; new ones are looked for on developers' machines
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Commands and simulations that run in this process set the logging for all of it."""
    yield
    structlog.reset_defaults()
