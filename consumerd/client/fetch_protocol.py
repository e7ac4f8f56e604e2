# SPDX-License-Identifier: Apache-2.0
"""Interface of fetching, implemented for each generation of brokers.

A generation is Kafka 0.6 and 0.7, or 0.8 and later. The package ``fetch`` uses only these Protocols and values.
:mod:`consumerd.client.modern_fetch` implements them for brokers of 0.8 and later, :mod:`consumerd.client.legacy_fetch`
for those of 0.6 and 0.7. :mod:`consumerd.client.fetch_protocols` chooses the implementation for a cluster.

Example, one request::

    channel = protocol.open(broker, FetchRequestSettings())  # once for each broker
    exchange = await channel.connect()
    exchange.write(asks, None, max_bytes=1 << 20, wait_ms=500)
    answer = await exchange.send(timeout_s=30.5)
    for one in answer.partitions():
        pieces = one.records.cut(slice_bytes=1 << 17, expansion=None)
        batch = one.records.decode(pieces[0], partition=partition, start=100, limits=Limits())

Error codes are those of :mod:`consumerd.wire.errorcodes`. An offset that a generation's protocol does not have is None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from consumerd.model import TopicPartition
from consumerd.wire.pieces import Piece
from consumerd.wire.records import Limits, RecordBatch

if TYPE_CHECKING:
    from consumerd.net.pool import PooledBroker  # pure modules import this one, and the pool does IO

Key = tuple[str, int]
"""Topic and partition number, which name a partition in Fetch requests and answers.

They name it among the partitions of one broker only, and all keys of a request are of one broker. In Kafka 0.6 and 0.7,
``0-3`` and ``1-3`` are two partitions of a topic, but partition ``B-P`` is only on broker B. So its key is ``P`` there.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequestSettings:
    """Settings that go into each Fetch request.

    Args:
        min_bytes: Number of bytes for which a broker answers before the wait time of the request is over.
        read_committed: True to leave out records of aborted and open transactions.
        max_message_bytes: Limit of a message, wrapper or batch in bytes, fetched as well as decompressed.
        with_session: False to name all partitions in each request, so that requests do not depend on each other.
        is_short: True if brokers need not wait, and no request that waits may delay these.
    """

    min_bytes: int = 1
    max_message_bytes: int = 64 * 1024 * 1024
    read_committed: bool = False
    with_session: bool = True
    is_short: bool = False


class FetchReader(Protocol):
    """Reader of one partition, to which fetched records are given."""

    @property
    def key(self) -> Key:
        """Topic and partition number."""


class FetchAsk(Protocol):
    """Entry of one partition in a Fetch request."""

    @property
    def cursor(self) -> FetchReader:
        """Reader of the partition, to which the fetched records are given.

        If a partition gets another reader, the new one does not know what brokers returned to the previous one.
        """

    @property
    def offset(self) -> int:
        """First offset to fetch."""

    @property
    def max_bytes(self) -> int:
        """Limit of the partition's record set, in bytes.

        Brokers may exceed it for a first message or record batch that is larger.
        """


