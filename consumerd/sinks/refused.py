# SPDX-License-Identifier: Apache-2.0
"""A record that a destination has refused, remembered until its batch comes again. Pure.

A writer that sends records of many batches together finds the refused one late, when its batch has gone. It drops what
was not acknowledged and remembers the record. The pipeline fetches the records again, and the writer refuses that one
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumerd.wire.records import RecordBatch


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a destination never takes.

    Attributes:
        offset: its offset.
        index: its number among the records with this offset, from 0; only Kafka 0.6 and 0.7 have several.
        reason: why it is refused, in words.
    """

    offset: int
    index: int
    reason: str

    def find_row(self, batch: RecordBatch) -> int | None:
        """Return the row of the record in a batch; None if absent."""
        if not batch.start <= self.offset < batch.next_offset:
            return None
        indexes: Sequence[int] = batch.indexes or bytes(len(batch))
        coordinates = zip(batch.offsets, indexes, strict=True)
        wanted = (self.offset, self.index)
        return next((row for row, coordinate in enumerate(coordinates) if coordinate == wanted), None)
