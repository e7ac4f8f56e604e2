"""Messages declared as dataclasses, and the codecs compiled from them.

A message is one class for all its versions::

    @message
    class FetchPartition:
        partition: int = field(INT32)
        current_leader_epoch: int = field(INT32, "9+", default=-1)
        fetch_offset: int = field(INT64)

The fields stand in the order of the protocol guide, each with its wire type and the versions that have it, written as
in Kafka's own message definitions: ``"0+"`` (the default), ``"1-3"``, ``"0"``, ``"none"``. A class that is the element
of an array has the version of the message around it.

Invariants:

- A field that a version lacks has its default after decoding; encoding anything but the default in such a version
  raises LocalProtocolError, so that nothing that was asked for is left out silently.
- :func:`codec_for` compiles once per class and version. Decoding returns or raises RemoteProtocolError with the byte
  position, whatever the bytes are; encoding returns or raises LocalProtocolError.
- A message must be read to its last byte: what is left over means that the two sides do not agree on the version.

How it is quick: reader and writer are generated as source, as ``dataclasses`` itself does, with neighbouring
fixed-width fields packed and unpacked by one ``struct``, and objects are filled through their slots, which takes less
than half of what a frozen dataclass's ``__init__`` takes. Nothing but names of declared fields goes into the source.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, cast, dataclass_transform

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire import primitives
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.primitives import Append, misfit, shortage

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Read = Callable[[memoryview, int, int], tuple[Any, int]]
"""``(data, at, end) -> (value, next)``; raises RemoteProtocolError."""

Write = Callable[[Any, Append], None]
"""``(value, append)``; raises LocalProtocolError."""


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


class WireType(Protocol):
    """What a field is on the wire: compiles to a reader and a writer."""

    def least_bytes(self, version: int) -> int:
        """Return the size of the shortest value, so that an array's length can be checked against its frame."""

    def compile_read(self, where: str, version: int, null: Null) -> Read:
        """Return the reader for one version; ``where`` names the field in errors."""

    def compile_write(self, where: str, version: int, null: Null) -> Write:
        """Return the writer for one version."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number of fixed width; ``code`` is its ``struct`` character."""

    code: str

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return struct.calcsize(f">{self.code}")


@dataclass(frozen=True, slots=True)
class Variable:
    """A string or bytes: a length, then so many bytes."""

    length_bytes: int
    read: Callable[..., tuple[Any, int]]
    write: Callable[..., None]

    def least_bytes(self, version: int) -> int:  # noqa: ARG002 - the same in every version
        """Return the size of the length."""
        return self.length_bytes

    def compile_read(self, where: str, version: int, null: Null) -> Read:  # noqa: ARG002 - the same in every version
        """Return the reader."""
        return functools.partial(self.read, where=where, nullable=null is Null.MARKED)

    def compile_write(self, where: str, version: int, null: Null) -> Write:  # noqa: ARG002 - the same in every version
        """Return the writer."""
        return functools.partial(self.write, where=where, nullable=null is Null.MARKED)


INT8: Final = Fixed("b")
INT16: Final = Fixed("h")
INT32: Final = Fixed("i")
INT64: Final = Fixed("q")
BOOLEAN: Final = Fixed("?")
"""Any byte but 0 is true."""

