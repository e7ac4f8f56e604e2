# SPDX-License-Identifier: Apache-2.0
"""The sinks of one process: whether their settings go together, and a first look at where they lead."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from consumerd.aio.timeouts import timeout
from consumerd.config.settings import Settings
from consumerd.errors import ConfigError, RetriableSinkError
from consumerd.sinks.base import CheckedSink
from consumerd.sinks.options import ChainOptions
from consumerd.sinks.registry import load_sink
from consumerd.telemetry.hooks import Hooks, Trouble

_CHECK_S: Final = 10.0

_log = structlog.get_logger(__name__)


def check_paths(settings: Settings) -> None:
    """Refuse sinks whose paths are one, or lie within each other, and a quarantine in one or around one: each takes what is
    below its path for its own.

    Symbolic links are followed. Raises ConfigError.
    """
    paths: dict[str, tuple[str, Path]] = {}
    for name, chosen in sorted(settings.sinks.items()):
        options = load_sink(chosen.type).Options.model_validate(chosen.options)
        if isinstance(options, ChainOptions):
            paths[f"sinks.{name}.path"] = f"sink {name!r}", options.path.resolve()
    if settings.quarantine.path is not None:
        paths["quarantine.path"] = "the quarantine", settings.quarantine.path.resolve()
    order = list(paths)
    for (one, (owner, outer)), (other, (_, inner)) in itertools.permutations(paths.items(), 2):
        if inner.is_relative_to(outer) and (inner != outer or order.index(one) < order.index(other)):
            relation = "is" if inner == outer else "lies within"
            raise ConfigError(
                f"{other}: {inner} {relation} the path of {owner}: give each a path of its own, beside the other's"
            )


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
