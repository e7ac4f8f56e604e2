# SPDX-License-Identifier: Apache-2.0
"""Search for records in one Parquet file, by identity or by key.

Reads no other columns. No Spark in here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd.spark.identities import COLUMNS, Identities, Mask
from consumerd.spark.table.rewriting import RowNumbers

NO_IDENTITIES: Final = Identities({})
_KEY: Final = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoughtRecords:
    """Records to find: those of some identities, and those with one of some keys.

    Attributes:
        identities: of the topic.
        keys: as the searched column ``key`` holds them: bytes, or decoded values. None to search by identity only.
    """

    identities: Identities = NO_IDENTITIES
    keys: pa.Array | None = None

    @property
    def columns(self) -> list[str]:
        """Columns that the search reads."""
        return [*COLUMNS] if self.keys is None else [*COLUMNS, _KEY]

    def find(self, rows: pa.Table) -> Mask:
        """Return, for each row, whether it is wanted."""
        found = self.identities.find(rows)
        return found if self.keys is None else found | find_keys(rows[_KEY], self.keys)


def find_keys(column: pa.Array | pa.ChunkedArray, keys: pa.Array) -> Mask:
    """Return a mask of a column's keys that are among ``keys``. Null is no key."""
    if pa.types.is_nested(column.type):
        # Arrow has no set of structs
        known = {repr(key) for key in keys.to_pylist() if key is not None}
        return np.fromiter((repr(key) in known for key in column.to_pylist()), np.bool_, len(column))
    return np.asarray(pc.is_in(column, value_set=keys.drop_null().cast(column.type)))


def read_wanted(path: Path, wanted: SoughtRecords) -> Iterator[tuple[pa.Table, RowNumbers]]:
    """Yield the identities of wanted rows with their numbers in the file, by row groups.

    Raises OSError, ArrowException.
    """
    first = 0
    with pq.ParquetFile(path) as parquet:
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=wanted.columns, use_threads=False)
            found = np.flatnonzero(wanted.find(rows))
            if len(found):
                yield rows.select(COLUMNS).take(pa.array(found)), found + first
            first += len(rows)