STRING: Final = Variable(2, primitives.read_string, primitives.write_string)
BYTES: Final = Variable(4, primitives.read_bytes, primitives.write_bytes)
"""Copied out of the frame."""
RECORDS: Final = Variable(4, primitives.read_view, primitives.write_bytes)
"""A record set: a memoryview into the frame, which lives as long as the view does."""


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array, decoded as a tuple, of numbers, of strings, or of a declared message."""

    element: Fixed | Variable | type

    def least_bytes(self, version: int) -> int:  # noqa: ARG002 - the same in every version
        """Return the size of the count."""
        return 4

    def compile_read(self, where: str, version: int, null: Null) -> Read:
        """Return the reader."""
        if isinstance(self.element, Fixed):
            return functools.partial(
                primitives.read_numbers, where=where, code=self.element.code, size=self.element.size
            )
        if isinstance(self.element, Variable):
            read_one = self.element.compile_read(where, version, Null.FORBIDDEN)
            item_bytes = self.element.least_bytes(version)
        else:
            codec: Codec[Any] = compile_codec(self.element, version)
            read_one, item_bytes = codec.read, codec.least_bytes
        marked, empty = null is Null.MARKED, null is Null.EMPTY

        def read(data: memoryview, at: int, end: int) -> tuple[tuple[Any, ...] | None, int]:
            count = primitives.read_int32_length(data, at, end, where, nullable=marked, item_bytes=item_bytes)
            at += 4
            if count < 0 or (empty and count == 0):
                return None, at
            items = []
            for _ in range(count):
                item, at = read_one(data, at, end)
                items.append(item)
            return tuple(items), at

        return read

    def compile_write(self, where: str, version: int, null: Null) -> Write:
        """Return the writer."""
        if isinstance(self.element, Fixed):
            return functools.partial(primitives.write_numbers, where=where, code=self.element.code)
        if isinstance(self.element, Variable):
            write_one = self.element.compile_write(where, version, Null.FORBIDDEN)
        else:
            write_one = compile_codec(self.element, version).write

        def write(values: Sequence[Any] | None, append: Append) -> None:
            if values is None:
                if null is Null.FORBIDDEN:
                    raise primitives.forbidden_null(where)
                length = primitives.NULL_LENGTH if null is Null.MARKED else 0
                primitives.write_length(length, append, where)
                return
            if null is Null.EMPTY and not values:
                raise LocalProtocolError(f"{where}: an empty array cannot be encoded in this version: it means None")
            primitives.write_length(len(values), append, where)
            for value in values:
                write_one(value, append)

        return write


# -- declaration


@dataclass(frozen=True, slots=True)
class _Declaration:
    """What :func:`field` was told."""

    wire: Fixed | Variable | ArrayOf
    versions: Versions
    nullable: Versions
    none_is_empty: Versions

    def null(self, version: int) -> Null:
        if version in self.nullable:
            return Null.MARKED
        return Null.EMPTY if version in self.none_is_empty else Null.FORBIDDEN


_DECLARATION: Final = "consumerd.wire"


def field(
    wire: Fixed | Variable | ArrayOf,
    versions: str = "0+",
    *,
    default: Any = dataclasses.MISSING,
    nullable: str = "none",
    none_is_empty: str = "none",
) -> Any:
    """Declare a field: its wire type, the versions that have it, and its value in those that do not.

    ``nullable`` are the versions in which None is a value of its own (length -1), ``none_is_empty`` those in which an
    empty array says None. Raises TypeError for a field that some version lacks and that has no default.
    """
    declaration = _Declaration(wire, *map(Versions.parse, (versions, nullable, none_is_empty)))
    if default is dataclasses.MISSING and versions != "0+":
        raise TypeError(f"a field of versions {versions} needs a default for the others")
    return dataclasses.field(default=default, metadata={_DECLARATION: declaration})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen, slotted, keyword-only dataclass whose fields were all declared with :func:`field`."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    for one in dataclasses.fields(cast("Any", made)):
        if _DECLARATION not in one.metadata:
            raise TypeError(f"{cls.__name__}.{one.name} is not declared with field()")
    return made


class Request(Generic[R_co]):
    """Base of every request; ``response`` is the class of its answers, of the same version."""

    __slots__ = ()

    api: ClassVar[ApiKey]
    versions: ClassVar[range]
    response: ClassVar[type[Any]]

    @property
    def expects_response(self) -> bool:
        """Whether the broker answers at all; all do but a Produce request that asks for no acknowledgement."""
        return True

    def decode_response(self, version: int, body: memoryview) -> R_co:
        """Read the answer to this request; raises RemoteProtocolError."""
        return cast("R_co", compile_codec(self.response, version).decode(body))


# -- codecs


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Reads and writes one version of one message."""

    message: type[T]
    version: int
    least_bytes: int
    read: Read
    write: Write

    def decode(self, data: bytes | memoryview) -> T:
        """Read a whole message. Raises RemoteProtocolError, with the byte position counted from its start."""
        view = memoryview(data)
        end = len(view)
        value, at = self.read(view, 0, end)
        if at != end:
            raise RemoteProtocolError(
                f"{self.message.__name__} v{self.version}: byte {at} of {end}: {end - at} bytes are left over"
            )
        return cast("T", value)

    def encode(self, value: T) -> bytes:
        """Write a message. Raises LocalProtocolError for what this version cannot say."""
        pieces: list[bytes | memoryview] = []
        self.write(value, pieces.append)
        return b"".join(pieces)


def codec_for(request: type[Request[Any]], version: int) -> Codec[Any]:
    """Return the codec of a request class. Raises LocalProtocolError for a version that it does not declare."""
    check_version(request, version)
    return compile_codec(request, version)


def check_version(request: type[Request[Any]], version: int) -> None:
    """Raise LocalProtocolError for a version that ``request`` does not declare."""
    if version not in request.versions:
        known = f"{request.versions.start} to {request.versions.stop - 1}"
        raise LocalProtocolError(f"{request.__name__} v{version}: not among the versions known, {known}")


def compile_codec(cls: type[T], version: int) -> Codec[T]:
    """Return the codec of any declared class for one version, compiled on first use."""
    return cast("Codec[T]", _compile(cast("Any", cls), version))


