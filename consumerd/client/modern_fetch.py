# SPDX-License-Identifier: Apache-2.0
"""Fetching from brokers of Kafka 0.8 and later, as :mod:`consumerd.client.fetch_protocol` defines it.

A request has the newest Fetch version that the broker and we speak. With an older version, brokers would convert record
sets to an older message format. Fields that a version lacks keep their defaults: no request depends on such a field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from consumerd.client.fetch_protocol import FetchAsk, FetchRequestSettings, Key, PartitionAnswer
from consumerd.client.fetch_session import SESSION_ERRORS, FetchSession, ask_without_session
from consumerd.errors import ConsumerdError, RequestTimedOut
from consumerd.model import TopicPartition
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.wire.errorcodes import broker_error
from consumerd.wire.modern.extent import HEAD_BYTES, read_claim
from consumerd.wire.modern.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AbortedTransaction,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.modern.slices import cut_record_set, first_unit_bytes
from consumerd.wire.pieces import Piece
from consumerd.wire.primitives import MAX_INT32
from consumerd.wire.records import Limits, RecordBatch

_RESPONSE_LIMIT_SINCE: Final = 3
"""KIP-74: the request limits the whole response."""
_ISOLATION_SINCE: Final = 4
_SESSIONS_SINCE: Final = 7


class FetchConnection(Protocol):
    """Connection to a broker on which Fetch requests are sent."""

    def version_of(self, request: type[FetchRequest]) -> int:
        """Return the newest version of this request that the broker and we speak."""

    async def request(self, request: FetchRequest, *, timeout_s: float, version: int | None = None) -> FetchResponse:
        """Send a Fetch request and return its response.

        Args:
            timeout_s: Time limit for the response, in seconds.
            version: Version to send; None for the newest that both sides speak.

        Raises ConnectionLost, RemoteProtocolError.
        """


class FetchConnections(Protocol):
    """Pool of connections for Fetch requests, such as ``net.pool.ConnectionPool``."""

    async def get(self, broker: PooledBroker, purpose: Purpose) -> FetchConnection:
        """Return a connection to a broker. Raises ConnectionLost.

        The time is limited. After a failure, the pool waits for a backoff before it connects again.
        """


class ModernFetchProtocol:
    """Sends Fetch requests to brokers of Kafka 0.8 and later.

    :meth:`open` gives each broker a channel, usually with a fetch session of its own (KIP-227).

    Args:
        connections: Pool of connections; each request gets its connection there.
        now: Monotonic clock, in seconds.
    """

    def __init__(self, connections: FetchConnections, *, now: Callable[[], float]) -> None:
        self._connections = connections
        self._now = now

    @property
    def has_timestamps(self) -> bool:
        """True: messages have them from Kafka 0.10 on."""
        return True

    def open(self, broker: PooledBroker, settings: FetchRequestSettings) -> ModernChannel:
        """Return a channel for Fetch requests to a broker.

        It begins a fetch session (KIP-227), unless ``settings`` say otherwise.
        """
        return ModernChannel(broker, self._connections, FetchSession(self._now), settings)


class ModernChannel:
    """Sends Fetch requests to one broker of Kafka 0.8 or later.

    Keeps the fetch session with the broker (KIP-227).
    """

    def __init__(
        self,
        broker: PooledBroker,
        connections: FetchConnections,
        session: FetchSession,
        settings: FetchRequestSettings,
    ) -> None:
        self._broker = broker
        self._connections = connections
        self._session = session
        self._settings = settings

    async def connect(self) -> ModernExchange:
        """Return the next Fetch request, on a connection to the broker.

        Its version is the newest that both sides speak. Raises ConnectionLost.
        """
        try:
            purpose = Purpose.CONTROL if self._settings.is_short else Purpose.FETCH
            connection = await self._connections.get(self._broker, purpose)
            version = connection.version_of(FetchRequest)
        except ConsumerdError:
            self._session.unanswered()
            raise
        context = f"Fetch from broker {self._broker.id}"
        return ModernExchange(connection, version, self._session, self._settings, context=context)


class ModernExchange:
    """One Fetch request and its response; keeps the fetch session (KIP-227) up to date."""

    def __init__(
        self,
        connection: FetchConnection,
        version: int,
        session: FetchSession,
        settings: FetchRequestSettings,
        *,
        context: str,
    ) -> None:
        self._connection = connection
        self._version = version
        self._session = session
        self._settings = settings
        self._context = context
        self._has_session = settings.with_session and version >= _SESSIONS_SINCE
        self._request: FetchRequest | None = None

    @property
    def limits_answer(self) -> bool:
        """True if the request can limit the whole response's size: from Fetch version 3 on."""
        return self._version >= _RESPONSE_LIMIT_SINCE

    @property
    def waits(self) -> bool:
        """True: brokers delay empty responses by up to the request's wait time."""
        return True

    def write(
        self, asks: Mapping[Key, FetchAsk], news: Collection[Key] | None, *, max_bytes: int, wait_ms: int
    ) -> None:
        """Compose the request; with a fetch session, only of partitions that have changed.

        Args:
            asks: Partitions to read, each with its offset and size limit.
            news: Partitions whose entry may differ from the one in the previous request; None if any may. Only these
                are compared.
            max_bytes: Limit of the whole response, in bytes; used only if :attr:`limits_answer`.
            wait_ms: Time for which a broker may delay the response while there are no new records, in ms.
        """
        version, read_committed = self._version, self._settings.read_committed
        step = self._session.plan(asks, news) if self._has_session else ask_without_session(asks)
        # a version that lacks a field takes its default alone
        self._request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=self._settings.min_bytes,
            max_bytes=max_bytes if self.limits_answer else MAX_INT32,
            isolation_level=READ_COMMITTED if read_committed and version >= _ISOLATION_SINCE else READ_UNCOMMITTED,
            session_id=step.session_id,
            session_epoch=step.epoch,
            topics=_by_topic(step.asks),
            forgotten_topics=_forgotten(step.forgotten),
        )

    async def send(self, *, timeout_s: float) -> ModernAnswer | None:
        """Send the request and return its response; None after an error of the fetch session.

        After such an error the next request names all partitions again. Raises BrokerError for the whole request,
        ConnectionLost, ProtocolError.
        """
        request = self._request
        assert request is not None
        try:
            response = await self._connection.request(request, timeout_s=timeout_s, version=self._version)
            is_of_session = self._has_session and response.error_code in SESSION_ERRORS
            if response.error_code and not is_of_session:
                raise broker_error(response.error_code, self._context)
        except RequestTimedOut:
            self._session.unanswered(late=True)  # no other failure says anything of sessions
            raise
        except ConsumerdError:
            self._session.unanswered()
            raise
        if response.error_code:
            self._session.refused(response.error_code)
            return None
        if self._has_session:
            self._session.answered(response.session_id)
        return ModernAnswer(request, response, read_committed=self._settings.read_committed)


