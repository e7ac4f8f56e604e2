# SPDX-License-Identifier: Apache-2.0
"""``consumerd version``: prints versions of consumerd, Python and libraries, for a bug report."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from typing import Final

from consumerd.admin.installation import read_installation
from consumerd.aio.loops import explain_loop
from consumerd.installation import describe_package
from consumerd.wire import kernel

_SHOWN: Final = ("aiozk", "pyarrow", "python-snappy", "lz4", "zstandard", "google-crc32c")


def add_version_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd version`` to the parser."""
    parser = commands.add_parser(
        "version",
        help="print versions of what matters in a bug report",
        description=(
            "Print versions: of consumerd with its kernel and event loop, of Python, the platform and its C library, "
            "and of "
            "the libraries that matter. Put the output of `consumerd version --json` into a bug report: it holds no "
            "settings, no host names and no paths."
        ),
    )
    parser.add_argument("--json", action="store_true", help="all of it, as one JSON object")
    parser.set_defaults(command=version)


async def version(args: argparse.Namespace) -> int:
    """Run ``consumerd version``: print versions. Returns the exit code."""
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
