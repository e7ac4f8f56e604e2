# SPDX-License-Identifier: Apache-2.0
"""Lookup of keys in the settings models: known keys, similar keys, types of values."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from consumerd.config.origins import KeyPath

_CLOSE: Final = 0.72
"""Similarity, from 0 to 1, from which a name counts as a misspelling of another."""
_ZOOKEEPER: Final[KeyPath] = ("cluster", "zookeeper")
_OTHER_NAMES: Final[Mapping[str, KeyPath]] = {
    "bootstrap_servers": _ZOOKEEPER, "brokers": _ZOOKEEPER, "hosts": _ZOOKEEPER, "servers": _ZOOKEEPER,
    "connect": _ZOOKEEPER, "zookeeper_connect": _ZOOKEEPER, "group_id": ("group", "id"),
}  # fmt: skip
"""Names that other programs use for our keys."""


def guess(word: str, choices: Iterable[str], *, cutoff: float = _CLOSE) -> str | None:
    """Return the choice that ``word`` is probably a misspelling of; None if none is similar.

    Args:
        cutoff: Similarity, from 0 to 1, that is needed.
    """
    known = {_plain(choice): choice for choice in choices}
    plain = _plain(word)
    if plain in known:
        return known[plain]
    return next((known[one] for one in difflib.get_close_matches(plain, known, n=1, cutoff=cutoff)), None)


def list_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Return the keys of the settings section that contains the key ``path``, sorted."""
    found = _model_in(_follow(model, path[:-1]))
    return [] if found is None else sorted(found.model_fields)


def list_leaves(model: type[BaseModel], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of all keys with fixed names in a settings model.

    A mapping by name (sinks, topics) is one key.
    """
    for name, field in model.model_fields.items():
        inner = find_section(field.annotation)
        if inner is None:
            yield (*prefix, name)
        else:
            yield from list_leaves(inner, (*prefix, name))


def takes_text(model: type[BaseModel], path: KeyPath) -> bool:
    """Return True if the value of this key is text.

    An environment variable for such a key keeps its text where YAML would read another type: ``12`` and ``0.10`` stay
    texts.
    """
    return any(one in (str, Path, SecretStr) for one in _alternatives(_follow(model, path)))


def is_secret(model: type[BaseModel], path: KeyPath) -> bool:
    """Return True if the value of this key must not be shown.

    The key holds a secret, or it names a section or a mapping that contains a secret, but has another kind of value by
    mistake.
    """
    annotation = _follow(model, path)
    section = _model_in(annotation)
    fields = section.model_fields.values() if section is not None else ()
    values = _step(annotation, "")  # of a mapping
    return any(SecretStr in _alternatives(one) for one in (annotation, values, *(field.annotation for field in fields)))


def find_elsewhere(model: type[BaseModel], path: KeyPath) -> KeyPath | None:
    """Return the key to suggest for an unknown one; None if there is none.

    The result is the key of the same name in another section. Or it is our key for a setting that another program, such
    as Kafka's Java consumer, calls by the unknown name.
    """
    name = str(path[-1])
    if name in _OTHER_NAMES and path[0] != "pipeline":
        return _OTHER_NAMES[name]
    # keys of the daemon and keys of the jobs are never suggested for one another
    same_kind = (leaf for leaf in list_leaves(model) if (leaf[0] == "pipeline") == (path[0] == "pipeline"))
    return next((leaf for leaf in same_kind if leaf[-1] == name), None)


def find_section(annotation: object) -> type[BaseModel] | None:
    """Return the model of a settings section, by the annotation of its field.

    None if the annotation is another type, or a collection of models.
    """
    return _model_in(annotation) if get_origin(_bare(annotation)) is None else None


def _follow(model: type[BaseModel], path: KeyPath) -> object:
    annotation: object = model
    for part in path:
        annotation = _step(annotation, part)
    return annotation


def _step(annotation: object, part: str | int) -> object:
    for one in _alternatives(annotation):
        if isinstance(one, type) and issubclass(one, BaseModel):
            field = one.model_fields.get(str(part))
            return field.annotation if field is not None else None
        arguments = get_args(one)
        if get_origin(one) in (dict, Mapping) and len(arguments) == 2:
            return arguments[1]
        if get_origin(one) in (tuple, list) and arguments:
            return arguments[0]
    return None


def _model_in(annotation: object) -> type[BaseModel] | None:
    return next(
        (one for one in _alternatives(annotation) if isinstance(one, type) and issubclass(one, BaseModel)), None
    )


def _alternatives(annotation: Any) -> list[object]:
    """Return the types that an annotation allows, without None."""
    bare = _bare(annotation)
    if get_origin(bare) in (Union, types.UnionType):
        return [each for one in get_args(bare) for each in _alternatives(one)]
    if get_origin(bare) is Literal:
        return [type(one) for one in get_args(bare)]
    return [] if bare is type(None) else [bare]


def _bare(annotation: Any) -> Any:
    return _bare(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def _plain(word: str) -> str:
    """Return a name in the form that spellings are compared in.

    Example: ``maxMessage-Bytes`` becomes ``maxmessagebytes``.
    """
    return "".join(one for one in word.lower() if one.isalnum())
