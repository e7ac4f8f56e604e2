# SPDX-License-Identifier: Apache-2.0
"""What Spark's errors come to for whoever runs a job: the cause, without the frames of two languages around it.

An error that our code raises in a Python worker reaches the driver as text within the text of Spark's own, and twice at
that. The cause stands in a line of its own that names the class.
"""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^\s*(?:consumerd\.[\w.]+\.)([A-Z]\w*): (.*)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Interrupt)): (.*)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+\.)?([\w$]+): (.*)$", re.MULTILINE)
_CONFIGURATION: Final = "ConfigError"
_LONGEST: Final = 1000


def find_cause(text: str) -> tuple[str, bool]:
    """Return what an error of Spark's says that helps, and whether the settings are to blame for it."""
    if ours := _OURS.findall(text):
        kind, message = ours[-1]
        return message.strip(), kind == _CONFIGURATION
    if python := [found for found in _PYTHON.findall(text) if not found[0].startswith(("Py4J", "Spark"))]:
        kind, message = python[-1]
        return f"{kind}: {message.strip()}"[:_LONGEST], False
    if causes := _CAUSE.findall(text):
        kind, message = causes[-1]
        return f"{kind}: {message.strip()}"[:_LONGEST], False
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0][:_LONGEST] if lines else "Spark gave no reason"), False
