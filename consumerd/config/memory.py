# SPDX-License-Identifier: Apache-2.0
"""Divides the memory budget between sinks, and for each sink between fetching, files and libraries.

Each sink has a share of its own, for records that are fetched or not acknowledged yet, and for open files. A sink that
hangs fills its share and stops there; the shares of other sinks stay as they are. Shares are not lent: memory lent to a
sink that hangs might never come back.

Example: a budget of 256 MiB and two parquet sinks with ``memory_share`` 1 and 3, whose libraries take at most 128 MiB.
That leaves 128 MiB: 32 MiB for the one sink and 96 MiB for the other. Open files may take a quarter of each share, 8
MiB and 24 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.config.settings import LARGEST_SHARE, Settings
from consumerd.fetch.buffer import Kind, MemoryBudget
from consumerd.sinks.registry import load_sink

SINK_SHARE: Final = 4
"""Divisor of a sink's memory share, for its open files.

All open files together may use share / SINK_SHARE bytes.

The rest is left for fetching.
"""

_LIBRARY_SHARE: Final = 2
"""At most one part in this many of the budget is set aside for libraries, so that the rest is left for records."""


def plan_budgets(settings: Settings) -> dict[str, MemoryBudget]:
    """Return the memory budget of each sink in use, by the sink's name.

    First the memory of the sinks' libraries is subtracted from ``fetch.memory_budget_bytes``, but at most half of it.
    The rest is divided in proportion to ``memory_share``.
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
    """Return the size in bytes of the largest message that every sink can hold.

    A record batch counts as one message. A message may take a quarter of a sink's memory budget, since there are
    several copies of it while it is handled. With several sinks, the smallest budget counts. With a single sink, it is
    a quarter of ``fetch.memory_budget_bytes``, without subtracting the memory of the sink's libraries. The result is
    never above ``fetch.max_message_bytes``.
    """
    largest = settings.fetch.largest_unit_bytes
    if len(budgets) == 1:
        return largest
    return min(largest, min(budget.limit_bytes for budget in budgets.values()) // LARGEST_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMessageLimit:
    """Message size limit that the memory budget lowers below ``max_message_bytes``.

    Args:
        key: Setting of ``fetch`` to change.
        detail: Both limits in bytes, and the policy ``on_oversized`` for messages between them, in words.
        advice: Budget that would be large enough, in words.
        is_meant: True if the operator should be warned: ``max_message_bytes`` is not the default, so messages are
            refused that the settings ask for; or the budget is too small even for one fetch of ``max_partition_bytes``.
            False if only the default of ``max_message_bytes`` is lowered: few topics have messages of that size.
    """

    key: str
    detail: str
    advice: str
    is_meant: bool


def find_cut_message_limit(settings: Settings) -> CutMessageLimit | None:
    """Return the message size limit if the memory budget lowers it, else None.

    Example: a budget of 256 MiB and two sinks can hold messages of 32 MiB. ``max_message_bytes`` is 64 MiB by default:
    the result has ``is_meant`` False, and nothing needs a warning. If ``max_message_bytes`` was set to 48 MiB,
    ``is_meant`` is True: messages of 32 to 48 MiB are refused although the settings ask for them.
    """
    fetch, budgets = settings.fetch, plan_budgets(settings)
    largest = find_largest_unit(settings, budgets)
    if largest >= fetch.max_message_bytes:
        return None
    # a copy of config.example.yaml writes each default down: the value says what is meant, not that it was written
    is_set = fetch.max_message_bytes != type(fetch).model_fields["max_message_bytes"].default
    is_tiny = largest < fetch.max_partition_bytes
    wanted = fetch.max_message_bytes if is_set or not is_tiny else fetch.max_partition_bytes
    # what libraries take does not grow with the budget, so this is enough
    whole = fetch.memory_budget_bytes
    smallest = whole if len(budgets) == 1 else min(budget.limit_bytes for budget in budgets.values())
    needed = -(-wanted * LARGEST_SHARE * whole // smallest)
    shared = f", shared by {len(budgets)} sinks," if len(budgets) > 1 else ""
    return CutMessageLimit(
        key="max_message_bytes" if is_set else "memory_budget_bytes",
        detail=f"a budget of {whole} bytes{shared} holds the copies of a message of {largest} bytes at most, and the "
        f"limit "
        f"is {fetch.max_message_bytes}: fetch.on_oversized ({fetch.on_oversized}) applies to larger ones",
        advice=f"set fetch.memory_budget_bytes to {needed}" + (", or lower fetch.max_message_bytes" if is_set else ""),
        is_meant=is_set or is_tiny,
    )


def explain_small_budget(settings: Settings) -> str | None:
    """Return a warning if the sinks' libraries need more than half of the memory budget.

    Returns None if half of the budget is enough for them.
    """
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
    """Return the bytes that all sinks together hold now, by purpose.

    The keys are purposes, such as open files or libraries. For libraries, the value is the memory set aside for them.
    """
    held = {kind.value: sum(budget.held_by_kind[kind] for budget in budgets.values()) for kind in Kind}
    parts = sum(budget.limit_bytes for budget in budgets.values())
    return held | {Kind.LIBRARIES.value: settings.fetch.memory_budget_bytes - parts}


def _library_bytes(settings: Settings) -> tuple[int, int]:
    """Return the minimum and maximum bytes that the libraries of used sinks take."""
    types = {settings.sinks[name].type for name in find_used(settings)}
    sizes = [getattr(load_sink(one), "LIBRARY_BYTES", (0, 0)) for one in types]
    return sum(least for least, _ in sizes), sum(most for _, most in sizes)
