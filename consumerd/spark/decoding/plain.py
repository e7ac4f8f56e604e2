# SPDX-License-Identifier: Apache-2.0
"""Decoders of the formats ``raw`` and ``utf8``."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from consumerd.spark.decoding.columns import BadValue, Decoded
from consumerd.spark.decoding.rows import decode_rows


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """Decoder of the format ``raw``: the bytes as they are."""

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the decoded column: ``binary``."""
        return pa.binary()

    def decode(self, column: pa.Array) -> Decoded:
        """Return the column unchanged; no value is undecodable."""
        return Decoded(values=column)


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Decoder of the format ``utf8``: text, as strict as Python's codec.

    Surrogates and overlong forms are refused.
    """

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the decoded column: ``string``."""
        return pa.string()

    def decode(self, column: pa.Array) -> Decoded:
        """Decode a ``binary`` column of UTF-8; null stays null.

        An undecodable value becomes null, and the result has the reason.
        """
        try:
            return Decoded(values=column.cast(pa.string()))
        except pa.ArrowInvalid:
            # value by value, to find the bad ones
            return decode_rows(column, _decode_text, read_as=pa.string(), returned_as=pa.string())


def _decode_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"not UTF-8 at byte {error.start}: {error.reason}") from None
