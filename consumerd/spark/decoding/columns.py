# SPDX-License-Identifier: Apache-2.0
"""What a decoder of one column is, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

FIRST_US: Final = -62_135_596_800_000_000
LAST_US: Final = 253_402_300_799_999_999
"""The years 1 to 9999, which are those that Python and Spark show."""


class BadValue(ValueError):
    """Bytes that are not what they should be. The message says why, without repeating them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A column decoded: ``values`` are null where the bytes were null, and where they are bad.

    ``reasons`` says why, for each bad row by its number.
    """

    values: pa.Array
    reasons: Mapping[int, str] = field(default_factory=dict)


class ColumnDecoder(Protocol):
    """Decodes keys or values. Can be pickled, so that tasks have it."""

    @property
    def type(self) -> pa.DataType:
        """The type of what it returns."""

    def decode(self, column: pa.Array) -> Decoded:
        """Decode a column of ``binary``; nulls stay null. Raises MemoryError (Arrow's own as well), nothing else."""
