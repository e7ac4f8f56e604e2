# SPDX-License-Identifier: Apache-2.0
"""How a message is declared: wire types, the versions that have a field, and the dataclass made of both.

A message is one class for all its versions::

    @message
    class FetchPartition:
        partition: int = field(INT32)
        current_leader_epoch: int = field(INT32, "9+", default=-1)
        fetch_offset: int = field(INT64)

The fields stand in the order of the protocol guide, each with its wire type and the versions that have it, written as
in Kafka's own message definitions: ``"0+"`` (what is meant when nothing is said), ``"1-3"``, ``"0"``, ``"none"``. A
class that is the element of an array has the version of the message around it. What is made of a declaration is
``wire.schema``'s.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast, dataclass_transform

from consumerd.wire import primitives
from consumerd.wire.primitives import Read, Write

T = TypeVar("T")

# -- versions


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions that have a field, as an inclusive range; ``last`` None means all that follow, too."""

    first: int
    last: int | None

    def __contains__(self, version: int) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Read ``"3"``, ``"3+"``, ``"3-5"`` or ``"none"``; raises ValueError."""
        if text == "none":
            return cls(0, -1)
        match = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
        if match is None:
            raise ValueError(f"versions {text!r}: expected N, N+, N-M or none")
        first = int(match[1])
        if match[2]:
            return cls(first, None)
        return cls(first, int(match[3] or first))


# -- wire types


class Null(enum.Enum):
    """How a field says None in a version."""

    FORBIDDEN = "forbidden"
    MARKED = "marked"
    """By the length -1."""
    EMPTY = "empty"
    """By an array of no elements, which therefore cannot say "no elements"."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number of fixed width; ``code`` is its ``struct`` character."""

    code: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A string or bytes: a length, then so many bytes."""

    length_bytes: int
    reader: Callable[..., Read]
    writer: Callable[..., Write]


INT8: Final = Fixed("b")
INT16: Final = Fixed("h")
INT32: Final = Fixed("i")
INT64: Final = Fixed("q")
BOOLEAN: Final = Fixed("?")
"""Any byte but 0 is true."""

STRING: Final = Variable(2, primitives.string_reader, primitives.string_writer)
BYTES: Final = Variable(4, primitives.bytes_reader, primitives.bytes_writer)
RECORDS: Final = Variable(4, primitives.view_reader, primitives.bytes_writer)
"""A record set: a memoryview into the frame, which lives as long as the view does."""


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array, decoded as a tuple, of numbers, of strings, or of a declared message."""

    element: Fixed | Variable | type


WireType = Fixed | Variable | ArrayOf

# -- declaration

_METADATA_KEY: Final = "consumerd.wire"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What :func:`field` was told of a field."""

    wire: WireType
    versions: Versions
    nullable: Versions
    none_is_empty: Versions

    def null(self, version: int) -> Null:
        """Return how None is encoded in a version of the message."""
        if version in self.nullable:
            return Null.MARKED
        return Null.EMPTY if version in self.none_is_empty else Null.FORBIDDEN


def field(
    wire: WireType,
    versions: str = "0+",
    *,
    default: Any = dataclasses.MISSING,
    nullable: str = "none",
    none_is_empty: str = "none",
) -> Any:
    """Declare a field: its wire type, the versions that have it, and its value in those that do not.

    ``nullable`` are the versions in which None is a value of its own (length -1), ``none_is_empty`` those in which an
    empty array says None. Raises TypeError for a field that some version lacks and that has no default, and for a type
    that cannot be null in that way.
    """
    numbers = isinstance(wire, Fixed) or (isinstance(wire, ArrayOf) and isinstance(wire.element, Fixed))
    if (numbers and (nullable, none_is_empty) != ("none", "none")) or (
        none_is_empty != "none" and not isinstance(wire, ArrayOf)
    ):
        raise TypeError(f"{wire} cannot say None like this")
    declaration = Declaration(wire, *map(Versions.parse, (versions, nullable, none_is_empty)))
    if default is dataclasses.MISSING and versions != "0+":
        raise TypeError(f"a field of versions {versions} needs a default for the others")
    return dataclasses.field(default=default, metadata={_METADATA_KEY: declaration})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen, slotted, keyword-only dataclass whose fields were all declared with :func:`field`."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    for one in dataclasses.fields(cast("Any", made)):
        if _METADATA_KEY not in one.metadata:
            raise TypeError(f"{cls.__name__}.{one.name} is not declared with field()")
    return made


def declaration_of(one: dataclasses.Field[Any]) -> Declaration:
    """Return what :func:`field` was told of a field."""
    return cast("Declaration", one.metadata[_METADATA_KEY])
