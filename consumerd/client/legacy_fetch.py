# SPDX-License-Identifier: Apache-2.0
"""Fetching from brokers of Kafka 0.6 and 0.7, as :mod:`consumerd.client.fetch_protocol` defines it.

A request is a MULTIFETCH of all partitions asked for; its response has a message set for each, in the same order.
Source: "Writing a Driver for Kafka", and a real Kafka 0.7.2 (``tests/vectors/legacy``). It differs from later releases:

- Brokers respond at once, also without messages.
- There is no high watermark. Nothing limits what a header claims, but a response that is shorter than asked for ends
  with the log or with a log segment, and there a message ends, too.
- A message larger than asked for is cut off, also the first one. Error 4 of the document is never answered.
- An offset inside of a message is no error: the broker returns the bytes from there on.

Damaged bytes
    Any offset leads somewhere, also into a message. The error of damaged bytes has the end of the damage as its
    ``next_offset`` if the fetched bytes prove one (:mod:`consumerd.wire.legacy.boundaries`), or else the end of the log
    or of the log segment, if they reach it. If they are too few for a proof, the second fetch is larger.

    Example: 5,000 bytes are fetched from offset 1000. The message at 1000 is damaged; its length says 300. A message
    begins at 1300, and no other end fits the checksum: ``next_offset`` is 1300.

First fetch of a reader
    Its position may lie inside of a message, where valid messages may lie, too. The bytes before it are fetched once,
    to find that out (:mod:`consumerd.client.legacy_starts`). Then the record set is an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from consumerd.client.fetch_protocol import FetchAsk, FetchReader, FetchRequestSettings, Key, PartitionAnswer
from consumerd.client.leaders import Connections
from consumerd.client.legacy_starts import find_enclosing_message
from consumerd.client.offset_lookup import EARLIEST_TIME
from consumerd.errors import CorruptMessageError, DecompressedTooLarge
from consumerd.model import TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.legacy.boundaries import Enclosing, find_end_of_damage, needed_bytes, starts_with_nothing
from consumerd.wire.legacy.extent import cut_message_set, first_message_bytes, read_claim
from consumerd.wire.legacy.message_set import decode_message_set
from consumerd.wire.legacy.messages import (
    LegacyErrorCode,
    LegacyFetchRequest,
    LegacyFetchResponse,
    LegacyMultiFetchRequest,
    LegacyOffsetsRequest,
)
from consumerd.wire.legacy.stored_message import HEAD_BYTES
from consumerd.wire.legacy.wire_types import MAX_COUNT
from consumerd.wire.pieces import Piece
from consumerd.wire.records import Limits, RecordBatch


class LegacyFetchProtocol:
    """Sends MULTIFETCH requests to brokers of Kafka 0.6 and 0.7.

    Args:
        connections: Pool of connections, whose dialer is ``net.legacy_dialer.LegacyDialer``; each request gets its
            connection there.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @property
    def has_timestamps(self) -> bool:
        """False: a message is a payload alone."""
        return False

    def open(self, broker: PooledBroker, settings: FetchRequestSettings) -> LegacyChannel:
        """Return a channel for MULTIFETCH requests to a broker; connects to nothing yet."""
        return LegacyChannel(broker, self._connections, settings)


class LegacyChannel:
    """Sends MULTIFETCH requests to one broker of Kafka 0.6 or 0.7, one at a time."""

    def __init__(self, broker: PooledBroker, connections: Connections, settings: FetchRequestSettings) -> None:
        self._broker = broker
        self._connections = connections
        self._settings = settings
        self._checked: dict[Key, FetchReader] = {}
        """Readers whose first position was checked."""

    async def connect(self) -> LegacyExchange:
        """Return the next request, on a connection to the broker. Raises ConnectionLost."""
        connection = await self._connections.get(self._broker, Purpose.FETCH)
        context = f"Fetch from broker {self._broker.id}"
        most_bytes = self._settings.max_message_bytes
        return LegacyExchange(connection, context, most_bytes=most_bytes, checked=self._checked)