class ModernAnswer:
    """Fetch response that has no error code for the response as a whole."""

    def __init__(self, request: FetchRequest, response: FetchResponse, *, read_committed: bool) -> None:
        self._request = request
        self._response = response
        self._read_committed = read_committed

    def partitions(self) -> Iterator[PartitionAnswer]:
        """Yield the response's parts, one per partition.

        With a fetch session, only partitions with new records or state are in it.
        """
        read_committed = self._read_committed
        for topic in self._response.topics:
            name = topic.topic
            for one in topic.partitions:
                yield _read_partition(name, one, read_committed=read_committed)

    def count_lines(self) -> int:
        """Return the number of partitions in the request plus the number in the response.

        The fetcher estimates from it the time that a request costs.
        """
        asked = sum(len(topic.partitions) for topic in self._request.topics)
        return asked + sum(len(topic.partitions) for topic in self._response.topics)


def _read_partition(topic: str, one: FetchedPartition, *, read_committed: bool) -> PartitionAnswer:
    records: ModernRecordSet | None = None
    if data := one.record_set:
        aborted = (one.aborted_transactions or ()) if read_committed else None
        records = ModernRecordSet(data, one.high_watermark, aborted)
    return PartitionAnswer(
        key=(topic, one.partition),
        error_code=one.error_code,
        high_watermark=one.high_watermark,
        last_stable_offset=one.last_stable_offset if one.last_stable_offset >= 0 else None,
        records=records,
    )


