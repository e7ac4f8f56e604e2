# SPDX-License-Identifier: Apache-2.0
"""Finds the cause in the text of a Spark error.

An exception that is raised in a Python worker reaches the driver as text within the text of Spark's own exception,
twice, between stack traces of Python and Java. The line that names the exception's class has the cause.

Example: of 60 lines, the one that counts is ``consumerd.errors.ConfigError: topics: there is no topic 'orders'``.
"""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^\s*(?:consumerd\.[\w.]+\.)([A-Z]\w*): (.*)$", re.MULTILINE)
"""A line with an exception of consumerd: class and message."""
_PYTHON: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Interrupt)): (.*)$", re.MULTILINE)
"""A line with any Python exception."""
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+\.)?([\w$]+): (.*)$", re.MULTILINE)
"""A line with a Java exception that caused another one."""
_CONFIGURATION: Final = "ConfigError"
_MAX_CHARS: Final = 1000
"""Limit of a cause's text, in characters."""


def find_cause(text: str) -> tuple[str, bool]:
    """Return the cause that a Spark error names; and True if it is a ConfigError.

    Exceptions of consumerd come first, then Python's, then Java's, then the first line of the text.
    """
    if ours := _OURS.findall(text):
        kind, message = ours[-1]
        return message.strip(), kind == _CONFIGURATION
    python = [found for found in _PYTHON.findall(text) if not found[0].startswith(("Py4J", "Spark"))]
    if others := python or _CAUSE.findall(text):
        kind, message = others[-1]
        return f"{kind}: {message.strip()}"[:_MAX_CHARS], False
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0][:_MAX_CHARS] if lines else "Spark gave no reason"), False