@functools.cache
def _compile(cls: Any, version: int) -> Codec[Any]:
    fields = [
        _BoundField(
            one.name, f"{cls.__name__} v{version}: {one.name}", one.default, one.metadata[_DECLARATION], version
        )
        for one in dataclasses.fields(cls)
    ]
    least_bytes = sum(one.least_bytes for one in fields if one.present)
    return Codec(cls, version, least_bytes, _compile_read(cls, version, fields), _compile_write(version, fields))


@dataclass(frozen=True, slots=True)
class _BoundField:
    """A field as it is in one version."""

    name: str
    where: str
    default: Any
    declaration: _Declaration
    version: int

    @property
    def present(self) -> bool:
        return self.version in self.declaration.versions

    @property
    def code(self) -> str | None:
        """The ``struct`` character of a fixed-width field, None for others."""
        return self.declaration.wire.code if isinstance(self.declaration.wire, Fixed) else None

    @property
    def least_bytes(self) -> int:
        wire = self.declaration.wire
        return wire.size if isinstance(wire, Fixed) else wire.least_bytes(self.version)

    @property
    def variable(self) -> WireType:
        assert not isinstance(self.declaration.wire, Fixed)
        return self.declaration.wire

    @property
    def null(self) -> Null:
        return self.declaration.null(self.version)


def _runs(fields: Iterable[_BoundField]) -> Iterable[tuple[struct.Struct | None, list[_BoundField]]]:
    """Group a version's fields: neighbours of fixed width together with their ``struct``, the others one by one."""
    present = (one for one in fields if one.present)
    for fixed, group in itertools.groupby(present, key=lambda one: one.code is not None):
        members = list(group)
        if fixed:
            yield struct.Struct(">" + "".join(one.code or "" for one in members)), members
        else:
            yield from ((None, [one]) for one in members)


def _compile_read(cls: type, version: int, fields: list[_BoundField]) -> Read:
    """Generate ``read(data, at, end)``."""
    names: dict[str, Any] = {"cls": cls, "new": object.__new__, "shortage": shortage}
    lines = ["def read(data, at, end):"]
    for number, (packed, members) in enumerate(_runs(fields)):
        if packed is None:
            (one,) = members
            names[f"read_{number}"] = one.variable.compile_read(one.where, version, one.null)
            lines.append(f"    {one.name}, at = read_{number}(data, at, end)")
        else:
            names[f"unpack_{number}"] = packed.unpack_from
            names[f"where_{number}"] = _where(members)
            lines += [
                f"    if end - at < {packed.size}:",
                f"        raise shortage(where_{number}, at, {packed.size}, end)",
                f"    {', '.join(one.name for one in members)}, = unpack_{number}(data, at)",
                f"    at += {packed.size}",
            ]
    lines.append("    value = new(cls)")
    for one in fields:
        names[f"set_{one.name}"] = getattr(cls, one.name).__set__
        if not one.present:
            names[one.name] = one.default
        lines.append(f"    set_{one.name}(value, {one.name})")
    lines.append("    return value, at")
    return cast("Read", _generate("read", lines, names))


def _compile_write(version: int, fields: list[_BoundField]) -> Write:
    """Generate ``write(value, append)``."""
    names: dict[str, Any] = {"misfit": misfit, "struct_error": struct.error, "absent": _absent}
    lines = ["def write(value, append):", "    pass"]
    for one in fields:
        if not one.present:
            names[f"default_{one.name}"] = one.default
            lines += [
                f"    if value.{one.name} != default_{one.name}:",
                f"        raise absent({one.where!r}, value.{one.name})",
            ]
    for number, (packed, members) in enumerate(_runs(fields)):
        if packed is None:
            (one,) = members
            names[f"write_{number}"] = one.variable.compile_write(one.where, version, one.null)
            lines.append(f"    write_{number}(value.{one.name}, append)")
        else:
            names[f"pack_{number}"] = packed.pack
            names[f"where_{number}"] = _where(members)
            lines += [
                "    try:",
                f"        append(pack_{number}({', '.join(f'value.{one.name}' for one in members)}))",
                "    except struct_error as error:",
                f"        raise misfit(where_{number}, error) from error",
            ]
    return cast("Write", _generate("write", lines, names))


def _where(members: list[_BoundField]) -> str:
    return ", ".join([members[0].where, *(one.name for one in members[1:])])


def _absent(where: str, value: object) -> LocalProtocolError:
    return LocalProtocolError(f"{where}: this version has no such field, and {type(value).__name__} is not its default")


def _generate(name: str, lines: list[str], names: dict[str, Any]) -> object:
    """Run generated source and return what it defines."""
    exec("\n".join(lines), names)  # noqa: S102 - made of declared field names only; see the module docstring
    return names[name]
