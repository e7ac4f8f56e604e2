# SPDX-License-Identifier: Apache-2.0
"""Size of the downloads during set-up, from pip's own log (``pip install --log FILE``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FILE: Final = re.compile(
    r"(?:Downloading|Using cached) (?:\S*/)?(?P<name>[^\s/]+\.(?:whl|tar\.gz|zip))"
    r"(?: \((?P<size>[0-9.]+) (?P<unit>bytes|kB|MB|GB)\))?$",
    re.MULTILINE,
)
"""pip's line for each file, with or without its address. Metadata that pip reads in advance end in ``.metadata``."""
_UNITS: Final[Mapping[str, float]] = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloads:
    """Files that pip has installed during set-up, by pip's log.

    Args:
        sizes: Size in MB (10^6 bytes) of each file for which the log has a size, by file name, largest first. The files
            were downloaded now, or earlier and taken from pip's cache.
        built: Names of the files for which the log has no size: packages that pip had built from source in an earlier
            run and taken from its cache.
    """

    sizes: Mapping[str, float]
    built: tuple[str, ...]


def find_downloads(log: Path) -> Downloads:
    """Return the files and sizes in a log of pip.

    Both are empty if the log does not exist.
    """
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return Downloads(sizes={}, built=())
    found = {match["name"]: match for match in _FILE.finditer(text)}
    sizes = {name: float(match["size"]) * _UNITS[match["unit"]] for name, match in found.items() if match["size"]}
    return Downloads(
        sizes=dict(sorted(sizes.items(), key=lambda one: -one[1])),
        built=tuple(name for name in found if name not in sizes),
    )