class LegacyExchange:
    """One MULTIFETCH request and its response.

    Args:
        context: Description of the request, for errors.
        most_bytes: Size in bytes of the largest message that is accepted.
        checked: Readers whose first position was checked; others are added.
    """

    def __init__(
        self, connection: BrokerConnection, context: str, *, most_bytes: int, checked: dict[Key, FetchReader]
    ) -> None:
        self._connection = connection
        self._context = context
        self._most_bytes = most_bytes
        self._checked = checked
        self._asks: Mapping[Key, FetchAsk] = {}

    @property
    def limits_answer(self) -> bool:
        """False: there is only the limit of each partition."""
        return False

    @property
    def waits(self) -> bool:
        """False: brokers respond at once."""
        return False

    def write(
        self,
        asks: Mapping[Key, FetchAsk],
        news: Collection[Key] | None,  # noqa: ARG002 - brokers remember no earlier request
        *,
        max_bytes: int,  # noqa: ARG002 - a request has no such limit
        wait_ms: int,  # noqa: ARG002 - brokers do not wait
    ) -> None:
        """Compose the request, of all partitions.

        Args:
            asks: Partitions to read, each with its offset and size limit.
        """
        self._asks = asks

    async def send(self, *, timeout_s: float) -> LegacyAnswer:
        """Send the request and return its response.

        Raises BrokerError for the whole request, ConnectionLost, ProtocolError.

        Args:
            timeout_s: Time limit for the response, in seconds; above 32,767 partitions, for each 32,767 of them.
        """
        asks = tuple(self._asks.values())
        requests = [make_fetch_request(ask.cursor.key, offset=ask.offset, max_bytes=ask.max_bytes) for ask in asks]
        responses = await fetch_all(self._connection, requests, timeout_s=timeout_s, context=self._context)
        faults: dict[Key, StartFault] = {}
        for ask, response in zip(asks, responses, strict=True):
            if response.error_code or self._checked.get(ask.cursor.key) is ask.cursor:
                continue
            # at the log end there is nothing to deliver
            fault = await self._check_start(ask, response, timeout_s) if response.messages else None
            if fault is not None:
                faults[ask.cursor.key] = fault
                continue  # it is checked again with each fetch, until the reader is elsewhere
            self._checked[ask.cursor.key] = ask.cursor
        return LegacyAnswer(asks, responses, most_bytes=self._most_bytes, faults=faults)

    async def _check_start(self, ask: FetchAsk, response: LegacyFetchResponse, timeout_s: float) -> StartFault | None:
        """Return why no message begins at a first position, or None."""
        data, is_end = response.messages, len(response.messages) < ask.max_bytes
        if ask.offset > 0:
            log = _PartitionLog(self._connection, ask.cursor.key, timeout_s=timeout_s, context=self._context)
            enclosing = await find_enclosing_message(log, ask.offset, data, most_bytes=self._most_bytes, is_end=is_end)
            if enclosing is not None:
                return StartFault(
                    f"no message begins there: it lies inside of the message at byte offset {enclosing.start}, from "
                    "which reading can begin",
                    enclosing,
                )
        if starts_with_nothing(data, is_end=is_end):
            return StartFault("a message without payload, and no message behind it", None)
        return None


class StartFault(NamedTuple):
    """Reason why no message begins at a first position.

    ``enclosing`` is the message around it, if one is known.
    """

    reason: str
    enclosing: Enclosing | None


class _PartitionLog:
    """Log of one partition, read on a broker's connection."""

    def __init__(self, connection: BrokerConnection, key: Key, *, timeout_s: float, context: str) -> None:
        self._connection = connection
        self._key = key
        self._timeout_s = timeout_s
        self._context = f"{context}, before its first position"

    async def fetch(self, offset: int, size: int) -> LegacyFetchResponse:
        """Return the response to a FETCH."""
        request = make_fetch_request(self._key, offset=offset, max_bytes=size)
        (response,) = await fetch_all(self._connection, [request], timeout_s=self._timeout_s, context=self._context)
        return response

    async def find_earliest(self) -> int:
        """Return the first offset of the log."""
        topic, number = self._key
        request = LegacyOffsetsRequest(topic=topic, partition=number, time=EARLIEST_TIME, max_number=1)
        response = await self._connection.request(request, timeout_s=self._timeout_s)
        return response.offsets[0] if response.offsets else 0


def make_fetch_request(key: Key, *, offset: int, max_bytes: int) -> LegacyFetchRequest:
    """Return the request for one partition, to be sent as a part of a MULTIFETCH.

    Args:
        key: Topic, and number of the partition on its broker.
        offset: Byte offset of the first message.
        max_bytes: Limit of the message set, in bytes; not negative.
    """
    topic, number = key
    return LegacyFetchRequest(topic=topic, partition=number, offset=offset, max_size=max_bytes)


