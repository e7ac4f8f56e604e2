# SPDX-License-Identifier: Apache-2.0
"""How a producer works: what may be set, and what it is where nobody says."""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.client.accumulator import RECORD_OVERHEAD_BYTES
from consumerd.errors import ConfigError
from consumerd.wire.compression import Codec
from consumerd.wire.modern.produce import ACKS_ALL, ACKS_LEADER, ACKS_NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of one producer; checked when they are made. Raises ConfigError.

    ``acks``: 0 asks for no answer, 1 for the leader's, -1 for one when all replicas in sync have the records.
    ``linger_s`` is how long an open batch waits for more records; while a partition's batch is in flight the next one fills
    anyway. ``buffer_bytes`` bounds what is on its way, with the objects around it. ``max_block_s`` bounds how long a call
    waits for a topic and for room, ``request_timeout_s`` how long the answer to one request is waited for before its
    connection is given up, ``delivery_timeout_s`` all attempts together, from a batch's first record on, and
    ``close_timeout_s`` the end. After silence, a second attempt needs ``delivery_timeout_s > request_timeout_s``.
    """

    acks: int = ACKS_ALL
    codec: Codec = Codec.NONE
    linger_s: float = 0.0
    batch_bytes: int = 64 << 10
    max_request_bytes: int = 1 << 20
    buffer_bytes: int = 32 << 20
    max_block_s: float = 60.0
    request_timeout_s: float = 30.0
    delivery_timeout_s: float = 120.0
    close_timeout_s: float = 30.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 1.0
    max_in_flight: int = 5

    @property
    def attempt_timeout_s(self) -> float:
        """Longest wait for the answer to one request, in seconds; after it the connection is given up."""
        return min(self.request_timeout_s, self.delivery_timeout_s)

    def __post_init__(self) -> None:
        if self.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise ConfigError(f"acks: expected 0, 1 or -1 (all), got {self.acks}")
        for name in ("batch_bytes", "max_request_bytes", "max_in_flight", "request_timeout_s", "delivery_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: expected more than 0, got {getattr(self, name)}")
        for name in ("linger_s", "max_block_s", "close_timeout_s", "retry_backoff_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        least = self.max_request_bytes + RECORD_OVERHEAD_BYTES
        if self.buffer_bytes < least:
            raise ConfigError(
                f"buffer_bytes: {self.buffer_bytes} cannot hold one record of max_request_bytes; expected {least} or more"
            )
        if self.linger_s >= self.delivery_timeout_s:
            raise ConfigError(
                f"linger_s: {self.linger_s:g} leaves no time to send; expected less than delivery_timeout_s, "
                f"{self.delivery_timeout_s:g}"
            )
