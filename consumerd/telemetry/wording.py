"""How numbers and lists are said to people. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """Return the number with its noun (one whose plural is made with an s): ``1 member``, ``2 members``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def join_shown(items: Iterable[object], at_most: int) -> str:
    """Return the first ``at_most`` of many, and how many more there are."""
    every = [str(item) for item in items]
    more = len(every) - at_most
    return ", ".join(every[:at_most]) + (f" and {more} more" if more > 0 else "")
