"""Programs and jars that some tests need and that are no Python packages: found, or the test skips and says how to get them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest

from tests.support.kafka import KafkaUnavailable


def require_tool(name: str, package: str) -> str:
    """Return the path of a program of a Debian package.

    Without it the test skips; with ``CONSUMERD_REQUIRE_TOOLS=1`` it fails instead.
    """
    found = shutil.which(name)
    if found is not None:
        return found
    reason = f"{name} is not installed: apt-get install --no-install-recommends {package}"
    if os.environ.get("CONSUMERD_REQUIRE_TOOLS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def require_jars() -> Iterator[None]:
    """Skip the test if the block raises KafkaUnavailable; with ``CONSUMERD_REQUIRE_KAFKA=1``, as in CI, fail instead."""
    try:
        yield
    except KafkaUnavailable as error:
        if os.environ.get("CONSUMERD_REQUIRE_KAFKA") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
