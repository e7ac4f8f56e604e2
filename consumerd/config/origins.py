# SPDX-License-Identifier: Apache-2.0
"""Origins of settings: the source, file and line that sets a key.

Each source (command line, environment, files, defaults of an image) is read into one ``Layer``. ``Layers`` orders them
by precedence, highest first. Error messages and the list of ``check-config`` use ``Layers.find`` to name the origin of
a key.

Example: ``config.yaml`` has ``group: {id: lake}`` in line 2, and ``--set group.id=try`` is given. ``find(("group",
"id"))`` is ``--set group.id``. ``find(("group",))`` is the same, since the command line is the first layer that sets
something below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]
DEFAULT = "default"
"""Origin of a setting that no source sets."""


def render_key(path: KeyPath) -> str:
    """Return a path as messages show it, such as ``subscriptions.0.sink``."""
    return ".".join(str(part) for part in path) or "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake, described for the user."""

    text: str
    path: KeyPath = ()
    missing: bool = False
    explains: tuple[KeyPath, ...] = ()
    """Keys that this mistake was probably meant to set. They are not reported as missing too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A named warning: settings that are valid but probably not meant."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One source of settings.

    Args:
        name: Name of the source as a whole in messages.
        values: The settings, nested.
        places: The place where each key is set. All parts of a path are texts here, also the indexes of lists.
        problems: Mistakes in the source itself, such as a key given twice.
        doubts: Warnings about the source itself.
    """

    name: str
    values: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    doubts: Sequence[Doubt] = ()

    def find(self, path: KeyPath) -> str | None:
        """Return the place where this layer sets ``path``, or None.

        Keys inside a value that is given as a whole have the place of that value.
        """
        if not _is_set(self.values, path):
            return None
        known = tuple(str(part) for part in path)
        if known in self.places:
            return self.places[known]
        below = next((place for one, place in self.places.items() if one[: len(known)] == known), None)
        while known and known not in self.places:
            known = known[:-1]
        return self.places.get(known) or below or self.name


@dataclass(frozen=True, slots=True)
class Layers:
    """All sources in order of precedence, highest first."""

    ordered: Sequence[Layer]

    def find(self, path: KeyPath) -> str | None:
        """Return the origin of the value of ``path``, or None for a default."""
        if not path:
            return None
        return next((place for one in self.ordered if (place := one.find(path)) is not None), None)

    def locate(self, *paths: KeyPath) -> str:
        """Return the places of ``paths`` in brackets, to end a message with.

        If none of them is set, this is the place of the section, sink or topic that contains the first one; empty if
        that is a default too.
        """
        places = dict.fromkeys(place for path in paths if (place := self.find(path)) is not None)
        if not places and paths and len(paths[0]) > 1:
            return self.locate(paths[0][:-1])
        return f" ({' and '.join(places)})" if places else ""

    def locate_message(self, message: str) -> str:
        """Append the place of the key that begins a message, such as ``sinks.lake.path: ...``."""
        key, separator, _ = message.partition(": ")
        if not separator or " " in key:
            return message
        return f"{message}{self.locate(tuple(key.split('.')))}"

    @property
    def problems(self) -> list[Problem]:
        """Mistakes in the sources themselves; those of files come first."""
        return [problem for one in reversed(self.ordered) for problem in one.problems]

    @property
    def doubts(self) -> list[Doubt]:
        """Warnings about the sources themselves."""
        return [doubt for one in reversed(self.ordered) for doubt in one.doubts]


def select_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems to report.

    Each text is reported once. A missing key is left out if another problem explains it.
    """
    explained = [path for problem in problems for path in problem.explains]
    reported: dict[str, Problem] = {}
    for problem in problems:
        is_explained = problem.missing and any(problem.path[: len(path)] == path for path in explained)
        if not is_explained:
            reported.setdefault(problem.text, problem)
    return list(reported.values())


def _is_set(value: object, path: KeyPath) -> bool:
    for part in path:
        if isinstance(value, Mapping):
            if part not in value:
                return False
            value = value[part]
        elif isinstance(value, (list, tuple)):
            # pydantic gives indexes as numbers, messages as texts
            if not str(part).isdigit() or int(part) >= len(value):
                return False
            value = value[int(part)]
        else:
            return False
    return True
