# SPDX-License-Identifier: Apache-2.0
"""Wire types of Kafka 0.6 and 0.7 that later releases do not have.

Declared messages use them like the types in ``wire.declaration``. Readers and writers raise the errors of
``wire.primitives``, and compare each length with the bytes that are left before anything is created.

==================  ========================================================================
type                bytes
==================  ========================================================================
:data:`TO_END`      all bytes up to the end of the message: a message set
:func:`counted`     int16 count, then that number of messages
:func:`sized`       up to the end of the frame: int32 size, then a message of that size
==================  ========================================================================

Source: "Writing a Driver for Kafka", sections "Multi-Request Header" and "Multi-Fetch"; the response of MULTIFETCH is
not in the document, but recorded from Kafka 0.7.2 (``tests/vectors/kafka-0.7.2``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from consumerd.errors import LocalProtocolError
from consumerd.wire.declaration import Variable
from consumerd.wire.primitives import Append, Read, Write, bad_length, read_length, shortage, write_length
from consumerd.wire.schema import MessageCodec, compile_codec

VERSION: Final = 0
"""Version of all messages of Kafka 0.6 and 0.7, which have no version numbers."""

_INT16: Final = struct.Struct(">h")
MAX_COUNT: Final = 0x7FFF
"""Largest number of requests in a multi-request."""


def _rest_reader(where: str, *, nullable: bool) -> Read:  # noqa: ARG001 - the interface of a wire type
    def read(data: memoryview, at: int, end: int) -> tuple[memoryview, int]:
        return data[at:end], end

    return read


def _rest_writer(where: str, *, nullable: bool) -> Write:  # noqa: ARG001 - the interface of a wire type
    def write(value: bytes | memoryview, append: Append) -> None:
        append(value)

    return write


def _plain(least_bytes: int, reader: Callable[..., Read], writer: Callable[..., Write]) -> Variable:
    """Return a wire type without a compact form of its own."""
    return Variable(least_bytes, reader, writer, least_bytes, reader, writer)


TO_END: Final = _plain(0, _rest_reader, _rest_writer)
"""All bytes up to the end of the message, decoded as a memoryview of the frame, which keeps the whole frame in memory.

Must be the last field.
"""


def counted(element: type) -> Variable:
    """Return the wire type of an int16 count and that number of messages.

    Decoded as a tuple.
    """
    codec: MessageCodec[Any] = compile_codec(element, VERSION)

    def reader(where: str, *, nullable: bool) -> Read:  # noqa: ARG001 - the interface of a wire type
        def read(data: memoryview, at: int, end: int) -> tuple[tuple[Any, ...], int]:
            if end - at < _INT16.size:
                raise shortage(where, at, _INT16.size, end)
            count: int = _INT16.unpack_from(data, at)[0]
            if count < 0:
                raise bad_length(where, at, count, end)
            at += _INT16.size
            if count * codec.least_bytes > end - at:
                raise shortage(where, at, count * codec.least_bytes, end)
            items = []
            for _ in range(count):
                item, at = codec.read(data, at, end)
                items.append(item)
            return tuple(items), at

        return read

    def writer(where: str, *, nullable: bool) -> Write:  # noqa: ARG001 - the interface of a wire type
        def write(values: Sequence[Any], append: Append) -> None:
            if len(values) > MAX_COUNT:
                raise LocalProtocolError(f"{where}: {len(values)} entries, at most {MAX_COUNT} can be encoded")
            append(_INT16.pack(len(values)))
            for value in values:
                codec.write(value, append)

        return write

    return _plain(_INT16.size, reader, writer)


def sized(element: type) -> Variable:
    """Return the wire type of messages up to the end, each after its int32 size.

    Decoded as a tuple. Must be the last field.

    Args:
        element: class of the messages, whose last field is :data:`TO_END`: each fills its size.
    """
    codec: MessageCodec[Any] = compile_codec(element, VERSION)

    def reader(where: str, *, nullable: bool) -> Read:  # noqa: ARG001 - the interface of a wire type
        def read(data: memoryview, at: int, end: int) -> tuple[tuple[Any, ...], int]:
            items = []
            while at < end:
                size = read_length(data, at, end, where, nullable=False)
                at += 4
                item, at = codec.read(data, at, at + size)
                items.append(item)
            return tuple(items), at

        return read

    def writer(where: str, *, nullable: bool) -> Write:  # noqa: ARG001 - the interface of a wire type
        def write(values: Sequence[Any], append: Append) -> None:
            for value in values:
                pieces: list[bytes | memoryview] = []
                codec.write(value, pieces.append)
                write_length(sum(map(len, pieces)), append, where)
                for piece in pieces:
                    append(piece)

        return write

    return _plain(0, reader, writer)
