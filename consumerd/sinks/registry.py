# SPDX-License-Identifier: Apache-2.0
"""Registry of sinks: the installed entry points of the group ``consumerd.sinks``.

Another distribution adds a sink by an entry point of that group, which names a class with the interface
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
"""Modules that only an extra of this package installs, with the extra."""


class SinkFactory(Protocol):
    """A class of sinks, as the registry returns it; calling it makes a sink.

    ``Options`` is the model of the sink's settings, without the key ``type``. The class may have an attribute
    ``LIBRARY_BYTES``: the least and the most memory that its libraries take, in bytes. The memory budget reserves it.
    """

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 - a class within the class
        """Pydantic model of the sink's settings."""

    def __call__(self, context: SinkContext, options: BaseModel, /) -> Sink:
        """Make a sink, without IO."""


def sink_types() -> list[str]:
    """Return the names of all installed types of sinks, such as ``parquet``, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_sink(type_name: str) -> SinkFactory:
    """Return the class of sinks of a type, such as ``parquet``.

    Raises ConfigError if the type is not installed.
    """
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
