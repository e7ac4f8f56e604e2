# SPDX-License-Identifier: Apache-2.0
"""First look at the destinations of a process's sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from consumerd.aio.timeouts import timeout
from consumerd.errors import RetriableSinkError
from consumerd.sinks.base import CheckedSink
from consumerd.telemetry.hooks import Hooks, Trouble

_CHECK_S: Final = 10.0

_log = structlog.get_logger(__name__)


async def check_sinks(sinks: Mapping[str, object], hooks: Hooks) -> None:
    """Look at each destination before the first partition is claimed.

    A destination that may come back (a volume that is not mounted) is told and tried again with each partition. Bounded.
    Raises ConfigError for one that is somebody else's.
    """
    for name, sink in sinks.items():
        if isinstance(sink, CheckedSink):
            try:
                async with timeout(_CHECK_S):
                    await sink.check()
            except RetriableSinkError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"no answer from its path within {_CHECK_S:.0f} s"
            else:
                continue
            _log.warning("sink_not_ready", sink=name, reason=reason)
            hooks.trouble(Trouble.SINK_NOT_READY, f"sink {name}: {reason}")
