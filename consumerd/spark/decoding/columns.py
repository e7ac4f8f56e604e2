# SPDX-License-Identifier: Apache-2.0
"""Protocol of a decoder of one column, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

FIRST_US: Final = -62_135_596_800_000_000
LAST_US: Final = 253_402_300_799_999_999
"""First and last microsecond of the years 1 to 9999, which Python and Spark can show."""


class BadValue(ValueError):
    """Raised for bytes that cannot be decoded. The message is the reason, without the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Decoded column of keys or values, with the reasons for undecodable values.

    Attributes:
        values: the decoded values; null where the bytes are null or cannot be decoded.
        reasons: reason for each undecodable row, by the row's index in the batch.
    """

    values: pa.Array
    reasons: Mapping[int, str] = field(default_factory=dict)


class ColumnDecoder(Protocol):
    """Interface of decoders of keys or values. Pickled, and sent to Spark's tasks."""

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the decoded column."""

    def decode(self, column: pa.Array) -> Decoded:
        """Decode a ``binary`` column; null stays null.

        An undecodable value becomes null, and the result has the reason. Raises only MemoryError, also Arrow's.
        """
