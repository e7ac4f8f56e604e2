"""How much the set-up has downloaded, by pip's own log (``pip install --log FILE``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DOWNLOAD: Final = re.compile(
    r"(?:Downloading|Using cached) (?:\S*/)?(?P<name>[^\s/]+\.(?:whl|tar\.gz|zip)) \((?P<size>[0-9.]+) (?P<unit>bytes|kB|MB|GB)\)"
)
"""What pip says of each file, with its address or without; metadata that it reads ahead ends in ``.metadata``."""
_UNITS: Final[Mapping[str, float]] = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}


def find_downloads(log: Path) -> dict[str, float]:
    """Return the size in MB (10^6 bytes) of each file that pip has downloaded or had in its cache, the largest first."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return {}
    found = {match["name"]: float(match["size"]) * _UNITS[match["unit"]] for match in _DOWNLOAD.finditer(text)}
    return dict(sorted(found.items(), key=lambda one: -one[1]))
