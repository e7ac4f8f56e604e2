"""The coordinator's requests: FindCoordinator, the group requests, OffsetCommit and OffsetFetch.

One entry, to be merged with the broker's own: ``group_handlers(coordinator)``. ``coordinator`` is a
``coordinator.coordinator.GroupCoordinator``, entered by ``async with`` while the broker runs (positions are its part, so
there is no second argument). Errors are answers; nothing is raised for what a client may do wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from consumerd.wire.apikeys import ApiKey

if TYPE_CHECKING:
    from consumerd.embedded.coordinator.coordinator import GroupCoordinator
    from consumerd.embedded.handlers.context import Handler


def group_handlers(coordinator: GroupCoordinator) -> Mapping[ApiKey, Handler]:
    """Return the handlers of the group requests and of offset commits and fetches."""
    raise NotImplementedError
