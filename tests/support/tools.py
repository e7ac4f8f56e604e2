"""Programs that some tests need and that are no Python packages: found, or the test skips and says what provides them."""

from __future__ import annotations

import os
import shutil

import pytest


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
