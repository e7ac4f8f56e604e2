# SPDX-License-Identifier: Apache-2.0
"""Types of the fields of decoded records, in Spark's DDL notation. Pure.

::

    boolean | int | bigint | float | double | string | binary | date
    decimal(PRECISION,SCALE)
    timestamp           a point in time
    timestamp_ntz       a date and time of day without a time zone
    epoch_s | epoch_ms | epoch_us
                        a point in time, written as a number since 1970
    array<TYPE> | map<string,TYPE> | struct<NAME:TYPE,...>

``not null`` after a type makes records without a value bad records. Names that are no plain words stand in backquotes.
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
    """The text is not a type; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """A type; ``kind`` is one of ``SCALARS``, ``decimal``, ``array``, ``map`` or ``struct``.

    ``element`` is the type of an array's or map's values; ``fields`` are a struct's, in order; ``required`` is ``not
    null``.
    """

    kind: str
    required: bool = False
    precision: int = 0
    scale: int = 0
    element: FieldType | None = None
    fields: tuple[tuple[str, FieldType], ...] = ()


def parse_type(text: str) -> FieldType:
    """Parse a type. Raises MalformedType."""
    reader = _Reader(text)
    found = reader.read_type(0)
    reader.expect_end()
    return found


def find_name_clash(names: list[str]) -> str | None:
    """Return a name that equals another one but for case, or None.

    Spark does not distinguish such names.
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
        word = self._word().lower()
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
        precision = self._number()
        self._mark(",")
        scale = self._number()
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
        match = self._next("a field's name")
        name = match["word"] or match["name"]
        if name is None:
            raise MalformedType(f"expected a field's name at {match[0].strip()!r}")
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

    def _word(self) -> str:
        match = self._next("a type")
        if match["word"] is None:
            raise MalformedType(f"expected a type at {match[0].strip()!r}")
        return match["word"]

    def _number(self) -> int:
        match = self._next("a number")
        if match["number"] is None:
            raise MalformedType(f"expected a number at {match[0].strip()!r}")
        return int(match["number"])

    def _mark(self, mark: str) -> None:
        if not self._take_mark(mark):
            rest = self._text[self._at :].strip()
            raise MalformedType(f"expected {mark!r} at {rest!r}" if rest else f"expected {mark!r} at the end")

    def _take_mark(self, mark: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match["mark"] != mark:
            return False
        self._at = match.end()
        return True

    def _next(self, what: str) -> re.Match[str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :].strip()
            raise MalformedType(f"expected {what} at {rest!r}" if rest else f"expected {what} at the end")
        self._at = match.end()
        return match
