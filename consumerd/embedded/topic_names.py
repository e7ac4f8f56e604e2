# SPDX-License-Identifier: Apache-2.0
"""Names of topics that mean something to brokers. Pure; which names are legal is :func:`consumerd.model.find_topic_fault`'s.

Two names that differ in ``.`` and ``_`` only would have metrics of one name, so that the second of them is refused
(Kafka's ``Topic.java``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Where the coordinator keeps groups and their positions."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
"""Topics that brokers keep for themselves; clients may read but not write them."""


def find_collision(name: str, others: Iterable[str]) -> str | None:
    """Return a topic whose name differs from ``name`` in ``.`` and ``_`` only, or None."""
    folded = name.replace(".", "_")
    return next((other for other in others if other != name and other.replace(".", "_") == folded), None)
