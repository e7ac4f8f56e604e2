# SPDX-License-Identifier: Apache-2.0
"""Readers and writers of the protocol's primitive types, and of tagged fields.

Source: Kafka protocol guide, "Protocol Primitive Types". Numbers are big-endian, strings have an int16 length, bytes
and arrays an int32 length, and -1 means null. Messages are not known here. Each ``*_reader`` and ``*_writer`` returns a
function for one field; ``where`` is the field's name in errors.

Flexible versions (KIP-482) have *compact* types: the length is an unsigned varint, larger by one, and 0 means null.
Each message ends with its tagged fields: their number, then tag, size and content of each. Tags are optional by design,
and none is declared here: they are skipped, and none are written.

Every length is compared with what is left of the message before a byte is copied or an object created, so a declared
length cannot cost more memory than the frame that declares it. Readers of arbitrary bytes either succeed or raise
RemoteProtocolError. Writers raise LocalProtocolError for a value that does not fit its type.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from consumerd.errors import LocalProtocolError, RemoteProtocolError

Read = Callable[[memoryview, int, int], tuple[Any, int]]
"""Function that reads one field: ``(data, at, end)`` to the value and the position after it.

Raises RemoteProtocolError.
"""

Append = Callable[[bytes | memoryview], object]
"""Function that receives the bytes of a message that is being written: ``list.append``."""

Write = Callable[[Any, Append], None]
"""Function that writes one field: ``(value, append)``. Raises LocalProtocolError."""

NULL_LENGTH: Final = -1
MAX_STRING_BYTES: Final = 0x7FFF
MAX_INT32: Final = 0x7FFFFFFF

UUID_BYTES: Final = 16
NO_UUID: Final = uuid.UUID(int=0)
"""The UUID of nothing, such as of a topic without an id."""
NO_TAGS: Final = b"\0"
"""Tagged fields of a message that has none."""

_MAX_UVARINT_BYTES: Final = 5

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

_SHORT_ARRAY: Final = 16
"""Array length below which a ``struct`` is prepared: nearly all arrays, such as a partition's replicas."""


def shortage(where: str, at: int, needed: int, end: int) -> RemoteProtocolError:
    """Return the error for a field that extends beyond the end of its message."""
    return RemoteProtocolError(f"{where}: byte {at} of {end}: needs {needed} bytes, {end - at} are left")


def bad_length(where: str, at: int, length: int, end: int) -> RemoteProtocolError:
    """Return the error for a negative length that does not mean null."""
    return RemoteProtocolError(f"{where}: byte {at} of {end}: length {length}, expected 0 or more")


def misfit(where: str, cause: Exception) -> LocalProtocolError:
    """Return the error for a value that its wire type cannot represent."""
    return LocalProtocolError(f"{where}: cannot be encoded: {cause}")


def forbidden_null(where: str) -> LocalProtocolError:
    """Return the error for None in a field that is not nullable in this version."""
    return LocalProtocolError(f"{where}: None cannot be encoded in this version")


# -- lengths of int32 and, in flexible versions, of an unsigned varint


