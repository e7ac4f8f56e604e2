# SPDX-License-Identifier: Apache-2.0
"""What fetching needs of the rest, as small protocols, and the settings that it is given.

``cluster.directory``, ``net.pool`` and ``client.log_range`` fit them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from consumerd.aio.cell import Cell
from consumerd.cluster.view import ClusterView
from consumerd.model import TopicPartition
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.wire.modern.fetch import FetchRequest, FetchResponse


class LeaderDirectory(Protocol):
    """Who leads what, as far as is known now."""

    @property
    def views(self) -> Cell[ClusterView]:
        """What is known; replaced whenever something of it changes."""

    def find_leader(self, partition: TopicPartition) -> PooledBroker | None:
        """Return the partition's leader, None where none is known."""

    def request_refresh(self, reason: str) -> None:
        """Have the cluster's state read again soon; returns at once, and any number of calls make one reading."""


class FetchConnection(Protocol):
    """A connection that long polls are sent on."""

    def version_of(self, request: type[FetchRequest]) -> int:
        """Return the newest version that both sides speak."""

    async def request(self, request: FetchRequest, *, timeout_s: float, version: int | None = None) -> FetchResponse:
        """Send and return the answer. Raises ConnectionLost, RemoteProtocolError."""


class FetchConnections(Protocol):
    """Where connections come from."""

    async def get(self, broker: PooledBroker, purpose: Purpose) -> FetchConnection:
        """Return a connection; bounded, with a backoff of its own. Raises ConnectionLost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How to fetch. Sizes in bytes.

    ``max_message_bytes`` is the largest unit (message, wrapper, batch), fetched as well as decompressed.
    ``slice_bytes`` is about how much is decoded in one turn of the event loop; a compressed unit larger than
    ``thread_bytes`` is decoded in a thread instead. With the native kernel pieces are of ``native_slice_bytes``, and all
    that are larger than ``native_thread_bytes``, which take about as long as a thread takes to begin, are decoded in a
    thread. ``identity`` is who brokers take us for, as far as we know: it is named where they refuse to let us read.
    """

    max_partition_bytes: int = 8 * 1024 * 1024
    max_message_bytes: int = 64 * 1024 * 1024
    max_response_bytes: int = 16 * 1024 * 1024
    max_wait_ms: int = 500
    min_bytes: int = 1
    read_committed: bool = False
    request_timeout_s: float = 30.0
    identity: str = "User:ANONYMOUS"
    backoff_initial_s: float = 0.1
    backoff_maximum_s: float = 2.0
    confirm_delay_s: float = 1.0
    slice_bytes: int = 128 * 1024
    thread_bytes: int = 64 * 1024
    native_slice_bytes: int = 4 * 1024 * 1024
    native_thread_bytes: int = 256 * 1024
