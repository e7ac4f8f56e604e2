"""Which names topics may have. Pure.

Source: Kafka's ``Topic.java``: letters, digits, ``.``, ``_`` and ``-``, up to 249 of them. Two names that differ in ``.``
and ``_`` only would have metrics of one name, so that the second of them is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Where the coordinator keeps groups and their positions."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
"""Topics that brokers keep for themselves; clients may read but not write them."""

MAX_LENGTH: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def find_fault(name: str) -> str | None:
    """Say what is wrong with a topic's name, or None."""
    if not name:
        return "the name is empty"
    if name in {".", ".."}:
        return f"{name!r} means a directory"
    if len(name) > MAX_LENGTH:
        return f"the name has {len(name)} characters, {MAX_LENGTH} are allowed"
    if not _LEGAL.fullmatch(name):
        return f"{name!r} has other characters than letters, digits, '.', '_' and '-'"
    return None


def find_collision(name: str, others: Iterable[str]) -> str | None:
    """Return a topic whose name differs from ``name`` in ``.`` and ``_`` only, or None."""
    folded = name.replace(".", "_")
    return next((other for other in others if other != name and other.replace(".", "_") == folded), None)
