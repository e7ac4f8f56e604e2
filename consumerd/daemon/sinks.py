# SPDX-License-Identifier: Apache-2.0
"""Checks the destinations of all sinks when the process starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from consumerd.aio.timeouts import timeout
from consumerd.errors import RetriableSinkError
from consumerd.sinks.base import CheckedSink
from consumerd.telemetry.hooks import Hooks, Trouble

_CHECK_S: Final = 10.0
"""Limit of the time for one sink's check, in seconds."""

_log = structlog.get_logger(__name__)


async def check_sinks(sinks: Mapping[str, object], hooks: Hooks) -> None:
    """Check the destination of each sink, before the first partition is claimed.

    A destination that may come back, such as an unmounted volume or another cluster, is only reported; it is checked
    again with each partition. Each check takes at most ``_CHECK_S`` seconds. Raises ConfigError for one that can never
    be used, such as a path of another group.
    """
    for name, sink in sinks.items():
        if isinstance(sink, CheckedSink):
            try:
                async with timeout(_CHECK_S):
                    await sink.check()
            except RetriableSinkError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"its destination has not answered within {_CHECK_S:.0f} s"
            else:
                continue
            _log.warning("sink_not_ready", sink=name, reason=reason)
            hooks.trouble(Trouble.SINK_NOT_READY, f"sink {name}: {reason}")
