# SPDX-License-Identifier: Apache-2.0
"""How the memory budget is shared out between sinks, and for each of them between fetching, files, and libraries.

Each sink has a part of its own: what it fetches, what it has not acknowledged, and what it keeps in open files count against
that alone. A sink that hangs fills its part and stops there; the others have what they would have beside a sink that works.
Parts are not lent. What is lent to a sink that hangs comes back when it answers, which may be never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumerd.config.settings import LARGEST_SHARE, Settings
from consumerd.fetch.buffer import Kind, MemoryBudget
from consumerd.sinks.registry import load_sink

SINK_SHARE: Final = 4
"""All open writers together may hold one part in so many of what is left, so that they never starve the fetching."""

_LIBRARY_SHARE: Final = 2
"""Libraries are set aside one part in so many of the budget at most: there is to be something left to work with."""


def plan_budgets(settings: Settings) -> dict[str, MemoryBudget]:
    """Return each used sink's account: its part of what the sinks' libraries leave of the budget, half of it at least."""
    whole = settings.fetch.memory_budget_bytes
    _, libraries = _library_bytes(settings)
    left = max(whole - libraries, whole - whole // _LIBRARY_SHARE)
    shares = {name: settings.sinks[name].memory_share for name in sorted(find_used(settings))}
    limits = {name: left * share // sum(shares.values()) for name, share in shares.items()}
    return {name: MemoryBudget(limit, sink_bytes=limit // SINK_SHARE) for name, limit in limits.items()}


def find_used(settings: Settings) -> set[str]:
    """Return the names of the sinks that subscriptions use."""
    return {subscription.sink for subscription in settings.subscriptions}


def find_largest_unit(settings: Settings, budgets: Mapping[str, MemoryBudget]) -> int:
    """Return the largest message or batch, in bytes, whose copies the smallest part of the memory can hold.

    One sink alone may have what the settings promise, whatever libraries take.
    """
    largest = settings.fetch.largest_unit_bytes
    if len(budgets) == 1:
        return largest
    return min(largest, min(budget.limit_bytes for budget in budgets.values()) // LARGEST_SHARE)


def explain_small_budget(settings: Settings) -> str | None:
    """Return what is wrong with a budget of which the sinks' libraries take more than is set aside for them, else None."""
    libraries, _ = _library_bytes(settings)
    whole = settings.fetch.memory_budget_bytes
    if libraries * _LIBRARY_SHARE <= whole:
        return None
    return (
        f"fetch.memory_budget_bytes is {whole}, and the libraries of the sinks (Arrow) take {libraries} beside all records: "
        f"the process will need more than the budget and its constant; give it {libraries * _LIBRARY_SHARE} or more"
    )


def held_by_kind(settings: Settings, budgets: Mapping[str, MemoryBudget]) -> dict[str, int]:
    """Return what all sinks together hold now, and by what; with what is set aside for libraries."""
    held = {kind.value: sum(budget.held_by_kind[kind] for budget in budgets.values()) for kind in Kind}
    parts = sum(budget.limit_bytes for budget in budgets.values())
    return held | {Kind.LIBRARIES.value: settings.fetch.memory_budget_bytes - parts}


def _library_bytes(settings: Settings) -> tuple[int, int]:
    """Return the least and the most that the libraries of the sinks in use take."""
    types = {settings.sinks[name].type for name in find_used(settings)}
    sizes = [getattr(load_sink(one), "LIBRARY_BYTES", (0, 0)) for one in types]
    return sum(least for least, _ in sizes), sum(most for _, most in sizes)