class ModernRecordSet:
    """Fetched bytes of one partition, in message formats (magic) 0, 1 and 2, mixed.

    Args:
        data: The bytes.
        high_watermark: High watermark of the partition, from the response.
        aborted: Aborted transactions of the response; None under ``read_uncommitted``.
    """

    __slots__ = ("_aborted", "_high_watermark", "data")

    def __init__(
        self, data: bytes | memoryview, high_watermark: int, aborted: Sequence[AbortedTransaction] | None = None
    ) -> None:
        self.data: Final = data
        self._high_watermark = high_watermark
        self._aborted = aborted

    @property
    def has_head(self) -> bool:
        """True if there are at least as many bytes as in the longest header.

        So the header of the first message or record batch is complete.
        """
        return len(self.data) >= HEAD_BYTES

    @property
    def proof_bytes(self) -> int:
        """0: the end of a damaged batch is searched offset by offset."""
        return 0

    def with_data(self, data: bytes | memoryview) -> ModernRecordSet:
        """Return the same record set with other memory for its bytes.

        Args:
            data: Copy of the bytes.
        """
        return ModernRecordSet(data, self._high_watermark, self._aborted)

    def cut(self, *, slice_bytes: int, expansion: float | None) -> list[Piece]:
        """Cut the record set into pieces, by the sizes and offsets in headers.

        A piece has whole messages or record batches, at least one.

        A record set with aborted transactions is one piece.

        Args:
            slice_bytes: Approximate size of a piece, decompressed.
            expansion: Ratio of decompressed to fetched size; None before anything was decoded.
        """
        pieces = cut_record_set(self.data, slice_bytes=slice_bytes, expansion=expansion)
        if pieces and self._aborted:
            # The marker that ends an aborted transaction is a record: a decoder of a later piece would not know of it.
            compressed = any(piece.compressed for piece in pieces)
            expanded_bytes = sum(piece.expanded_bytes for piece in pieces)
            return [Piece(0, pieces[-1].end, pieces[-1].next_offset, compressed, expanded_bytes)]
        return pieces

    def first_unit_bytes(self) -> int | None:
        """Return the size in bytes of the first message or record batch, by its header.

        None if the response ends before the size field, 0 if the stated size is invalid.
        """
        return first_unit_bytes(self.data)

    def read_claim(self, position: int) -> int | None:
        """Return the offset after the first message or record batch, as its own header claims.

        None if the claim is invalid: it must be greater than ``position`` and not above the high watermark.
        """
        high_watermark = self._high_watermark
        return read_claim(self.data, 0, position, high_watermark if high_watermark >= 0 else None)

    def decode(
        self,
        piece: Piece,
        *,
        partition: TopicPartition,
        start: int,
        limits: Limits,
        make_room: Callable[[], memoryview] | None = None,
    ) -> RecordBatch:
        """Decode one piece of the record set, from an offset on.

        If the offsets in the headers of the piece contradict each other, the bytes fetched after the piece are used to
        find the right ones.

        Args:
            piece: Bytes of whole messages or record batches, by :meth:`cut`.
            start: Offset of the first record wanted.
            limits: Size limits of what is decoded.
            make_room: Returns writable memory for decompressed data, of any size. Data that does not fit is stored in
                memory allocated here, as all of it is with None.

        Raises CorruptMessageError, and ConfigError if the library of a codec is missing.
        """
        return decode_record_set(
            self.data[piece.begin : piece.end],
            partition=partition,
            start=start,
            limits=limits,
            read_committed=self._aborted is not None,
            aborted=self._aborted,
            high_watermark=self._high_watermark,
            following=memoryview(self.data)[piece.end :],
            attested=True,
            make_room=make_room,
        )


def _by_topic(asks: Iterable[FetchAsk]) -> tuple[FetchTopic, ...]:
    """Group by topic; topics in the order of their first partition."""
    topics: dict[str, list[FetchPartition]] = {}
    for ask in asks:
        topic, number = ask.cursor.key
        line = FetchPartition(partition=number, fetch_offset=ask.offset, partition_max_bytes=ask.max_bytes)
        lines = topics.get(topic)
        if lines is None:
            topics[topic] = [line]
        else:
            lines.append(line)
    return tuple(FetchTopic(topic=topic, partitions=tuple(lines)) for topic, lines in topics.items())


def _forgotten(keys: Iterable[Key]) -> tuple[ForgottenTopic, ...]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, number in keys:
        topics[topic].append(number)
    return tuple(ForgottenTopic(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items())