def read_uvarint(data: memoryview, at: int, end: int, where: str) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; return it and its end.

    The end is the position after it. A varint has 7 bits a byte, lowest bits first. ``where`` is the field's name for
    errors.
    """
    value = shift = 0
    begin, stop = at, min(end, at + _MAX_UVARINT_BYTES)
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                raise RemoteProtocolError(f"{where}: byte {begin} of {end}: a number of more than 32 bits")
            return value, at
        shift += 7
    if at - begin == _MAX_UVARINT_BYTES:
        raise RemoteProtocolError(f"{where}: byte {begin} of {end}: a number of more than {_MAX_UVARINT_BYTES} bytes")
    raise shortage(where, at, 1, end)


def write_uvarint(value: int, append: Append) -> None:
    """Write an unsigned varint: 7 bits a byte, lowest bits first.

    ``append`` receives the encoded bytes.
    """
    if value < 0x80:
        append(value.to_bytes(1))
        return
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    append(bytes(encoded))


def read_compact_length(
    data: memoryview, at: int, end: int, where: str, *, nullable: bool, item_bytes: int = 1
) -> tuple[int, int]:
    """Read a compact length, and return it with the position after it; -1 is null.

    A compact length is a varint, larger by one than the length.

    Args:
        where: name of the field, for errors.
        nullable: False to refuse null.
        item_bytes: smallest size of an element in bytes. A length is refused if that many elements cannot follow.
    """
    begin = at
    length, at = read_uvarint(data, at, end, where)
    length -= 1
    if length < 0 and not nullable:
        raise bad_length(where, begin, length, end)
    if length * item_bytes > end - at:
        raise shortage(where, at, length * item_bytes, end)
    return length, at


def write_compact_length(length: int, append: Append, where: str) -> None:
    """Write the length of compact bytes or of a compact array; -1 is null."""
    if length > MAX_INT32:
        raise LocalProtocolError(f"{where}: length {length}, at most {MAX_INT32} can be encoded")
    write_uvarint(length + 1, append)


def read_length(data: memoryview, at: int, end: int, where: str, *, nullable: bool, item_bytes: int = 1) -> int:
    """Read the int32 length of bytes or of an array; -1 is null.

    Args:
        where: name of the field, for errors.
        nullable: False to refuse null.
        item_bytes: smallest size of an element in bytes. A length is refused if that many elements cannot follow.
    """
    if end - at < 4:
        raise shortage(where, at, 4, end)
    length: int = _INT32.unpack_from(data, at)[0]
    if length < 0 and not (nullable and length == NULL_LENGTH):
        raise bad_length(where, at, length, end)
    if length * item_bytes > end - at - 4:
        raise shortage(where, at + 4, length * item_bytes, end)
    return length


def write_length(length: int, append: Append, where: str) -> None:
    """Write the length of bytes or of an array."""
    if length > MAX_INT32:
        raise LocalProtocolError(f"{where}: length {length}, at most {MAX_INT32} can be encoded")
    append(_INT32.pack(length))


# -- strings


def string_reader(where: str, *, nullable: bool) -> Read:
    """Return a reader of UTF-8 strings."""

    def read(data: memoryview, at: int, end: int) -> tuple[str | None, int]:
        if end - at < 2:
            raise shortage(where, at, 2, end)
        length: int = _INT16.unpack_from(data, at)[0]
        start = at + 2
        if length < 0:
            if nullable and length == NULL_LENGTH:
                return None, start
            raise bad_length(where, at, length, end)
        stop = start + length
        if stop > end:
            raise shortage(where, start, length, end)
        return _decode_text(data, start, stop, end, where), stop

    return read


def compact_string_reader(where: str, *, nullable: bool) -> Read:
    """Return a reader of compact UTF-8 strings."""

    def read(data: memoryview, at: int, end: int) -> tuple[str | None, int]:
        length, start = read_compact_length(data, at, end, where, nullable=nullable)
        if length < 0:
            return None, start
        if length > MAX_STRING_BYTES:
            raise RemoteProtocolError(
                f"{where}: byte {at} of {end}: {length} bytes of text, at most {MAX_STRING_BYTES} are possible"
            )
        return _decode_text(data, start, start + length, end, where), start + length

    return read


def _decode_text(data: memoryview, start: int, stop: int, end: int, where: str) -> str:
    try:
        return str(data[start:stop], "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"{where}: byte {start + error.start} of {end}: not UTF-8") from error


def string_writer(where: str, *, nullable: bool) -> Write:
    """Return a writer of UTF-8 strings."""

    def write(value: str | None, append: Append) -> None:
        if value is None:
            if not nullable:
                raise forbidden_null(where)
            append(_INT16.pack(NULL_LENGTH))
            return
        encoded = _encode_text(value, where)
        append(_INT16.pack(len(encoded)))
        append(encoded)

    return write


def compact_string_writer(where: str, *, nullable: bool) -> Write:
    """Return a writer of compact UTF-8 strings."""

    def write(value: str | None, append: Append) -> None:
        if value is None:
            if not nullable:
                raise forbidden_null(where)
            write_compact_length(NULL_LENGTH, append, where)
            return
        encoded = _encode_text(value, where)
        write_compact_length(len(encoded), append, where)
        append(encoded)

    return write


def _encode_text(value: str, where: str) -> bytes:
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise misfit(where, error) from error
    if len(encoded) > MAX_STRING_BYTES:
        raise LocalProtocolError(f"{where}: {len(encoded)} bytes of text, at most {MAX_STRING_BYTES} are possible")
    return encoded


# -- bytes


def view_reader(where: str, *, nullable: bool) -> Read:
    """Return a reader of bytes fields, which returns views of the message without copying."""

    def read(data: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
        length = read_length(data, at, end, where, nullable=nullable)
        at += 4
        if length < 0:
            return None, at
        return data[at : at + length], at + length

    return read


def compact_view_reader(where: str, *, nullable: bool) -> Read:
    """Return a reader of compact bytes fields, which returns views of the message without copying."""

    def read(data: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
        length, at = read_compact_length(data, at, end, where, nullable=nullable)
        if length < 0:
            return None, at
        return data[at : at + length], at + length

    return read


def bytes_reader(where: str, *, nullable: bool) -> Read:
    """Return a reader of bytes fields, which copies them out of the message."""
    return _copying(view_reader(where, nullable=nullable))


def compact_bytes_reader(where: str, *, nullable: bool) -> Read:
    """Return a reader of compact bytes fields, which copies them out of the message."""
    return _copying(compact_view_reader(where, nullable=nullable))


def _copying(read_view: Read) -> Read:
    def read(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
        view, at = read_view(data, at, end)
        return None if view is None else bytes(view), at

    return read


def bytes_writer(where: str, *, nullable: bool) -> Write:
    """Return a writer of bytes fields, which passes the value on without copying."""

    def write(value: bytes | memoryview | None, append: Append) -> None:
        if value is None:
            if not nullable:
                raise forbidden_null(where)
            append(_INT32.pack(NULL_LENGTH))
            return
        write_length(len(value), append, where)
        append(value)

    return write


def compact_bytes_writer(where: str, *, nullable: bool) -> Write:
    """Return a writer of compact bytes fields, which passes the value on without copying."""

    def write(value: bytes | memoryview | None, append: Append) -> None:
        if value is None:
            if not nullable:
                raise forbidden_null(where)
            write_compact_length(NULL_LENGTH, append, where)
            return
        write_compact_length(len(value), append, where)
        append(value)

    return write


# -- UUIDs


def uuid_reader(where: str, *, nullable: bool) -> Read:  # noqa: ARG001 - a UUID cannot be null
    """Return a reader of UUIDs, which take 16 bytes in all versions."""

    def read(data: memoryview, at: int, end: int) -> tuple[uuid.UUID, int]:
        if end - at < UUID_BYTES:
            raise shortage(where, at, UUID_BYTES, end)
        return uuid.UUID(bytes=bytes(data[at : at + UUID_BYTES])), at + UUID_BYTES

    return read


def uuid_writer(where: str, *, nullable: bool) -> Write:  # noqa: ARG001 - a UUID cannot be null
    """Return a writer of UUIDs."""

    def write(value: uuid.UUID | None, append: Append) -> None:
        if value is None:
            raise forbidden_null(where)
        append(value.bytes)

    return write


# -- arrays of numbers


def numbers_reader(where: str, code: str) -> Read:
    """Return a reader of arrays of numbers; ``code`` is their ``struct`` format character."""
    item_bytes = struct.calcsize(f">{code}")
    short = [struct.Struct(f">{count}{code}") for count in range(_SHORT_ARRAY)]

    def read(data: memoryview, at: int, end: int) -> tuple[tuple[int, ...], int]:
        count = read_length(data, at, end, where, nullable=False, item_bytes=item_bytes)
        packed = short[count] if count < _SHORT_ARRAY else struct.Struct(f">{count}{code}")
        return packed.unpack_from(data, at + 4), at + 4 + packed.size

    return read


def compact_numbers_reader(where: str, code: str) -> Read:
    """Return a reader of compact arrays of numbers; ``code`` is their ``struct`` format character."""
    item_bytes = struct.calcsize(f">{code}")
    short = [struct.Struct(f">{count}{code}") for count in range(_SHORT_ARRAY)]

    def read(data: memoryview, at: int, end: int) -> tuple[tuple[int, ...], int]:
        count, at = read_compact_length(data, at, end, where, nullable=False, item_bytes=item_bytes)
        packed = short[count] if count < _SHORT_ARRAY else struct.Struct(f">{count}{code}")
        return packed.unpack_from(data, at), at + packed.size

    return read


def numbers_writer(where: str, code: str) -> Write:
    """Return a writer of arrays of numbers; ``code`` is their ``struct`` format character."""
    return _numbers_writer(where, code, write_length)


def compact_numbers_writer(where: str, code: str) -> Write:
    """Return a writer of compact arrays of numbers; ``code`` is their ``struct`` format character."""
    return _numbers_writer(where, code, write_compact_length)


def _numbers_writer(where: str, code: str, write_count: Callable[[int, Append, str], None]) -> Write:
    def write(values: Sequence[int], append: Append) -> None:
        write_count(len(values), append, where)
        try:
            append(struct.pack(f">{len(values)}{code}", *values))
        except struct.error as error:
            raise misfit(where, error) from error

    return write


# -- tagged fields


def skip_tags(data: memoryview, at: int, end: int, where: str) -> int:
    """Return the position after the tagged fields of a message.

    Raises RemoteProtocolError if they are cut off, or their tags do not increase.
    """
    count, at = read_uvarint(data, at, end, where)
    previous = -1
    for _ in range(count):
        begin = at
        tag, at = read_uvarint(data, at, end, where)
        if tag <= previous:
            raise RemoteProtocolError(f"{where}: byte {begin} of {end}: tag {tag} after tag {previous}")
        size, at = read_uvarint(data, at, end, where)
        if size > end - at:
            raise shortage(where, at, size, end)
        previous, at = tag, at + size
    return at
