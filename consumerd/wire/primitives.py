# SPDX-License-Identifier: Apache-2.0
"""The protocol's primitive types: readers and writers of strings, bytes and arrays of numbers.

Owns how they stand on the wire (Kafka protocol guide, "Protocol Primitive Types"): big-endian, strings with an int16
length, bytes and arrays with an int32 length, -1 for null. Knows no message. Each ``*_reader`` and ``*_writer`` returns
the function for one field, ``where`` being the field's name in errors.

Every length is compared with what is left of the message before a byte is copied or an object made, so that no
announced length costs more than the frame that announces it. Whatever the bytes are, a reader returns or raises
RemoteProtocolError. A writer raises LocalProtocolError for what does not fit its type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from consumerd.errors import LocalProtocolError, RemoteProtocolError

Read = Callable[[memoryview, int, int], tuple[Any, int]]
"""``(data, at, end) -> (value, next)``; raises RemoteProtocolError."""

Append = Callable[[bytes | memoryview], object]
"""Takes the next piece of a message that is being written: ``list.append``."""

Write = Callable[[Any, Append], None]
"""``(value, append)``; raises LocalProtocolError."""

NULL_LENGTH: Final = -1
MAX_STRING_BYTES: Final = 0x7FFF
MAX_INT32: Final = 0x7FFFFFFF

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

_SHORT_ARRAY: Final = 16
"""Arrays up to this length (nearly all: replicas of a partition) have their ``struct`` ready."""


def shortage(where: str, at: int, needed: int, end: int) -> RemoteProtocolError:
    """Return the error for a field that reaches beyond the end of its message."""
    return RemoteProtocolError(f"{where}: byte {at} of {end}: needs {needed} bytes, {end - at} are left")


def bad_length(where: str, at: int, length: int, end: int) -> RemoteProtocolError:
    """Return the error for a negative length that does not mean null."""
    return RemoteProtocolError(f"{where}: byte {at} of {end}: length {length}, expected 0 or more")


def misfit(where: str, cause: Exception) -> LocalProtocolError:
    """Return the error for a value that its wire type cannot hold."""
    return LocalProtocolError(f"{where}: cannot be encoded: {cause}")


def forbidden_null(where: str) -> LocalProtocolError:
    """Return the error for None where this version has no null."""
    return LocalProtocolError(f"{where}: None cannot be encoded in this version")


# -- lengths of int32


def read_length(data: memoryview, at: int, end: int, where: str, *, nullable: bool, item_bytes: int = 1) -> int:
    """Read the length of bytes, or of an array whose items take ``item_bytes`` at least; -1 is null."""
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
    """Return the reader of a UTF-8 string."""

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
        try:
            return str(data[start:stop], "utf-8"), stop
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"{where}: byte {start + error.start} of {end}: not UTF-8") from error

    return read


def string_writer(where: str, *, nullable: bool) -> Write:
    """Return the writer of a UTF-8 string."""

    def write(value: str | None, append: Append) -> None:
        if value is None:
            if not nullable:
                raise forbidden_null(where)
            append(_INT16.pack(NULL_LENGTH))
            return
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise misfit(where, error) from error
        if len(encoded) > MAX_STRING_BYTES:
            raise LocalProtocolError(f"{where}: {len(encoded)} bytes of text, at most {MAX_STRING_BYTES} are possible")
        append(_INT16.pack(len(encoded)))
        append(encoded)

    return write


# -- bytes


def view_reader(where: str, *, nullable: bool) -> Read:
    """Return the reader of bytes as a view into the message: nothing is copied."""

    def read(data: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
        length = read_length(data, at, end, where, nullable=nullable)
        at += 4
        if length < 0:
            return None, at
        return data[at : at + length], at + length

    return read


def bytes_reader(where: str, *, nullable: bool) -> Read:
    """Return the reader of bytes, which are copied."""
    read_view = view_reader(where, nullable=nullable)

    def read(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
        view, at = read_view(data, at, end)
        return None if view is None else bytes(view), at

    return read


def bytes_writer(where: str, *, nullable: bool) -> Write:
    """Return the writer of bytes, which does not copy what it is given."""

    def write(value: bytes | memoryview | None, append: Append) -> None:
        if value is None:
            if not nullable:
                raise forbidden_null(where)
            append(_INT32.pack(NULL_LENGTH))
            return
        write_length(len(value), append, where)
        append(value)

    return write


# -- arrays of numbers


def numbers_reader(where: str, code: str) -> Read:
    """Return the reader of an array of numbers; ``code`` is their ``struct`` character."""
    item_bytes = struct.calcsize(f">{code}")
    short = [struct.Struct(f">{count}{code}") for count in range(_SHORT_ARRAY)]

    def read(data: memoryview, at: int, end: int) -> tuple[tuple[int, ...], int]:
        count = read_length(data, at, end, where, nullable=False, item_bytes=item_bytes)
        packed = short[count] if count < _SHORT_ARRAY else struct.Struct(f">{count}{code}")
        return packed.unpack_from(data, at + 4), at + 4 + packed.size

    return read


def numbers_writer(where: str, code: str) -> Write:
    """Return the writer of an array of numbers."""

    def write(values: Sequence[int], append: Append) -> None:
        write_length(len(values), append, where)
        try:
            append(struct.pack(f">{len(values)}{code}", *values))
        except struct.error as error:
            raise misfit(where, error) from error

    return write
