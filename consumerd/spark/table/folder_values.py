# SPDX-License-Identifier: Apache-2.0
"""Partition values in folder names, escaped as Hive and Spark do. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Folder value that Spark and Hive use for null and for the empty text."""

_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")


def escape_value(value: str) -> str:
    """Escape a partition column's value for a folder's name: ``a/b`` becomes ``a%2Fb``."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value) if value else NULL_VALUE


def unescape_value(name: str) -> str | None:
    """Return the value in a folder's name, None for null."""
    return None if name == NULL_VALUE else unquote(name)
