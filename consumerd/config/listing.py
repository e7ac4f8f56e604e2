# SPDX-License-Identifier: Apache-2.0
"""The effective settings as a list of key, value and origin, for ``check-config``.

Secrets are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, SecretStr

from consumerd.config.load import Loaded
from consumerd.config.origins import DEFAULT, KeyPath, render_key

HIDDEN: Final = "(not shown)"
"""Text shown instead of a secret."""
_SECRET_NAME: Final = re.compile(
    r"password(?!_file$)|passwd|secret|token|credential$|access[._-]?key|api[._-]?key", re.IGNORECASE
)
"""Names of options, of foreign sinks and of Spark, whose values are secrets."""
_URL_PASSWORD: Final = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """One setting in effect, as ``check-config`` lists it.

    Attributes:
        key: Key with its sections, such as ``group.id``.
        origin: Source that sets it, such as a file and line, or ``default``.
    """

    key: str
    value: object
    origin: str


def list_effective(loaded: Loaded) -> list[Effective]:
    """Return all settings, defaults included, in the order of ``config.example.yaml``."""
    values: dict[str, object] = {name: getattr(loaded.settings, name) for name in type(loaded.settings).model_fields}
    # a sink's own type knows its options and their defaults
    values["sinks"] = {
        name: {"type": sink.type, **_fields(loaded.sinks[name]), "memory_share": sink.memory_share}
        for name, sink in loaded.settings.sinks.items()
    }
    found = []
    for path, value in _walk((), values):
        origin = loaded.layers.find(path) or DEFAULT
        found.append(Effective(key=render_key(path), value=_show(path, value), origin=origin))
    return found


def list_shown(loaded: Loaded) -> list[Effective]:
    """Return the settings that ``check-config`` lists.

    Settings of pipeline jobs are left out unless one of them is set.
    """
    everything = list_effective(loaded)
    has_pipeline = loaded.layers.find(("pipeline",)) is not None
    return [one for one in everything if has_pipeline or not one.key.startswith("pipeline.")]


def render_value(value: object) -> str:
    """Return the value of a setting in YAML notation."""
    return value if isinstance(value, str) and value != "" else json.dumps(value, ensure_ascii=False)


def _walk(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, BaseModel):
        value = _fields(value)
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _walk((*path, name), inner)
    elif isinstance(value, (tuple, list)) and any(isinstance(one, BaseModel) for one in value):
        for index, inner in enumerate(value):
            yield from _walk((*path, index), inner)
    else:
        yield path, value


def _fields(model: BaseModel) -> dict[str, object]:
    """Return all values of a model, including extra fields."""
    return {name: getattr(model, name) for name in type(model).model_fields} | dict(model.model_extra or {})


def _show(path: KeyPath, value: object) -> object:
    is_plain = value is None or isinstance(value, bool)
    if isinstance(value, SecretStr) or (not is_plain and _SECRET_NAME.search(str(path[-1]))):
        return HIDDEN
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_show(path, one) for one in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _show((*path, str(key)), one) for key, one in value.items()}
    text = str(value) if not isinstance(value, Path) else value.as_posix()
    return _URL_PASSWORD.sub(f"{HIDDEN}@", text)
