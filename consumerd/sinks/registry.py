# SPDX-License-Identifier: Apache-2.0
"""Finds sinks by name among what is installed: the entry-point group ``consumerd.sinks``.

Another distribution adds a sink by an entry point of that group which names a class with the two attributes of
:class:`SinkFactory`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final, Protocol

from pydantic import BaseModel

from consumerd.errors import ConfigError
from consumerd.installation import install_command
from consumerd.sinks.base import Sink, SinkContext

GROUP: Final = "consumerd.sinks"
_EXTRAS: Final = {"pyarrow": "parquet"}
"""Modules that only an extra brings, and which."""


class SinkFactory(Protocol):
    """A class of sinks. ``Options`` is the model of its settings, without ``type``.

    It may have two numbers ``LIBRARY_BYTES``: the least and the most that its libraries take in memory, to be set aside
    from the budget.
    """

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 - a class within the class
        """The model of the settings."""

    def __call__(self, context: SinkContext, options: BaseModel, /) -> Sink:
        """Make a sink; does no IO."""


def sink_types() -> list[str]:
    """Return the names of all sinks that are installed, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_sink(type_name: str) -> SinkFactory:
    """Return the class of sinks of that name. Raises ConfigError."""
    points = entry_points(group=GROUP, name=type_name)
    if not points:
        raise ConfigError(f"there is no sink {type_name!r}; there is {', '.join(sink_types())}")
    try:
        factory: SinkFactory = next(iter(points)).load()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise ConfigError(f"sink {type_name!r} cannot be loaded: {error}") from error
        raise ConfigError(
            f"sink {type_name!r} needs {error.name}, which is not installed: {install_command(extra)}"
        ) from error
    return factory
