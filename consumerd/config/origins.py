# SPDX-License-Identifier: Apache-2.0
"""Origins of settings: the source, file and line that sets a key.

Each source (command line, environment, files, defaults of a container image) is read into one ``Layer``. ``Layers``
orders them by precedence, highest first. Error messages and the list of ``check-config`` use ``Layers.find`` to name
the origin of a key.

Example: ``config.yaml`` has ``group: {id: lake}`` in line 2, and ``--set group.id=try`` is given. ``find(("group",
"id"))`` returns ``--set group.id``. ``find(("group",))`` returns ``--set group.id`` as well: the command line is the
first layer that sets a key in the section ``group``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]
DEFAULT = "default"
"""Origin of a setting that no source sets."""


def render_key(path: KeyPath) -> str:
    """Return the path of a setting's key as messages show it, such as ``subscriptions.0.sink``."""
    return ".".join(str(part) for part in path) or "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in the settings, described for the user.

    Attributes:
        text: Description of the mistake, with a remedy.
        path: Key that has the mistake; empty if it concerns no single key.
        missing: True if the mistake is that the key is missing.
    """

    text: str
    path: KeyPath = ()
    missing: bool = False
    explains: tuple[KeyPath, ...] = ()
    """Keys that this mistake was probably meant to set. They are not reported as missing too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Named warning about settings that are valid but probably not meant."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Settings of one source, such as a YAML file or the command line.

    Args:
        name: Name of the source as a whole, in messages.
        values: Settings, nested.
        places: Text that tells where each key is set, such as a file and line. All parts of a path are texts here, also
            the indexes of lists.
        problems: Mistakes in the source itself, such as a key given twice.
        doubts: Warnings about the source itself.
    """

    name: str
    values: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    doubts: Sequence[Doubt] = ()

    def find(self, path: KeyPath) -> str | None:
        """Return the file and line, option or variable that sets a key in this source.

        None if the source does not set it. Keys inside a value that is given as a whole have the origin of that value.
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
    """Settings of all sources, in order of precedence, highest first."""

    ordered: Sequence[Layer]

    def find(self, path: KeyPath) -> str | None:
        """Return the origin of a key's value: a file and line, option or variable.

        None means that the value is a default.
        """
        if not path:
            return None
        return next((place for one in self.ordered if (place := one.find(path)) is not None), None)

    def locate(self, *paths: KeyPath) -> str:
        """Return the origins of keys in brackets, to end a message.

        Example: ``(config.yaml, line 2)``.

        If none of the keys is set, the result is the origin of the section, sink or topic that contains the first key.
        If that is not set either, the result is empty.
        """
        places = dict.fromkeys(place for path in paths if (place := self.find(path)) is not None)
        if not places and paths and len(paths[0]) > 1:
            return self.locate(paths[0][:-1])
        return f" ({' and '.join(places)})" if places else ""

    def locate_message(self, message: str) -> str:
        """Append to a message the origin of the key that it begins with.

        Example: ``sinks.lake.path: ...`` gets the place where ``sinks.lake.path`` is set. A message that does not begin
        with a key is returned unchanged.
        """
        key, separator, _ = message.partition(": ")
        if not separator or " " in key:
            return message
        return f"{message}{self.locate(tuple(key.split('.')))}"

    @property
    def problems(self) -> list[Problem]:
        """Mistakes found while reading the sources; those of files come first."""
        return [problem for one in reversed(self.ordered) for problem in one.problems]

    @property
    def doubts(self) -> list[Doubt]:
        """Warnings that were found while reading the sources."""
        return [doubt for one in reversed(self.ordered) for doubt in one.doubts]


def select_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Return the mistakes to report.

    Each text is reported once. A missing key is left out if another mistake explains it.
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
