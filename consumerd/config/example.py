# SPDX-License-Identifier: Apache-2.0
"""The documented example of all settings, ``config.example.yaml``, as installed with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from consumerd.errors import ConfigError

_NAME: Final = "config.example.yaml"


def read_example() -> str:
    """Return the text of ``config.example.yaml``, which documents all settings.

    The build puts a copy of the file into the package (``setup.py``). In a checkout, the file is in the folder that
    contains the package. Raises ConfigError if neither file exists.
    """
    package = resources.files("consumerd")
    for place in (package / _NAME, Path(str(package)).parent / _NAME):
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise ConfigError(f"{package / _NAME} is missing: install consumerd again")
