# SPDX-License-Identifier: Apache-2.0
"""Settings of fetching, and the interface by which it finds partition leaders.

:mod:`consumerd.cluster.directory` implements the interface. Requests go through :mod:`consumerd.client.fetch_protocol`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.cell import Cell
from consumerd.client.fetch_protocol import FetchRequestSettings
from consumerd.cluster.view import ClusterView
from consumerd.fetch.buffer import Marks, MemoryBudget
from consumerd.fetch.turnstile import Turnstile
from consumerd.model import TopicPartition
from consumerd.net.pool import PooledBroker
from consumerd.telemetry.hooks import Hooks


class LeaderDirectory(Protocol):
    """Source of the known partition leaders."""

    @property
    def views(self) -> Cell[ClusterView]:
        """Observable view of the cluster: brokers, topics and leaders; replaced after each change."""

    def find_leader(self, partition: TopicPartition) -> PooledBroker | None:
        """Return the partition's leader, or None if it is unknown."""

    def request_refresh(self, reason: str) -> None:
        """Ask for a refresh of the cluster's metadata soon; returns at once.

        Calls before the refresh begins cause one refresh together. ``reason`` is for the log.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings(FetchRequestSettings):
    """Settings of one fetcher, with those of its requests. Sizes in bytes.

    Without the native kernel, parts of about ``slice_bytes`` are decoded on the event loop, and compressed messages or
    batches larger than ``thread_bytes`` in a thread. With it, parts are of ``native_slice_bytes``. Those larger than
    ``native_thread_bytes``, which take about as long as a thread takes to start, are decoded in a thread.

    Args:
        max_partition_bytes: Usual size of one partition's part of a response.
        max_response_bytes: Limit of a response, from Fetch 3 on.
        principal: Our identity at brokers, for the advice when a read is refused.
        confirm_delay_s: Delay between the two ListOffsets checks of a position above the log end offset.
    """

    max_partition_bytes: int = 8 * 1024 * 1024
    max_response_bytes: int = 16 * 1024 * 1024
    max_wait_ms: int = 500
    request_timeout_s: float = 30.0
    principal: Principal = OUR_PRINCIPAL
    backoff_initial_s: float = 0.1
    backoff_maximum_s: float = 2.0
    confirm_delay_s: float = 1.0
    slice_bytes: int = 128 * 1024
    thread_bytes: int = 64 * 1024
    native_slice_bytes: int = 4 * 1024 * 1024
    native_thread_bytes: int = 256 * 1024


@dataclass(slots=True, kw_only=True)
class FeedTools:
    """Objects that all partition feeds of a fetcher share: settings, memory, threads, clocks."""

    settings: FetchSettings
    budget: MemoryBudget
    marks: Callable[[], Marks]
    """Function that returns the limits of the memory that each partition may hold now."""
    memory_short: Callable[[], None]
    """Function that tells the fetcher that a batch has to wait for memory."""
    hooks: Hooks
    executor: Executor
    turnstile: Turnstile
    allocate: Callable[[int], memoryview] | None
    """Function that allocates memory of a given size for decompressed or copied data; None for plain Python buffers."""
    now: Callable[[], float]
    random: Callable[[], float]
