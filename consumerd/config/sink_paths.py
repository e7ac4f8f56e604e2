# SPDX-License-Identifier: Apache-2.0
"""Folders of the sinks that write files, and the check that they do not overlap."""

from __future__ import annotations

import itertools
from pathlib import Path

from consumerd.config.settings import Settings
from consumerd.errors import ConfigError
from consumerd.sinks.options import ChainOptions
from consumerd.sinks.registry import load_sink


def landing_options(settings: Settings) -> dict[str, ChainOptions]:
    """Return the options of each sink that writes files, by the sink's name. Raises ConfigError."""
    every = {
        name: load_sink(sink.type).Options.model_validate(sink.options) for name, sink in sorted(settings.sinks.items())
    }
    return {name: options for name, options in every.items() if isinstance(options, ChainOptions)}


def check_paths(settings: Settings) -> None:
    """Refuse folders of sinks and of the quarantine that are equal or nested. Raises ConfigError.

    Each sink treats everything below its folder as its own. Symbolic links are followed.
    """
    paths: dict[str, tuple[str, Path]] = {}
    for name, options in landing_options(settings).items():
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
