# SPDX-License-Identifier: Apache-2.0
"""Divides the memory budget between sinks, and for each between fetching, files and libraries.

Each sink has a share of its own, for records that are fetched or not acknowledged yet, and for open files. A sink that
hangs fills its share and stops there; the others keep the memory that they would have beside a working sink. Shares are
not lent: memory lent to a sink that hangs might never come back.

Example: a budget of 256 MiB and two parquet sinks with ``memory_share`` 1 and 3, whose libraries take at most 128 MiB:
the sinks get 32 MiB and 96 MiB, of which open files may take a quarter, 8 MiB and 24 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumerd.config.settings import LARGEST_SHARE, Settings
from consumerd.fetch.buffer import Kind, MemoryBudget
from consumerd.sinks.registry import load_sink

SINK_SHARE: Final = 4
"""All open writers of a sink may hold one part in this many of its share, so they never starve its fetching."""

_LIBRARY_SHARE: Final = 2
"""At most one part in this many of the budget is set aside for libraries, so that the rest is left for records."""


def plan_budgets(settings: Settings) -> dict[str, MemoryBudget]:
    """Return the memory account of each sink in use.

    The sinks' libraries are subtracted from the budget first, up to half of it; the rest is divided by
    ``memory_share``.
    """
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
    """Return the largest message or batch, in bytes, that the smallest share can hold.

    Room for several copies of it is needed. A sole sink gets the size that the settings promise, independently of its
    libraries.
    """
    largest = settings.fetch.largest_unit_bytes
    if len(budgets) == 1:
        return largest
    return min(largest, min(budget.limit_bytes for budget in budgets.values()) // LARGEST_SHARE)


def explain_small_budget(settings: Settings) -> str | None:
    """Return a warning if the sinks' libraries take more than is set aside for them."""
    libraries, _ = _library_bytes(settings)
    whole = settings.fetch.memory_budget_bytes
    if libraries * _LIBRARY_SHARE <= whole:
        return None
    return (
        f"fetch.memory_budget_bytes is {whole}, and the libraries of the sinks (Arrow) take {libraries} beside "
        f"all records: the process will need more than the budget and its constant; "
        f"give it {libraries * _LIBRARY_SHARE} or more"
    )


def held_by_kind(settings: Settings, budgets: Mapping[str, MemoryBudget]) -> dict[str, int]:
    """Return the bytes that all sinks together hold now, by kind, including libraries."""
    held = {kind.value: sum(budget.held_by_kind[kind] for budget in budgets.values()) for kind in Kind}
    parts = sum(budget.limit_bytes for budget in budgets.values())
    return held | {Kind.LIBRARIES.value: settings.fetch.memory_budget_bytes - parts}


def _library_bytes(settings: Settings) -> tuple[int, int]:
    """Return the minimum and maximum bytes that the libraries of used sinks take."""
    types = {settings.sinks[name].type for name in find_used(settings)}
    sizes = [getattr(load_sink(one), "LIBRARY_BYTES", (0, 0)) for one in types]
    return sum(least for least, _ in sizes), sum(most for _, most in sizes)
