"""Reads one range of offsets on an executor, from the leader itself, into Arrow batches.

Nothing here needs Spark or the driver: a :class:`ReadTask` says it all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.spark.datasource.options import ClusterOptions, FetchOptions
from consumerd.spark.datasource.planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """One range, and all that is needed to read it. ``cluster.bootstrap`` is always there; ZooKeeper is not asked.

    With ``fail_on_data_loss`` offsets that the log no longer holds are an error; without, they are left out and reported
    on the executor's stderr. Can be pickled.
    """

    range: OffsetRange
    cluster: ClusterOptions
    fetch: FetchOptions
    fail_on_data_loss: bool = True
    include_headers: bool = False


def read_range(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range under ``schema.arrow_schema``, in the order of their offsets.

    Fetches ahead in a thread, which ends with the iterator. Raises OffsetOutOfRange (``failOnDataLoss``), RecordTooLarge,
    CorruptMessageError, BrokerError, and ConnectionLost when nothing came for ``patience_s``; each names the partition and
    the offset.
    """
    raise NotImplementedError
