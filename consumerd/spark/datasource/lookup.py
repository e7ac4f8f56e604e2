"""What a cluster has, asked on the driver: topics and partitions, ends of logs, times, groups' positions.

:class:`ClusterLookup` runs its connections on an event loop of its own in a thread, so that it can be used from anywhere,
a notebook with a running loop included, and stays connected between the triggers of a stream.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from consumerd.client.log_range import LogRange
from consumerd.model import TopicPartition
from consumerd.spark.datasource.options import ClusterOptions, ReadOptions, Selection


class ClusterLookup:
    """A cluster as the driver asks it; ``with`` connects and disconnects.

    Each call blocks, ``timeout_s`` at most. They raise ConfigError (TLS files), ConnectionLost, CoordinationError, BrokerError.
    """

    def __init__(self, cluster: ClusterOptions, *, timeout_s: float = 60.0) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def bootstrap(self) -> str:
        """Return the addresses of the brokers that are there, for executors: ``host:port,host:port``."""
        raise NotImplementedError

    def find_partitions(self, selection: Selection) -> tuple[TopicPartition, ...]:
        """Return the partitions that are selected, in order. Never makes a topic.

        Raises NotFound for a topic or partition that was named and is not there. A pattern may match nothing.
        """
        raise NotImplementedError

    def log_ranges(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Return what each partition's log holds: ``[earliest, latest)``."""
        raise NotImplementedError

    def resolve_start(self, options: ReadOptions, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that ``options.starting`` means in each partition, whether or not the log (still) holds it.

        Raises NotFound for a group without a position of a partition, and where no record is of a time or later (each
        unless the options say otherwise); ConfigError where a bound by partition does not name exactly ``partitions``.
        """
        raise NotImplementedError

    def resolve_end(self, options: ReadOptions, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that ``options.ending`` means; where no record is of a time or later that is the log's end.

        Raises as :meth:`resolve_start`.
        """
        raise NotImplementedError
