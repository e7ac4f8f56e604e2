# SPDX-License-Identifier: Apache-2.0
"""Responses in pieces: bytes in memory, and ranges of files sent without copying.

A frame (a response with its size) that has file ranges is never joined; it stays a list of pieces until it is sent. The
creator of a :class:`FramedReply` passes along the objects to be closed after sending.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of an open file: ``size`` bytes from ``position`` on.

    It stands in a response in place of the records that these bytes are. Its ``len()`` is ``size``.
    """

    descriptor: int
    position: int
    size: int

    def __len__(self) -> int:
        return self.size


Piece: TypeAlias = bytes | memoryview | FileRange


class Closable(Protocol):
    """Object that keeps a file open until a response was sent."""

    def close(self) -> None:
        """Release the file, because the response was sent or dropped. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResponse:
    """A response that has :class:`FileRange` objects in place of records.

    ``owners`` keep the files open. They are closed when the response was sent or dropped.
    """

    response: object
    owners: Sequence[Closable]


@dataclass(slots=True, kw_only=True)
class FramedReply:
    """A complete response to be sent, with its size, as a list of pieces.

    ``owners`` keep the files open that pieces refer to. If ``then_close`` is True, the connection is closed after
    sending.
    """

    pieces: list[Piece]
    owners: Sequence[Closable] = ()
    then_close: bool = field(default=False)

    def close(self) -> None:
        """Close all ``owners``: release the files to which the response refers."""
        for owner in self.owners:
            owner.close()


def read_piece(piece: Piece) -> bytes:
    """Return the bytes of a piece of a response.

    There are fewer bytes than its size only if the piece is a range of a file that has become shorter.
    """
    if isinstance(piece, FileRange):
        return os.pread(piece.descriptor, piece.size, piece.position)
    return bytes(piece)


def cut_pieces(pieces: Iterable[Piece], size: int) -> list[Piece]:
    """Return the pieces that make up the first ``size`` bytes of a response.

    The last one is shortened if necessary.
    """
    kept: list[Piece] = []
    for piece in pieces:
        if size <= 0:
            break
        if len(piece) > size:
            whole = piece
            piece = FileRange(whole.descriptor, whole.position, size) if isinstance(whole, FileRange) else whole[:size]
        kept.append(piece)
        size -= len(piece)
    return kept
