# SPDX-License-Identifier: Apache-2.0
"""Settings of a producer, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from consumerd.client.accumulator import RECORD_OVERHEAD_BYTES
from consumerd.errors import ConfigError
from consumerd.wire.compression import Codec
from consumerd.wire.modern.produce import ACKS_ALL, ACKS_LEADER, ACKS_NONE

ACKS_BY_NAME: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": ACKS_LEADER, "0": ACKS_NONE}
"""Values of ``acks`` by the names that options have for them."""

_POSITIVE: Final = (
    "batch_bytes",
    "max_request_bytes",
    "max_in_flight",
    "request_timeout_s",
    "delivery_timeout_s",
    "transaction_timeout_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer, checked on creation. Raises ConfigError.

    Times are in seconds, sizes in bytes.

    Args:
        acks: 0 asks for no response, 1 for the leader's, -1 for one after all in-sync replicas have the records.
        codec: Compression of batches.
        linger_s: Time that a batch waits for more records. While a partition's batch is in flight, the next one
            collects records anyway.
        batch_bytes: Size at which a batch is sent.
        max_request_bytes: Size limit of a request, and of a record.
        buffer_bytes: Memory limit for unfinished records, including Python objects.
        max_block_s: Longest time that a call waits for a topic or for memory.
        request_timeout_s: Longest wait for a response, after which the connection is closed.
        delivery_timeout_s: Limit for all attempts together, from a batch's first record on. It must exceed
            ``request_timeout_s`` to leave time for a second attempt after a broker that does not respond.
        close_timeout_s: Longest time that closing waits for acknowledgements.
        retry_backoff_s: Initial backoff of retries; it grows up to ``retry_backoff_max_s``.
        max_in_flight: Number of requests in flight per broker. A partition has at most one batch in flight.
        enable_idempotence: Number the records, so that brokers append no batch twice. Needs ``acks`` -1, and brokers of
            0.11 or later. Always True with a transactional id.
        transactional_id: Write in transactions, under this id. A later producer with the same id fences this one; the
            open transaction of an earlier one is aborted.
        transaction_timeout_ms: Longest time of a transaction in ms, after which the coordinator aborts it and fences
            the producer. Brokers limit it (``transaction.max.timeout.ms``, 15 minutes by default).
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
    enable_idempotence: bool = False
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    @property
    def is_idempotent(self) -> bool:
        """True if brokers can tell duplicates of this producer's batches."""
        return self.enable_idempotence or self.transactional_id is not None

    @property
    def attempt_timeout_s(self) -> float:
        """Longest wait for the response to one request, in seconds."""
        return min(self.request_timeout_s, self.delivery_timeout_s)

    def __post_init__(self) -> None:
        if self.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise ConfigError(f"acks: expected 0, 1 or -1 (all), got {self.acks}")
        if self.is_idempotent and self.acks != ACKS_ALL:
            raise ConfigError(
                f"acks: enable_idempotence and transactional_id need -1 (all), got {self.acks}; otherwise a new leader "
                "could lack a batch, and refuse those after it"
            )
        if self.transactional_id == "":
            raise ConfigError("transactional_id: expected a name, got an empty text; None writes without transactions")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: expected more than 0, got {getattr(self, name)}")
        for name in ("linger_s", "max_block_s", "close_timeout_s", "retry_backoff_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        least = self.max_request_bytes + RECORD_OVERHEAD_BYTES
        if self.buffer_bytes < least:
            raise ConfigError(
                f"buffer_bytes: {self.buffer_bytes} cannot hold one record of max_request_bytes; expected {least} or "
                f"more"
            )
        if self.linger_s >= self.delivery_timeout_s:
            raise ConfigError(
                f"linger_s: {self.linger_s:g} leaves no time to send; expected less than delivery_timeout_s, "
                f"{self.delivery_timeout_s:g}"
            )
