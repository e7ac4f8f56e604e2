# SPDX-License-Identifier: Apache-2.0
"""An answer as pieces of a frame: bytes, and ranges of log files that are sent without a copy.

A frame that is not all bytes cannot be joined: it stays a list of pieces until it is on the wire. Who makes a
:class:`FramedReply` hands over with it what must be closed once it has been sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class FileRange:
    """``size`` bytes of an open file from ``position`` on. Has a length, so that it can stand for a record set."""

    descriptor: int
    position: int
    size: int

    def __len__(self) -> int:
        return self.size


Piece: TypeAlias = bytes | memoryview | FileRange


class Closable(Protocol):
    """What keeps a file open for a reply."""

    def close(self) -> None:
        """Let go of it. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResponse:
    """A response in which :class:`FileRange` objects stand for record sets.

    ``owners`` keep their files open, and are closed when it has been sent or dropped.
    """

    response: object
    owners: Sequence[Closable]


@dataclass(slots=True, kw_only=True)
class FramedReply:
    """A whole frame to be sent, and whether the connection ends with it."""

    pieces: list[Piece]
    owners: Sequence[Closable] = ()
    then_close: bool = field(default=False)

    @property
    def size(self) -> int:
        """The bytes that there are to be sent."""
        return sum(len(piece) for piece in self.pieces)

    def close(self) -> None:
        """Close what the pieces are in."""
        for owner in self.owners:
            owner.close()


def read_piece(piece: Piece) -> bytes:
    """Return a piece as bytes: of a file, what is there of it."""
    if isinstance(piece, FileRange):
        return os.pread(piece.descriptor, piece.size, piece.position)
    return bytes(piece)


def cut_pieces(pieces: Iterable[Piece], size: int) -> list[Piece]:
    """Return the pieces' first ``size`` bytes."""
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
