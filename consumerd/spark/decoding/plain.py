# SPDX-License-Identifier: Apache-2.0
"""Values that are taken as they are, and text."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from consumerd.spark.decoding.columns import Decoded


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """``raw``: the bytes."""

    @property
    def type(self) -> pa.DataType:
        """See ColumnDecoder."""
        return pa.binary()

    def decode(self, column: pa.Array) -> Decoded:
        """See ColumnDecoder."""
        return Decoded(values=column)


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """``utf8``: strict, as Python's own codec; surrogates and overlong forms are bad."""

    @property
    def type(self) -> pa.DataType:
        """See ColumnDecoder."""
        return pa.string()

    def decode(self, column: pa.Array) -> Decoded:
        """See ColumnDecoder."""
        try:
            return Decoded(values=column.cast(pa.string()))
        except pa.ArrowInvalid:
            return _decode_each(column)


def _decode_each(column: pa.Array) -> Decoded:
    texts: list[str | None] = []
    reasons: dict[int, str] = {}
    for row, value in enumerate(column.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            reasons[row] = f"not UTF-8 at byte {error.start}: {error.reason}"
            texts.append(None)
    return Decoded(values=pa.array(texts, pa.string()), reasons=reasons)
