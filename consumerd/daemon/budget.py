"""How the memory budget is shared out between fetching, sinks, and what the sinks' libraries take."""

from __future__ import annotations

from typing import Final

from consumerd.config.settings import Settings
from consumerd.fetch.buffer import Kind, MemoryBudget
from consumerd.sinks.registry import load_sink

SINK_SHARE: Final = 4
"""All open writers together may hold one part in so many of what is left, so that they never starve the fetching."""

_LIBRARY_SHARE: Final = 2
"""Libraries are set aside one part in so many of the budget at most: there is to be something left to work with."""


def plan_budget(settings: Settings) -> MemoryBudget:
    """Return the account of what is left of the budget beside the sinks' libraries, half of it at least."""
    whole = settings.fetch.memory_budget_bytes
    _, libraries = _library_bytes(settings)
    limit = max(whole - libraries, whole - whole // _LIBRARY_SHARE)
    return MemoryBudget(limit, sink_bytes=limit // SINK_SHARE)


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


def held_by_kind(settings: Settings, budget: MemoryBudget) -> dict[str, int]:
    """Return what is held now, and by what; with what is set aside for libraries."""
    held = {kind.value: size for kind, size in budget.held_by_kind.items()}
    return held | {Kind.LIBRARIES.value: settings.fetch.memory_budget_bytes - budget.limit_bytes}


def _library_bytes(settings: Settings) -> tuple[int, int]:
    """Return the least and the most that the libraries of the sinks in use take."""
    types = {settings.sinks[subscription.sink].type for subscription in settings.subscriptions}
    sizes = [getattr(load_sink(one), "LIBRARY_BYTES", (0, 0)) for one in types]
    return sum(least for least, _ in sizes), sum(most for _, most in sizes)
