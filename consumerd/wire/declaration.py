# SPDX-License-Identifier: Apache-2.0
"""Declarations of messages: wire types, the versions that have a field, and the resulting dataclass.

One class declares all versions of a message::

    @message
    class FetchPartition:
        partition: int = field(INT32)
        current_leader_epoch: int = field(INT32, "9+", default=-1)
        fetch_offset: int = field(INT64)

Fields are in the order of the protocol guide. Each has its wire type and the versions that contain it, in the notation
of Kafka's own message definitions: ``"0+"`` (the default), ``"1-3"``, ``"0"``, ``"none"``. A class used as an array
element is read in the version of the enclosing message.

A message of a *flexible* version (KIP-482) has compact types, and tagged fields at its end. A request and its response
say which versions those are, ``@message(flexible="9+")``; messages inside them are read in the same form.

Example: version 8 of the class above is an int32 and an int64, and ``current_leader_epoch`` is -1 after decoding.
Version 9 is an int32, an int32 and an int64.

``wire.schema`` compiles readers and writers from these declarations.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast, dataclass_transform, overload

from consumerd.wire import primitives
from consumerd.wire.primitives import Read, Write

T = TypeVar("T")

# -- versions


@dataclass(frozen=True, slots=True)
class Versions:
    """Range of versions of a message, ``last`` included; ``last`` is None for ``"3+"``."""

    first: int
    last: int | None

    def __contains__(self, version: int) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse a range of versions: ``"3"``, ``"3+"``, ``"3-5"`` or ``"none"``. Raises ValueError."""
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
    """Encoding of None for a field of a message, in one version of the message."""

    FORBIDDEN = "forbidden"
    """The field is not nullable."""
    MARKED = "marked"
    """Null is encoded as the length -1."""
    EMPTY = "empty"
    """Null is encoded as an array without elements, so that an empty array cannot be expressed."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Wire type of a number of fixed width; ``code`` is its ``struct`` format character."""

    code: str


@dataclass(frozen=True, slots=True)
class Variable:
    """Wire type of a string, bytes or a UUID, in plain and compact form.

    ``least_bytes`` and ``compact_least_bytes`` are the sizes of the shortest value in bytes. The ``reader`` and
    ``writer`` fields are functions that make the reader or writer of one field.
    """

    least_bytes: int
    reader: Callable[..., Read]
    writer: Callable[..., Write]
    compact_least_bytes: int
    compact_reader: Callable[..., Read]
    compact_writer: Callable[..., Write]


INT8: Final = Fixed("b")
INT16: Final = Fixed("h")
INT32: Final = Fixed("i")
INT64: Final = Fixed("q")
BOOLEAN: Final = Fixed("?")
"""Wire type of a truth value, one byte. Every byte other than 0 is true."""

STRING: Final = Variable(
    2,
    primitives.string_reader,
    primitives.string_writer,
    1,
    primitives.compact_string_reader,
    primitives.compact_string_writer,
)
BYTES: Final = Variable(
    4,
    primitives.bytes_reader,
    primitives.bytes_writer,
    1,
    primitives.compact_bytes_reader,
    primitives.compact_bytes_writer,
)
RECORDS: Final = Variable(
    4,
    primitives.view_reader,
    primitives.bytes_writer,
    1,
    primitives.compact_view_reader,
    primitives.compact_bytes_writer,
)
"""A record set, decoded as a memoryview of the frame, which keeps the whole frame in memory."""
UUID: Final = Variable(
    primitives.UUID_BYTES,
    primitives.uuid_reader,
    primitives.uuid_writer,
    primitives.UUID_BYTES,
    primitives.uuid_reader,
    primitives.uuid_writer,
)
NO_UUID: Final = primitives.NO_UUID


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Wire type of a message of which the program sees only one field.

    The other fields of the message have their defaults. Example: up to version 8, Metadata names topics as strings;
    from version 9 on as messages with the field ``topic``. With ``Unwrapped(MetadataRequestTopic, "topic")`` both are
    strings in the program.
    """

    message: type
    field: str


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """Wire type of an array of numbers, strings or declared messages; decoded as a tuple."""

    element: Fixed | Variable | Unwrapped | type


WireType = Fixed | Variable | ArrayOf

# -- declaration

_METADATA_KEY: Final = "consumerd.wire"


@dataclass(frozen=True, slots=True)
class Declaration:
    """Declaration of one field of a message: the arguments of :func:`field`.

    ``nullable`` and ``none_is_empty`` are the versions in which None is encoded as length -1, or as an empty array.
    """

    wire: WireType
    versions: Versions
    nullable: Versions
    none_is_empty: Versions

    def null(self, version: int) -> Null:
        """Return the encoding of None in a version of the message."""
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
    """Declare a field of a message.

    Args:
        wire: its wire type.
        versions: versions of the message that contain the field.
        default: value in the versions that do not contain it.
        nullable: versions in which None is encoded as length -1.
        none_is_empty: versions in which None is encoded as an empty array.

    Raises TypeError for a field without default that some versions lack, and for a type that cannot be null as
    requested.
    """
    numbers = isinstance(wire, Fixed) or (isinstance(wire, ArrayOf) and isinstance(wire.element, Fixed))
    if ((numbers or wire is UUID) and (nullable, none_is_empty) != ("none", "none")) or (
        none_is_empty != "none" and not isinstance(wire, ArrayOf)
    ):
        raise TypeError(f"{wire} cannot say None like this")
    declaration = Declaration(wire, *map(Versions.parse, (versions, nullable, none_is_empty)))
    if default is dataclasses.MISSING and versions != "0+":
        raise TypeError(f"a field of versions {versions} needs a default for the others")
    return dataclasses.field(default=default, metadata={_METADATA_KEY: declaration})


@dataclass(frozen=True, slots=True)
class Flexibility:
    """The versions of a request or response that are flexible: with tagged fields (KIP-482)."""

    versions: Versions
    tagged_header: bool
    """True if the header of such a version has tagged fields too."""


_PLAIN: Final = Flexibility(Versions.parse("none"), tagged_header=False)
_FLEXIBILITY: Final = "flexibility_of_message"


@overload
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]: ...


@overload
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def message(*, flexible: str, tagged_header: bool = True) -> Callable[[type[T]], type[T]]: ...


def message(cls: type[T] | None = None, *, flexible: str = "none", tagged_header: bool = True) -> Any:
    """Make ``cls`` a frozen, slotted, keyword-only dataclass.

    Args:
        flexible: versions with compact types and tagged fields, of a request or of a response.
        tagged_header: True if the header of these versions has tagged fields; that of ApiVersions responses has none,
            because a client must be able to read them before it knows the broker's versions.

    Raises TypeError for an attribute that is not declared with :func:`field`.
    """

    def declare(declared: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(declared)
        for one in dataclasses.fields(cast("Any", made)):
            if _METADATA_KEY not in one.metadata:
                raise TypeError(f"{declared.__name__}.{one.name} is not declared with field()")
        setattr(made, _FLEXIBILITY, Flexibility(Versions.parse(flexible), tagged_header))
        return made

    return declare if cls is None else declare(cls)


def flexibility_of(cls: type) -> Flexibility:
    """Return the flexible versions with which :func:`message` declared the class ``cls``."""
    return cast("Flexibility", getattr(cls, _FLEXIBILITY, _PLAIN))


def declaration_of(one: dataclasses.Field[Any]) -> Declaration:
    """Return the arguments of :func:`field` by which a field of a message was declared."""
    return cast("Declaration", one.metadata[_METADATA_KEY])
