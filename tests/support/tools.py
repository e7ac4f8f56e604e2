# SPDX-License-Identifier: Apache-2.0
"""Programs and jars that some tests need and that are no Python packages: found, or the test skips and says how to get them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.kafka import KafkaUnavailable
from tests.support.kdc import PACKAGES, find_program

KUSTOMIZE: Final = "go install sigs.k8s.io/kustomize/kustomize/v5@v5.8.1"
"""Command that installs kustomize, which Debian does not have; into `GOBIN`, which must be in the PATH."""


def require_tool(name: str, package: str = "", *, command: str | None = None) -> str:
    """Return the path of a program of a Debian package, or of one that a ``command`` installs.

    Without it the test skips; with ``CONSUMERD_REQUIRE_TOOLS=1`` it fails instead.
    """
    found = shutil.which(name)
    if found is not None:
        return found
    reason = f"{name} is not installed: {command or f'apt-get install --no-install-recommends {package}'}"
    if os.environ.get("CONSUMERD_REQUIRE_TOOLS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def require_kerberos() -> None:
    """Skip the test without Kerberos: Debian's server and tools, and the library gssapi of the extra ``kerberos``.

    With ``CONSUMERD_REQUIRE_TOOLS=1`` it fails instead.
    """
    missing = [name for name in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit") if find_program(name) is None]
    reason = f"{', '.join(missing)} not installed: apt-get install --no-install-recommends {PACKAGES}"
    if not missing and importlib.util.find_spec("gssapi") is not None:
        return
    if not missing:
        reason = "the library gssapi is not installed: apt-get install libkrb5-dev; pip install -e '.[kerberos]'"
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
