"""Hypothesis strategies for declared messages: any value that a version can say."""

from __future__ import annotations

import dataclasses
import struct
from functools import cache
from typing import Any

from hypothesis import strategies as st

from consumerd.wire.declaration import BYTES, RECORDS, ArrayOf, Fixed, Null, Variable, WireType, declaration_of


@cache
def messages(cls: type, version: int) -> st.SearchStrategy[Any]:
    """Return a strategy of instances of ``cls`` in which every field that ``version`` has is drawn."""
    drawn = {}
    for one in dataclasses.fields(cls):
        declaration = declaration_of(one)
        if version in declaration.versions:
            drawn[one.name] = _values(declaration.wire, version, declaration.null(version))
    return st.builds(cls, **drawn)


def _values(wire: WireType, version: int, null: Null) -> st.SearchStrategy[Any]:
    values: st.SearchStrategy[Any]
    if isinstance(wire, Fixed):
        return _numbers(wire)
    if isinstance(wire, Variable):
        values = (
            st.binary(max_size=40) if wire in (BYTES, RECORDS) else st.text(st.characters(codec="utf-8"), max_size=12)
        )
    else:
        values = _arrays(wire, version, least=1 if null is Null.EMPTY else 0)
    return values if null is Null.FORBIDDEN else st.none() | values


def _numbers(wire: Fixed) -> st.SearchStrategy[Any]:
    if wire.code == "?":
        return st.booleans()
    bits = 8 * struct.calcsize(f">{wire.code}")
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _arrays(wire: ArrayOf, version: int, least: int) -> st.SearchStrategy[Any]:
    element = wire.element
    if isinstance(element, Fixed | Variable):
        items = _values(element, version, Null.FORBIDDEN)
    else:
        items = messages(element, version)
    return st.lists(items, min_size=least, max_size=4).map(tuple)
