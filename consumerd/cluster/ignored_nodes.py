# SPDX-License-Identifier: Apache-2.0
"""Report of znodes that are left out of the cluster's view.

They cannot be parsed, or name no listener that can be used.
"""

from __future__ import annotations

import structlog

from consumerd.telemetry.hooks import Hooks, Trouble


class IgnoredNodes:
    """Reports each ignored znode once for each reason, however often it is read."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._log = structlog.get_logger(__name__)
        self._told: set[tuple[str, str]] = set()

    def tell(self, path: str, reason: str) -> None:
        """Log a warning for the node at ``path``, and report the trouble.

        Does nothing if the node was reported for this reason before.
        """
        if (path, reason) not in self._told:
            self._told.add((path, reason))
            self._log.warning("znode_ignored", path=path, reason=reason)
            self._hooks.trouble(Trouble.ZNODE_IGNORED, f"{path}: {reason}")
