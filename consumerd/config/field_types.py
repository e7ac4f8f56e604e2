# SPDX-License-Identifier: Apache-2.0
"""Types of the fields of decoded records, in Spark's DDL notation. Pure.

::

    boolean | int | bigint | float | double | string | binary | date
    decimal(PRECISION,SCALE)
    timestamp           a point in time
    timestamp_ntz       a date and time of day without a time zone
    epoch_s | epoch_ms | epoch_us
                        a point in time, written as a number since 1970, in seconds, ms or microseconds
    array<TYPE> | map<string,TYPE> | struct<NAME:TYPE,...>

A record without a value in a field of a type ``not null`` is a bad record. Names that contain other characters than
letters, digits and ``_`` are put in backquotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

SCALARS: Final = frozenset(
    {
        "boolean",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
        "epoch_s",
        "epoch_ms",
        "epoch_us",
    }
)
_ALIASES: Final = {"integer": "int", "long": "bigint", "bool": "boolean"}
_LARGEST_PRECISION: Final = 38
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_][A-Za-z0-9_]*)|`(?P<name>[^`]+)`|(?P<number>[0-9]+)|(?P<mark>[<>:,()]))"
)
_DEEPEST: Final = 32


class MalformedType(ValueError):
    """Error for a text that is not a type; its message locates the mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """Type of a field of decoded records.

    Attributes:
        kind: One of ``SCALARS``, ``decimal``, ``array``, ``map`` or ``struct``.
        required: True for ``not null``.
        precision: Number of digits of a ``decimal``.
        scale: Number of digits after the point of a ``decimal``.
        element: Type of an array's or map's values; None for other kinds.
        fields: Names and types of a struct's fields, in order.
    """

    kind: str
    required: bool = False
    precision: int = 0
    scale: int = 0
    element: FieldType | None = None
    fields: tuple[tuple[str, FieldType], ...] = ()


def parse_type(text: str) -> FieldType:
    """Parse the type of a field in Spark's DDL notation, such as ``array<int>``. Raises MalformedType."""
    reader = _Reader(text)
    found = reader.read_type(0)
    reader.expect_end()
    return found


def find_name_clash(names: list[str]) -> str | None:
    """Return a field name that differs from another one in case only; None without one.

    Spark treats two such names as one.
    """
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            return name
        seen.add(name.lower())
    return None


class _Reader:
    """Parses the text of a type, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read_type(self, depth: int) -> FieldType:
        if depth > _DEEPEST:
            raise MalformedType(f"nested deeper than {_DEEPEST} levels")
        word = self._take("a type", "word").lower()
        kind = _ALIASES.get(word, word)
        if kind in SCALARS:
            return FieldType(kind=kind, required=self._not_null())
        if kind == "decimal":
            return self._decimal()
        if kind == "array":
            return self._array(depth)
        if kind == "map":
            return self._map(depth)
        if kind == "struct":
            return self._struct(depth)
        known = ", ".join(sorted({*SCALARS, "decimal(P,S)", "array<>", "map<string,>", "struct<>"}))
        raise MalformedType(f"{word!r} is no type; there is {known}")

    def expect_end(self) -> None:
        rest = self._text[self._at :].strip()
        if rest:
            before = self._text[: self._at].strip()
            raise MalformedType(f"{rest!r} stands behind the type {before}; only 'not null' may")

    def _decimal(self) -> FieldType:
        self._mark("(")
        precision = int(self._take("a number", "number"))
        self._mark(",")
        scale = int(self._take("a number", "number"))
        self._mark(")")
        if not 1 <= precision <= _LARGEST_PRECISION or scale > precision:
            raise MalformedType(
                f"decimal({precision},{scale}): expected a precision of 1 to {_LARGEST_PRECISION} and no larger scale"
            )
        return FieldType(kind="decimal", precision=precision, scale=scale, required=self._not_null())

    def _array(self, depth: int) -> FieldType:
        self._mark("<")
        element = self.read_type(depth + 1)
        self._mark(">")
        return FieldType(kind="array", element=element, required=self._not_null())

    def _map(self, depth: int) -> FieldType:
        self._mark("<")
        key = self.read_type(depth + 1)
        if key.kind != "string":
            raise MalformedType(f"map<{key.kind},...>: the keys of a map are of type string")
        self._mark(",")
        element = self.read_type(depth + 1)
        self._mark(">")
        return FieldType(kind="map", element=element, required=self._not_null())

    def _struct(self, depth: int) -> FieldType:
        self._mark("<")
        fields = [self._field(depth)]
        while self._take_mark(","):
            fields.append(self._field(depth))
        self._mark(">")
        if clash := find_name_clash([name for name, _ in fields]):
            raise MalformedType(f"field {clash!r} is there twice (Spark does not tell upper case from lower)")
        return FieldType(kind="struct", fields=tuple(fields), required=self._not_null())

    def _field(self, depth: int) -> tuple[str, FieldType]:
        name = self._take("a field's name", "word", "name")
        self._mark(":")
        return name, self.read_type(depth + 1)

    def _not_null(self) -> bool:
        at = self._at
        for wanted in ("not", "null"):
            match = _TOKEN.match(self._text, self._at)
            if match is None or (match["word"] or "").lower() != wanted:
                self._at = at
                return False
            self._at = match.end()
        return True

    def _mark(self, mark: str) -> None:
        if not self._take_mark(mark):
            raise self._expected(repr(mark))

    def _take_mark(self, mark: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match["mark"] != mark:
            return False
        self._at = match.end()
        return True

    def _take(self, what: str, *kinds: str) -> str:
        """Return the next token, which must be of one of the ``kinds``."""
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._expected(what)
        self._at = match.end()
        found = next((match[kind] for kind in kinds if match[kind] is not None), None)
        if found is None:
            raise MalformedType(f"expected {what} at {match[0].strip()!r}")
        return found

    def _expected(self, what: str) -> MalformedType:
        rest = self._text[self._at :].strip()
        return MalformedType(f"expected {what} at {rest!r}" if rest else f"expected {what} at the end")
