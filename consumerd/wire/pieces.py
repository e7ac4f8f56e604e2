# SPDX-License-Identifier: Apache-2.0
"""Piece: whole messages or batches of a record set that are decoded together. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``[begin, end)`` of a record set that are decoded together.

    They are whole messages, compressed wrappers or batches.
    """

    begin: int
    end: int
    next_offset: int
    """Offset after the last message or batch of the piece, according to its header; not verified."""
    compressed: bool
    """True if any of its messages or batches is compressed."""
    expanded_bytes: int = 0
    """Decompressed size in bytes that the compressed messages or batches declare; untrusted."""
