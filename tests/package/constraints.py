# SPDX-License-Identifier: Apache-2.0
"""Keeps ``constraints.txt``: the versions of what an installation needs, as they were tested.

    python -m tests.package.constraints [--write]

Without ``--write`` it prints what differs from the environment it runs in. The image and the documents install with
``pip install -c constraints.txt``. The file is written on the oldest supported Python: a newer one can take what that
one takes, the reverse is not so.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FILE: Final = Path(__file__).resolve().parents[2] / "constraints.txt"
EXTRAS: Final = ("parquet", "speed", "spark", "java", "demo")
"""What is installed for use; tools for development are free to be the newest."""

_HEADER: Final = """\
# The versions that consumerd was tested with: pip install -c constraints.txt '.[parquet,speed]'
# Written by `make constraints`.
"""


def find_packages() -> dict[str, str]:
    """Return the versions of all that consumerd and its extras need in this environment.

    Raises:
        SystemExit: A package is not installed.

    """
    found: dict[str, str] = {}
    waiting = [("consumerd", frozenset(EXTRAS))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed here: make venv") from None
        if name != "consumerd":
            found[name] = package.version
        waiting += _requirements(package.requires or [], extras)
    return found


def _requirements(lines: list[str], extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in lines:
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield canonicalize_name(one.name), frozenset(one.extras)


def render(packages: dict[str, str]) -> str:
    """Return the text of the file."""
    return _HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))


def main() -> None:
    """Write the file, or print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write constraints.txt")
    text = render(find_packages())
    if parser.parse_args().write:
        FILE.write_text(text, encoding="utf-8")
        return
    kept = FILE.read_text(encoding="utf-8")
    differences = difflib.unified_diff(
        kept.splitlines(keepends=True), text.splitlines(keepends=True), "constraints.txt", "tested here"
    )
    sys.stdout.writelines(differences)


if __name__ == "__main__":
    main()
