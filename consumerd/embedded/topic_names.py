# SPDX-License-Identifier: Apache-2.0
"""Topic names with a meaning for brokers. Pure.

:func:`consumerd.model.find_topic_fault` tells legal names. Of two names that differ only in ``.`` and ``_``, the second
is refused, since their metrics would have one name (Kafka's ``Topic.java``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The topic in which the coordinator stores groups and their positions."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
"""The brokers' own topics; clients may read but not write them."""


def find_collision(name: str, others: Iterable[str]) -> str | None:
    """Return a topic whose name differs from ``name`` only in ``.`` and ``_``, or None."""
    folded = name.replace(".", "_")
    return next((other for other in others if other != name and other.replace(".", "_") == folded), None)