async def fetch_all(
    connection: BrokerConnection, requests: Sequence[LegacyFetchRequest], *, timeout_s: float, context: str
) -> list[LegacyFetchResponse]:
    """Send requests for partitions of one broker as MULTIFETCH; return their responses.

    The responses are in the order of the requests. A MULTIFETCH has at most 32,767 requests; more of them are sent one
    MULTIFETCH after another.

    Args:
        timeout_s: Time limit of each MULTIFETCH, in seconds.
        context: Description of the request, for the error.

    Safe to cancel. Raises BrokerError if a MULTIFETCH as a whole has an error code, ConnectionLost, ProtocolError.
    """
    found: list[LegacyFetchResponse] = []
    for first in range(0, len(requests), MAX_COUNT):
        multiple = LegacyMultiFetchRequest(requests=tuple(requests[first : first + MAX_COUNT]))
        response = await connection.request(multiple, timeout_s=timeout_s)
        if response.error_code:
            raise broker_error(response.error_code, context)
        found += response.responses
    return found


class LegacyAnswer:
    """MULTIFETCH response: a message set or an error code for each partition asked for."""

    def __init__(
        self,
        asks: Sequence[FetchAsk],
        responses: Sequence[LegacyFetchResponse],
        *,
        most_bytes: int,
        faults: Mapping[Key, StartFault],
    ) -> None:
        self._asks = asks
        self._responses = responses
        self._most_bytes = most_bytes
        self._faults = faults

    def partitions(self) -> Iterator[PartitionAnswer]:
        """Yield the response's parts, one per partition, in the order of the request."""
        for ask, response in zip(self._asks, self._responses, strict=True):
            code, data = response.error_code, response.messages
            records: LegacyRecordSet | None = None
            if code == LegacyErrorCode.INVALID_FETCH_SIZE:
                # The document's way to say that the first message is larger than asked for. Kafka 0.7.2 returns a part
                # of the message instead. A set without bytes stands for it: the next request asks for twice as much.
                code, data = ErrorCode.NONE, b""
                records = LegacyRecordSet(data, start=ask.offset, asked_bytes=0, most_bytes=self._most_bytes)
            elif data:
                records = LegacyRecordSet(
                    data,
                    start=ask.offset,
                    asked_bytes=ask.max_bytes,
                    most_bytes=self._most_bytes,
                    fault=self._faults.get(ask.cursor.key),
                )
            yield PartitionAnswer(
                key=ask.cursor.key, error_code=code, high_watermark=None, last_stable_offset=None, records=records
            )

    def count_lines(self) -> int:
        """Return the number of partitions in the request plus the number in the response.

        The fetcher estimates from it the time that a request costs.
        """
        return len(self._asks) + len(self._responses)


