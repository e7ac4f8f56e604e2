# SPDX-License-Identifier: Apache-2.0
"""Settings from a YAML file, with the line of each key.

A key that is given twice is an error; in plain YAML, the last one would win.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from consumerd.config.origins import Layer, Problem
from consumerd.errors import ConfigError

_MERGE_KEY: Final = "<<"
_HINTS: Final = {
    "found character '\\t' that cannot start any token": "a tab: indent with spaces",
    "found unhashable key": "a key that is a list or has keys itself: write a name",
    "but found another document": "a second document begins here (---): one file holds one",
    "mapping values are not allowed here": "a colon where no key can stand: check indentation, quote texts with ': '",
}
"""The parser's messages for frequent mistakes, and our words for them."""


def read_yaml(path: Path) -> Layer:
    """Return the settings of a YAML file, with the line of each key.

    A key that is given twice is in the result's ``problems``. If a section is given twice, the keys of both are read,
    so that none of them is reported as missing. Raises ConfigError if the file cannot be read, or is not a YAML
    mapping.
    """
    document = _Document(path)
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if node is not None:
            document.mark(node)
        values = None if node is None else loader.construct_document(node)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8: save it as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        problem = str(getattr(error, "problem", None) or error)
        raise ConfigError(f"{where}: not YAML: {_HINTS.get(problem, problem)}") from None
    except ValueError as error:  # an impossible date or number
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections (cluster:, group:, ...), got {type(values).__name__}")
    for key in [key for key in values if not isinstance(key, str)]:
        document.report(str(key).lower(), f"expected the name of a section, got {key!r}")
        del values[key]
    # a section whose keys are all commented out sets nothing
    given = {key: value for key, value in values.items() if value is not None}
    return Layer(name=str(path), values=given, places=document.places, problems=document.problems)


class _Document:
    """The line of each key of one file."""

    def __init__(self, path: Path) -> None:
        self.places: dict[tuple[str, ...], str] = {}
        self.problems: list[Problem] = []
        self._path = path
        self._open: set[int] = set()
        """Nodes that contain the current one. An alias may refer to one of them."""

    def mark(self, node: yaml.Node, path: tuple[str, ...] = ()) -> None:
        """Record the line of each key below ``node``, and merge duplicate sections."""
        if id(node) in self._open:
            line = node.start_mark.line + 1
            raise ConfigError(
                f"{self._path}, line {line}: not YAML that can be read: an alias (*) within what it names"
            )
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self._join_twins(node, path)
        for key, inner in _children(node):
            below = (*path, key.value if isinstance(key, yaml.ScalarNode) else str(key))
            start = key.start_mark if isinstance(key, yaml.Node) else inner.start_mark
            self.places.setdefault(below, f"{self._path}, line {start.line + 1}")
            self.mark(inner, below)
        self._open.discard(id(node))

    def report(self, key: str, message: str) -> None:
        """Add a problem with a key."""
        place = self.places.get((key,), str(self._path))
        self.problems.append(Problem(text=f"{key}: {message} ({place})"))

    def _join_twins(self, node: yaml.MappingNode, path: tuple[str, ...]) -> None:
        first: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        kept = []
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or name == _MERGE_KEY or name not in first:
                kept.append((key, value))
                if name is not None:
                    first[name] = (key, value)
                continue
            earlier, at_first = first[name]
            what = "section" if not path else "key"
            self.problems.append(
                Problem(
                    text=f"{'.'.join((*path, name))}: the {what} is given twice, in lines {_line(earlier)} and "
                    f"{_line(key)} of {self._path}: join them, or remove one"
                )
            )
            if isinstance(at_first, yaml.MappingNode) and isinstance(value, yaml.MappingNode):
                names = {one.value for one, _ in at_first.value}
                at_first.value += [(one, inner) for one, inner in value.value if one.value not in names]
        node.value = kept


def _line(node: yaml.Node) -> int:
    """Return the line at which a node starts, counted from 1 as in editors."""
    return int(node.start_mark.line) + 1


def _children(node: yaml.Node) -> Iterator[tuple[yaml.Node | int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from node.value
    elif isinstance(node, yaml.SequenceNode):
        yield from enumerate(node.value)