class RecordSet(Protocol):
    """Fetched bytes of one partition: stored messages or record batches, in offset order.

    The last one may be cut off.
    """

    @property
    def data(self) -> bytes | memoryview:
        """Messages or record batches, as bytes."""

    @property
    def has_head(self) -> bool:
        """True if the header of the first message or record batch was fetched completely."""

    @property
    def proof_bytes(self) -> int:
        """Size in bytes of a fetch that can prove where damage ends.

        0 if no larger fetch than usual is needed.
        """

    def with_data(self, data: bytes | memoryview) -> RecordSet:
        """Return the same record set with other memory for its bytes.

        Args:
            data: Copy of the bytes.
        """

    def cut(self, *, slice_bytes: int, expansion: float | None) -> list[Piece]:
        """Cut the record set into pieces that are decoded one by one.

        A piece has whole messages or record batches, at least one. Only headers are read. Bytes of an incomplete one at
        the end, or after an invalid size, are left out.

        Args:
            slice_bytes: Approximate size of a piece, decompressed.
            expansion: Ratio of decompressed to fetched size; None before anything was decoded.
        """

    def first_unit_bytes(self) -> int | None:
        """Return the size in bytes of the first message or record batch, by its header.

        None if the response ends before the size field, 0 if the stated size is invalid.
        """

    def read_claim(self, position: int) -> int | None:
        """Return the offset after the first message or record batch, as its own header claims.

        None if the claim is invalid: it must be greater than ``position`` and not above the high watermark. Without a
        high watermark nothing limits a claim.
        """

    def decode(
        self,
        piece: Piece,
        *,
        partition: TopicPartition,
        start: int,
        limits: Limits,
        make_room: Callable[[], memoryview] | None = None,
    ) -> RecordBatch:
        """Decode one piece of the record set, from an offset on; safe in any thread.

        Args:
            piece: Bytes of whole messages or record batches, by :meth:`cut`.
            start: Offset of the first record wanted.
            limits: Size limits of what is decoded.
            make_room: Returns writable memory for decompressed data, of any size. Data that does not fit is stored in
                memory allocated here, as all of it is with None.

        Raises CorruptMessageError, of which DecompressedTooLarge is one, and ConfigError if the library of a codec is
        missing.
        """


# Never changed, but not frozen: one is made for each partition of each answer.
@dataclass(slots=True, kw_only=True)
class PartitionAnswer:
    """Part of a Fetch response for one partition.

    With an error code it has no records.
    """

    key: Key
    error_code: int
    high_watermark: int | None
    """Offset after the last record that consumers may see."""
    last_stable_offset: int | None
    records: RecordSet | None


class FetchAnswer(Protocol):
    """Response to one Fetch request."""

    def partitions(self) -> Iterator[PartitionAnswer]:
        """Yield the response's parts, one per partition. May be called once only.

        Some parts may be of partitions that were not asked for.
        """

    def count_lines(self) -> int:
        """Return the number of partitions in the request plus the number in the response.

        The fetcher estimates from it the time that a request costs.
        """


class FetchExchange(Protocol):
    """One Fetch request to a broker and its response: :meth:`write`, then :meth:`send`."""

    @property
    def limits_answer(self) -> bool:
        """True if the request can limit the size of the whole response.

        Otherwise it limits only that of each partition.
        """

    @property
    def waits(self) -> bool:
        """True if the broker can delay a response while there are no new records.

        Otherwise it responds at once, and the fetcher pauses after an empty response.
        """

    def write(
        self, asks: Mapping[Key, FetchAsk], news: Collection[Key] | None, *, max_bytes: int, wait_ms: int
    ) -> None:
        """Compose the request.

        Args:
            asks: Partitions to read, each with its offset and size limit.
            news: Partitions whose entry may differ from the one in the previous request; None if any may. Only these
                are compared.
            max_bytes: Limit of the whole response, in bytes; used only if :attr:`limits_answer`.
            wait_ms: Time for which a broker may delay the response while there are no new records, in ms; used only if
                :attr:`waits`.
        """

    async def send(self, *, timeout_s: float) -> FetchAnswer | None:
        """Send the request and return its response.

        Returns None if the broker has lost the fetch session, its memory of earlier requests; the next request then
        names all partitions again. Raises BrokerError for the whole request, ConnectionLost, ProtocolError.

        Args:
            timeout_s: Time limit for the response, in seconds.
        """


class FetchChannel(Protocol):
    """Sends Fetch requests to one broker; with a fetch session one at a time.

    Keeps the state of the fetch session, which the broker remembers between requests.
    """

    async def connect(self) -> FetchExchange:
        """Return the next request, on a connection to the broker.

        The time is limited by the pool of connections, which also waits for a backoff after failures. Raises
        ConnectionLost.
        """


class FetchProtocol(Protocol):
    """Fetching from brokers of one generation: Kafka 0.6 and 0.7, or 0.8 and later."""

    @property
    def has_timestamps(self) -> bool:
        """True if records may have timestamps."""

    def open(self, broker: PooledBroker, settings: FetchRequestSettings) -> FetchChannel:
        """Return a channel for Fetch requests to a broker; connects to nothing yet."""
