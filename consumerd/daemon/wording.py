"""How numbers are said to people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return the number with its noun (one whose plural is made with an s): ``1 member``, ``2 members``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
