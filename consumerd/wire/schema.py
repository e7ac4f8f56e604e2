# SPDX-License-Identifier: Apache-2.0
"""Codecs, compiled from declared messages, and what every request has in common.

Owns how a declaration (``wire.declaration``) becomes a reader and a writer. Invariants:

- A field that a version lacks has its default after decoding; encoding anything but the default in such a version
  raises LocalProtocolError, so that nothing that was asked for is left out silently.
- Decoding returns or raises RemoteProtocolError with the byte position, whatever the bytes are; encoding returns or
  raises LocalProtocolError.
- A message is read to its last byte: what is left over means that the two sides do not agree on the version.

How it is quick: each class is compiled once per version, into generated source, as ``dataclasses`` itself does it.
Neighbouring fields of fixed width are packed and unpacked by one ``struct``, and objects are filled through their
slots, which takes less than half of what a frozen dataclass's ``__init__`` takes. Nothing but numbers and the names of
declared fields goes into the source.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire import primitives
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import Declaration, Fixed, Null, Variable, declaration_of
from consumerd.wire.primitives import Append, Read, Write, misfit, shortage

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

_COUNT_BYTES = 4


@dataclass(frozen=True, slots=True)
class MessageCodec(Generic[T]):
    """Reads and writes one version of one message."""

    message: type[T]
    version: int
    least_bytes: int
    """The size of the shortest of them, against which the length of an array is checked."""
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

    def encode(self, version: int) -> bytes:
        """Write the body of this request.

        Raises LocalProtocolError for a version that is not declared, and for what it cannot say.
        """
        if version not in self.versions:
            known = f"{self.versions.start} to {self.versions.stop - 1}"
            raise LocalProtocolError(f"{type(self).__name__} v{version}: not among the versions known, {known}")
        return compile_codec(type(self), version).encode(self)

    def decode_response(self, version: int, body: memoryview) -> R_co:
        """Read the body of the answer to this request; raises RemoteProtocolError."""
        return cast("R_co", compile_codec(self.response, version).decode(body))


def compile_codec(cls: type[T], version: int) -> MessageCodec[T]:
    """Return the codec of a declared class for one version, compiled on first use."""
    return cast("MessageCodec[T]", _compile(cast("Any", cls), version))


@functools.cache
def _compile(cls: Any, version: int) -> MessageCodec[Any]:
    fields = [
        _BoundField(one.name, f"{cls.__name__} v{version}: {one.name}", one.default, declaration_of(one), version)
        for one in dataclasses.fields(cls)
    ]
    steps = list(_plan_steps(fields))
    least_bytes = sum(step.least_bytes for step in steps)
    return MessageCodec(cls, version, least_bytes, _compile_read(cls, fields, steps), _compile_write(fields, steps))


# -- the steps of a codec


@dataclass(frozen=True, slots=True)
class _BoundField:
    """A field as it is in one version; ``where`` names it in errors."""

    name: str
    where: str
    default: Any
    declaration: Declaration
    version: int

    @property
    def present(self) -> bool:
        return self.version in self.declaration.versions


@dataclass(frozen=True, slots=True)
class _FixedRun:
    """Neighbours of fixed width, packed and unpacked together."""

    names: list[str]
    where: str
    packed: struct.Struct

    @property
    def least_bytes(self) -> int:
        return self.packed.size


@dataclass(frozen=True, slots=True)
class _VariableField:
    """A field with a length of its own."""

    name: str
    least_bytes: int
    read: Read
    write: Write


_Step = _FixedRun | _VariableField


def _plan_steps(fields: Iterable[_BoundField]) -> Iterator[_Step]:
    """Group the fields that a version has into what is read or written at once."""
    present = (one for one in fields if one.present)
    for fixed, group in itertools.groupby(present, key=lambda one: isinstance(one.declaration.wire, Fixed)):
        members = list(group)
        if fixed:
            codes = (cast("Fixed", one.declaration.wire).code for one in members)
            names = [one.name for one in members]
            where = ", ".join([members[0].where, *names[1:]])
            yield _FixedRun(names, where, struct.Struct(">" + "".join(codes)))
        else:
            yield from map(_variable_field, members)


def _variable_field(one: _BoundField) -> _VariableField:
    wire, null = one.declaration.wire, one.declaration.null(one.version)
    if isinstance(wire, Variable):
        nullable = null is Null.MARKED
        return _VariableField(
            one.name,
            wire.length_bytes,
            wire.reader(one.where, nullable=nullable),
            wire.writer(one.where, nullable=nullable),
        )
    assert not isinstance(wire, Fixed), "fixed fields are parts of a run"
    if isinstance(wire.element, Fixed):
        code = wire.element.code
        read, write = primitives.numbers_reader(one.where, code), primitives.numbers_writer(one.where, code)
    elif isinstance(wire.element, Variable):
        item_bytes = wire.element.length_bytes
        read = _array_reader(one.where, null, wire.element.reader(one.where, nullable=False), item_bytes)
        write = _array_writer(one.where, null, wire.element.writer(one.where, nullable=False))
    else:
        codec: MessageCodec[Any] = compile_codec(wire.element, one.version)
        read = _array_reader(one.where, null, codec.read, codec.least_bytes)
        write = _array_writer(one.where, null, codec.write)
    return _VariableField(one.name, _COUNT_BYTES, read, write)


def _array_reader(where: str, null: Null, read_one: Read, item_bytes: int) -> Read:
    """Return the reader of an array whose elements take ``item_bytes`` at least."""
    marked, empty = null is Null.MARKED, null is Null.EMPTY

    def read(data: memoryview, at: int, end: int) -> tuple[tuple[Any, ...] | None, int]:
        count = primitives.read_length(data, at, end, where, nullable=marked, item_bytes=item_bytes)
        at += _COUNT_BYTES
        if count < 0 or (empty and count == 0):
            return None, at
        items = []
        for _ in range(count):
            item, at = read_one(data, at, end)
            items.append(item)
        return tuple(items), at

    return read


def _array_writer(where: str, null: Null, write_one: Write) -> Write:
    """Return the writer of an array."""

    def write(values: Sequence[Any] | None, append: Append) -> None:
        if values is None:
            if null is Null.FORBIDDEN:
                raise primitives.forbidden_null(where)
            primitives.write_length(primitives.NULL_LENGTH if null is Null.MARKED else 0, append, where)
            return
        if null is Null.EMPTY and not values:
            raise LocalProtocolError(f"{where}: an empty array cannot be encoded in this version: it means None")
        primitives.write_length(len(values), append, where)
        for value in values:
            write_one(value, append)

    return write


# -- generated source


def _compile_read(cls: type, fields: list[_BoundField], steps: list[_Step]) -> Read:
    """Generate ``read(data, at, end)``."""
    names: dict[str, Any] = {"cls": cls, "new": object.__new__, "shortage": shortage}
    lines = ["def read(data, at, end):"]
    for number, step in enumerate(steps):
        if isinstance(step, _VariableField):
            names[f"read_{number}"] = step.read
            lines.append(f"    field_{step.name}, at = read_{number}(data, at, end)")
        else:
            names[f"unpack_{number}"] = step.packed.unpack_from
            names[f"where_{number}"] = step.where
            lines += [
                f"    if end - at < {step.least_bytes}:",
                f"        raise shortage(where_{number}, at, {step.least_bytes}, end)",
                f"    {', '.join(f'field_{name}' for name in step.names)}, = unpack_{number}(data, at)",
                f"    at += {step.least_bytes}",
            ]
    lines.append("    value = new(cls)")
    for one in fields:
        names[f"set_{one.name}"] = getattr(cls, one.name).__set__
        if not one.present:
            names[f"field_{one.name}"] = one.default
        lines.append(f"    set_{one.name}(value, field_{one.name})")
    lines.append("    return value, at")
    return cast("Read", _generate("read", lines, names))


def _compile_write(fields: list[_BoundField], steps: list[_Step]) -> Write:
    """Generate ``write(value, append)``."""
    names: dict[str, Any] = {"misfit": misfit, "struct_error": struct.error, "absent": _absent}
    lines = ["def write(value, append):", "    pass"]
    for one in fields:
        if not one.present:
            names[f"default_{one.name}"] = one.default
            lines += [
                f"    if value.{one.name} != default_{one.name}:",
                f"        raise absent({one.where!r}, value.{one.name}, default_{one.name})",
            ]
    for number, step in enumerate(steps):
        if isinstance(step, _VariableField):
            names[f"write_{number}"] = step.write
            lines.append(f"    write_{number}(value.{step.name}, append)")
        else:
            names[f"pack_{number}"] = step.packed.pack
            names[f"where_{number}"] = step.where
            lines += [
                "    try:",
                f"        append(pack_{number}({', '.join(f'value.{name}' for name in step.names)}))",
                "    except struct_error as error:",
                f"        raise misfit(where_{number}, error) from error",
            ]
    return cast("Write", _generate("write", lines, names))


def _absent(where: str, value: object, default: object) -> LocalProtocolError:
    shown = type(value).__name__ if isinstance(value, bytes | memoryview | tuple) else repr(value)
    return LocalProtocolError(f"{where}: this version has no such field: expected the default {default!r}, got {shown}")


def _generate(name: str, lines: list[str], names: dict[str, Any]) -> object:
    """Run generated source and return the function that it defines."""
    exec("\n".join(lines), names)  # noqa: S102 - made of declared names and numbers; see the module docstring
    return names[name]
