# SPDX-License-Identifier: Apache-2.0
"""The documented example of all settings, ``config.example.yaml``, as it is installed."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from consumerd.errors import ConfigError

_NAME: Final = "config.example.yaml"


def read_example() -> str:
    """Return the file's text. Raises ConfigError where an installation is incomplete.

    The build puts a copy of the file into the package (``setup.py``); a checkout has it beside the package.
    """
    package = resources.files("consumerd")
    for place in (package / _NAME, Path(str(package)).parent / _NAME):
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise ConfigError(f"{package / _NAME} is missing: install consumerd again")
