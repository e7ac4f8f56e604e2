# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for declared messages: any value that a version can say, or values chosen to hurt."""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st

from consumerd.wire.declaration import (
    BYTES,
    RECORDS,
    UUID,
    ArrayOf,
    Fixed,
    Null,
    Unwrapped,
    Variable,
    WireType,
    declaration_of,
)


@dataclass(frozen=True, eq=False)
class Values:
    """Strategies of the values in a message; ``edges`` are numbers drawn where a field is wide enough, else any."""

    texts: st.SearchStrategy[str]
    records: st.SearchStrategy[bytes]
    edges: tuple[int, ...] = ()


_ANY: Final = Values(texts=st.text(st.characters(codec="utf-8"), max_size=12), records=st.binary(max_size=40))


@cache
def messages(cls: type, version: int, values: Values = _ANY) -> st.SearchStrategy[Any]:
    """Return a strategy of instances of ``cls`` in which every field that ``version`` has is drawn."""
    drawn = {}
    for one in dataclasses.fields(cls):
        declaration = declaration_of(one)
        if version in declaration.versions:
            drawn[one.name] = _draw(declaration.wire, version, declaration.null(version), values)
    return st.builds(cls, **drawn)


def _draw(wire: WireType, version: int, null: Null, values: Values) -> st.SearchStrategy[Any]:
    drawn: st.SearchStrategy[Any]
    if isinstance(wire, Fixed):
        return _numbers(wire, values.edges)
    if isinstance(wire, Variable):
        drawn = _variable(wire, values)
    else:
        drawn = _arrays(wire, version, 1 if null is Null.EMPTY else 0, values)
    return drawn if null is Null.FORBIDDEN else st.none() | drawn


def _variable(wire: Variable, values: Values) -> st.SearchStrategy[Any]:
    if wire is UUID:
        return st.uuids(allow_nil=True)
    return st.binary(max_size=40) if wire is BYTES else values.records if wire is RECORDS else values.texts


def _numbers(wire: Fixed, edges: tuple[int, ...]) -> st.SearchStrategy[Any]:
    if wire.code == "?":
        return st.booleans()
    bits = 8 * struct.calcsize(f">{wire.code}")
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    within = sorted({least, most, *(edge for edge in edges if least <= edge <= most)})
    return st.sampled_from(within) if edges else st.integers(least, most)


def _arrays(wire: ArrayOf, version: int, least: int, values: Values) -> st.SearchStrategy[Any]:
    element = wire.element
    if isinstance(element, Fixed | Variable):
        items = _draw(element, version, Null.FORBIDDEN, values)
    elif isinstance(element, Unwrapped):
        name = element.field
        items = messages(element.message, version, values).map(lambda one: getattr(one, name))
    else:
        items = messages(element, version, values)
    return st.lists(items, min_size=least, max_size=4).map(tuple)