class LegacyRecordSet:
    """Fetched bytes of one partition of Kafka 0.6 or 0.7.

    They are messages of magic 0 and 1, mixed. Offsets count bytes, so that of each message follows from that of the
    first byte.

    Args:
        data: The bytes. They need not begin with a message: an offset inside of one is no error to the broker.
        start: Offset of the first byte.
        asked_bytes: Limit of the request, in bytes. Fewer bytes end with the log or with a log segment.
        most_bytes: Size in bytes of the largest message that is accepted. In the search for the next message after
            damaged bytes, larger ones are taken for damage.
        fault: Reason why no message begins with the bytes; None if one may.
    """

    __slots__ = ("_asked_bytes", "_fault", "_most_bytes", "_start", "data")

    def __init__(
        self,
        data: bytes | memoryview,
        *,
        start: int,
        asked_bytes: int,
        most_bytes: int,
        fault: StartFault | None = None,
    ) -> None:
        self.data: Final = data
        self._fault = fault
        self._start = start
        self._asked_bytes = asked_bytes
        self._most_bytes = most_bytes

    @property
    def has_head(self) -> bool:
        """True if there are at least as many bytes as in the longest header.

        So the header of the first message is complete.
        """
        return len(self.data) >= HEAD_BYTES

    @property
    def _is_end(self) -> bool:
        """True if the bytes end where the log, or a segment, and a message ends."""
        return len(self.data) < self._asked_bytes

    def with_data(self, data: bytes | memoryview) -> LegacyRecordSet:
        """Return the same record set with other memory for its bytes.

        Args:
            data: Copy of the bytes.
        """
        return LegacyRecordSet(
            data,
            start=self._start,
            asked_bytes=self._asked_bytes,
            most_bytes=self._most_bytes,
            fault=self._fault,
        )

    @property
    def proof_bytes(self) -> int:
        """Size of the fetch that can prove where a damaged first message ends, in bytes."""
        return needed_bytes(self._most_bytes)

    def cut(self, *, slice_bytes: int, expansion: float | None) -> list[Piece]:
        """Cut the record set into pieces of whole messages, at least one each.

        Only the lengths in headers are read.

        Args:
            slice_bytes: Approximate size of a piece, decompressed.
            expansion: Ratio of decompressed to fetched size; None before anything was decoded.
        """
        if self._fault is not None:
            return []
        return cut_message_set(self.data, self._start, slice_bytes=slice_bytes, expansion=expansion)

    def first_unit_bytes(self) -> int | None:
        """Return the size in bytes of the first message, by its header.

        None if the response ends before the length field. 0 if the stated length is impossible: by itself, or because
        the log or the log segment ends before the message does.
        """
        if self._fault is not None:
            return 0
        size = first_message_bytes(self.data)
        is_beyond_end = self._is_end and (size is None or size > len(self.data))
        return 0 if is_beyond_end else size

    def read_claim(self, position: int) -> int | None:
        """Return the offset after the first message, as its own length claims.

        None if the length is impossible. Nothing confirms the claim: no checksum covers the length, and brokers report
        no high watermark.
        """
        claimed = read_claim(self.data, self._start)
        return claimed if claimed is not None and claimed > position else None

    def decode(
        self,
        piece: Piece,
        *,
        partition: TopicPartition,
        start: int,  # noqa: ARG002 - the piece begins there
        limits: Limits,
        make_room: Callable[[], memoryview] | None = None,
    ) -> RecordBatch:
        """Decode one piece of the record set.

        All records of a compressed message have its offset. The ``next_offset`` of the batch is behind its last one, so
        a consumer that stops inside of a compressed message reads all of it again.

        Args:
            piece: Bytes of whole messages, by :meth:`cut`.
            start: Offset of the piece's first byte.
            limits: Size limits of what is decompressed.
            make_room: Returns writable memory for decompressed data, of any size. Data that does not fit is stored in
                memory allocated here, as all of it is with None.

        Raises CorruptMessageError, and ConfigError if the library of a codec is missing. A CorruptMessageError has the
        offset at which fetching can continue, if the bytes prove one.
        """
        begins_at = self._start + piece.begin
        if self._fault is not None:
            raise self._find_way_on(CorruptMessageError(self._fault.reason), piece, partition)
        try:
            batch = decode_message_set(
                self.data[piece.begin : piece.end],
                partition=partition,
                start=begins_at,
                limits=limits,
                make_room=make_room,
            )
        except DecompressedTooLarge:
            raise  # its checksum is right, so its length is, too
        except CorruptMessageError as error:
            raise self._find_way_on(error, piece, partition) from error
        if batch.next_offset == begins_at:
            fault = CorruptMessageError("the log, or its segment, ends before the message does")
            raise self._find_way_on(fault, piece, partition)
        return batch

    def _find_way_on(self, error: CorruptMessageError, piece: Piece, partition: TopicPartition) -> CorruptMessageError:
        """Return the error of the first message of ``piece``, with the offset to continue at."""
        offset = self._start + piece.begin
        next_offset, text, rest = error.next_offset, str(error), memoryview(self.data)[piece.begin :]
        enclosing = None if self._fault is None else self._fault.enclosing
        if enclosing is not None:
            next_offset = enclosing.stop
        elif next_offset is None:
            found = find_end_of_damage(rest, most_bytes=self._most_bytes, is_end=self._is_end)
            next_offset = None if found is None else offset + found
        if error.partition is None:
            text = f"{partition}: the message set fetched at byte offset {offset}: {text}"
        return CorruptMessageError(
            text,
            partition=partition,
            offset=offset,
            next_offset=next_offset,
            claimed_end=error.claimed_end,
            raw=error.raw if next_offset is None else bytes(rest[: next_offset - offset]),
        )
