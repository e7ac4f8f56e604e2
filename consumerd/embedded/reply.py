# SPDX-License-Identifier: Apache-2.0
"""Responses as pieces of a frame: bytes, and file ranges sent without copying.

A frame with file ranges is never joined; it stays a list of pieces until it is sent. The creator of a
:class:`FramedReply` passes along the objects to be closed after sending.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class FileRange:
    """``size`` bytes of an open file from ``position`` on.

    It has a length, so it can stand for a record set.
    """

    descriptor: int
    position: int
    size: int

    def __len__(self) -> int:
        return self.size


Piece: TypeAlias = bytes | memoryview | FileRange


class Closable(Protocol):
    """An object that keeps a file open for a reply."""

    def close(self) -> None:
        """Release the file. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResponse:
    """A response in which :class:`FileRange` objects stand for record sets.

    ``owners`` keep the files open, and are closed when it was sent or dropped.
    """

    response: object
    owners: Sequence[Closable]


@dataclass(slots=True, kw_only=True)
class FramedReply:
    """A complete frame to be sent; ``then_close`` ends the connection after it."""

    pieces: list[Piece]
    owners: Sequence[Closable] = ()
    then_close: bool = field(default=False)

    @property
    def size(self) -> int:
        """Number of bytes to be sent."""
        return sum(len(piece) for piece in self.pieces)

    def close(self) -> None:
        """Close the owners of the pieces."""
        for owner in self.owners:
            owner.close()


def read_piece(piece: Piece) -> bytes:
    """Return a piece as bytes; of a file, as far as it reaches."""
    if isinstance(piece, FileRange):
        return os.pread(piece.descriptor, piece.size, piece.position)
    return bytes(piece)


def cut_pieces(pieces: Iterable[Piece], size: int) -> list[Piece]:
    """Return the first ``size`` bytes of the pieces."""
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
