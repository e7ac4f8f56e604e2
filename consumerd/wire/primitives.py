"""The protocol's primitive types, read from a frame and appended to one.

Owns how integers, strings, byte strings and array lengths stand on the wire (Kafka protocol guide, "Protocol Primitive
Types"): big-endian, strings with an int16 length, bytes and arrays with an int32 length, -1 for null. Knows no message.

Readers have the form ``(data, at, end) -> (value, next)``. Every length is compared with what is left of the frame
before a byte is copied or an object made, so that no announced length costs more than the frame that announces it.
Whatever the bytes are, a reader returns or raises RemoteProtocolError. Writers append pieces; what does not fit its
type raises LocalProtocolError. ``where`` names the field in messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from consumerd.errors import LocalProtocolError, RemoteProtocolError

Append = Callable[[bytes | memoryview], object]
"""Takes the next piece of a message that is being written: ``list.append``."""

NULL_LENGTH: Final = -1
MAX_STRING_BYTES: Final = 0x7FFF
MAX_INT32: Final = 0x7FFFFFFF

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def shortage(where: str, at: int, needed: int, end: int) -> RemoteProtocolError:
    """Return the error for a field that reaches beyond the end of its message."""
    return RemoteProtocolError(f"{where}: byte {at} of {end}: needs {needed} bytes, {end - at} are left")


def misfit(where: str, cause: Exception) -> LocalProtocolError:
    """Return the error for a value that its wire type cannot hold."""
    return LocalProtocolError(f"{where}: cannot be encoded: {cause}")


def forbidden_null(where: str) -> LocalProtocolError:
    """Return the error for None where this version has no null."""
    return LocalProtocolError(f"{where}: None cannot be encoded in this version")


# -- lengths


def read_int16_length(data: memoryview, at: int, end: int, where: str, *, nullable: bool) -> int:
    """Read the length of a string, -1 for null, checked against ``end``."""
    if end - at < 2:
        raise shortage(where, at, 2, end)
    (length,) = _INT16.unpack_from(data, at)
    if length > end - at - 2:
        raise shortage(where, at + 2, length, end)
    if length < 0 and not (nullable and length == NULL_LENGTH):
        raise RemoteProtocolError(f"{where}: byte {at} of {end}: length {length}, expected 0 or more")
    return int(length)


def read_int32_length(
    data: memoryview, at: int, end: int, where: str, *, nullable: bool = False, item_bytes: int = 1
) -> int:
    """Read the length of bytes, or of an array whose items take ``item_bytes`` at least, checked against ``end``."""
    if end - at < 4:
        raise shortage(where, at, 4, end)
    (length,) = _INT32.unpack_from(data, at)
    if length * item_bytes > end - at - 4:
        raise shortage(where, at + 4, length * item_bytes, end)
    if length < 0 and not (nullable and length == NULL_LENGTH):
        raise RemoteProtocolError(f"{where}: byte {at} of {end}: length {length}, expected 0 or more")
    return int(length)


def write_length(length: int, append: Append, where: str) -> None:
    """Write the int32 length of bytes or of an array."""
    if length > MAX_INT32:
        raise LocalProtocolError(f"{where}: length {length}, at most {MAX_INT32} can be encoded")
    append(_INT32.pack(length))


# -- strings


def read_string(data: memoryview, at: int, end: int, where: str, *, nullable: bool) -> tuple[str | None, int]:
    """Read a UTF-8 string with its int16 length."""
    length = read_int16_length(data, at, end, where, nullable=nullable)
    at += 2
    if length < 0:
        return None, at
    try:
        return str(data[at : at + length], "utf-8"), at + length
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"{where}: byte {at + error.start} of {end}: not UTF-8") from error


def write_string(value: str | None, append: Append, where: str, *, nullable: bool) -> None:
    """Write a string with its int16 length."""
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
        raise LocalProtocolError(f"{where}: {len(encoded)} bytes of text, at most {MAX_STRING_BYTES} can be encoded")
    append(_INT16.pack(len(encoded)))
    append(encoded)


# -- byte strings


def read_view(data: memoryview, at: int, end: int, where: str, *, nullable: bool) -> tuple[memoryview | None, int]:
    """Read bytes with their int32 length, as a view into ``data``: nothing is copied."""
    length = read_int32_length(data, at, end, where, nullable=nullable)
    at += 4
    if length < 0:
        return None, at
    return data[at : at + length], at + length


def read_bytes(data: memoryview, at: int, end: int, where: str, *, nullable: bool) -> tuple[bytes | None, int]:
    """Read bytes with their int32 length, as a copy that outlives the frame."""
    view, at = read_view(data, at, end, where, nullable=nullable)
    return None if view is None else bytes(view), at


def write_bytes(value: bytes | memoryview | None, append: Append, where: str, *, nullable: bool) -> None:
    """Write bytes with their int32 length; a memoryview is not copied."""
    if value is None:
        if not nullable:
            raise forbidden_null(where)
        append(_INT32.pack(NULL_LENGTH))
        return
    write_length(len(value), append, where)
    append(value)


# -- arrays of numbers


def read_numbers(
    data: memoryview, at: int, end: int, where: str, *, code: str, size: int
) -> tuple[tuple[int, ...], int]:
    """Read an array of fixed-width numbers of ``size`` bytes; ``code`` is their ``struct`` character."""
    count = read_int32_length(data, at, end, where, item_bytes=size)
    at += 4
    return struct.unpack_from(f">{count}{code}", data, at), at + count * size


def write_numbers(values: Sequence[int], append: Append, where: str, *, code: str) -> None:
    """Write an array of fixed-width numbers."""
    write_length(len(values), append, where)
    try:
        append(struct.pack(f">{len(values)}{code}", *values))
    except struct.error as error:
        raise misfit(where, error) from error
