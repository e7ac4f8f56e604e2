# SPDX-License-Identifier: Apache-2.0
"""All errors that consumerd raises on purpose, as one tree.

::

    ConsumerdError
    ├── ConfigError                 settings; one message that names the key
    │   └── UnsupportedGeneration   the cluster's brokers are of a generation that we cannot consume
    ├── NotFound                    the subject of a one-shot command does not exist
    ├── ProtocolError
    │   ├── LocalProtocolError      we misused a codec or a connection
    │   ├── UnsupportedVersion      a broker and we share no version of a request
    │   ├── RemoteProtocolError     the peer sent what the protocol does not allow
    │   └── CorruptMessageError     stored bytes fail their checksum or their format
    ├── BrokerError                 a broker answered with an error code
    ├── ConnectionLost              the connection broke; outcome of pending requests is unknown
    │   └── RequestTimedOut
    ├── CoordinationError           ZooKeeper
    │   ├── SessionLost             the session in which this was to happen is over
    │   ├── OwnershipLost           a claim is gone for good
    │   ├── LeasePaused             a claim may not be used at this moment
    │   ├── IncarnationChanged      the topic was deleted and re-created
    │   └── RebalanceFailed
    ├── ClusterChanged              ZooKeeper is another one, or has lost its data
    ├── OffsetError
    │   └── OffsetOutOfRange
    ├── RecordTooLarge
    ├── ProduceError                a record was not written, or it is unknown whether it was
    │   ├── OversizedRecord
    │   ├── BufferFull
    │   ├── TopicMissing
    │   ├── RecordLeftOut
    │   ├── WriteRefused
    │   ├── DeliveryTimedOut
    │   └── ProducerClosed
    └── SinkError
        ├── RetriableSinkError
        ├── PermanentSinkError
        └── SinkClosed              the reader of a sink's output has gone

Messages say what, where, expected, got, and what to do; never payload bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.model import TopicPartition


class ConsumerdError(Exception):
    """Root of everything that consumerd raises on purpose."""


class ConfigError(ConsumerdError):
    """The settings cannot work; the message names the key and advice. Exit code 2."""


class UnsupportedGeneration(ConfigError):
    """The settings name a cluster of an unsupported generation; nothing was written there."""


class NotFound(ConsumerdError):
    """The subject of a one-shot command (a group, a quarantine) does not exist.

    The message says what does. Exit code 1.
    """


class ProtocolError(ConsumerdError):
    """Bytes or calls that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """Our own misuse: a field missing in this version, a closed connection."""


class UnsupportedVersion(ProtocolError):
    """A broker and we share no version of a request; the message names both ranges.

    Retrying does not help.
    """


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol; the message names the byte in the frame."""


class CorruptMessageError(ProtocolError):
    """Stored records fail their checksum, or cannot be decompressed.

    Args:
        offset: Offset of the smallest unit that can be told apart (message, wrapper or batch).
        next_offset: Offset at which the next unit begins, if known.
        raw: The unit's bytes, for the quarantine, never for messages.
    """

    def __init__(
        self,
        message: str,
        *,
        partition: TopicPartition | None = None,
        offset: int | None = None,
        next_offset: int | None = None,
        raw: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset
        self.raw = raw


class DecompressedTooLarge(CorruptMessageError):
    """A unit exceeds the limit when decompressed; it is not known to be damaged."""


class BrokerError(ConsumerdError):
    """A broker answered with an error code.

    ``code`` is the number; ``name``, ``retriable`` and ``refresh`` are its row in ``wire.errorcodes``. ``context``
    describes the request.
    """

    def __init__(self, code: int, name: str, context: str, *, retriable: bool = False, refresh: bool = False) -> None:
        super().__init__(f"{context}: broker answered error {code} ({name})")
        self.code = code
        self.name = name
        self.context = context
        self.retriable = retriable
        self.refresh = refresh


class ConnectionLost(ConsumerdError):
    """The connection broke; it is unknown whether pending requests took effect."""


class RequestTimedOut(ConnectionLost):
    """No answer within the deadline; the connection is closed, since answers come in order."""


class CoordinationError(ConsumerdError):
    """A request to ZooKeeper failed."""


class SessionLost(CoordinationError):
    """The session in which this was to happen is over, or not established."""


class OwnershipLost(CoordinationError):
    """The claim is gone for good: released, taken over, or its session ended.

    Unacknowledged records are to be dropped.
    """


class LeasePaused(CoordinationError):
    """ZooKeeper does not respond: the claim is valid but must not be used now.

    Wait, then try again.
    """


class IncarnationChanged(CoordinationError):
    """The topic was deleted and re-created while consumed; old positions are meaningless."""


class RebalanceFailed(CoordinationError):
    """A rebalance pass failed; it is retried with backoff."""


class ClusterChanged(ConsumerdError):
    """ZooKeeper holds another cluster than at the start. Retrying does not help."""


class OffsetError(ConsumerdError):
    """A position that cannot be used: malformed, or refused by the store."""


class OffsetOutOfRange(OffsetError):
    """The broker confirmed (Fetch, then ListOffsets) that it does not hold ``offset``.

    ``earliest`` is the first offset held, ``latest`` the next to be written.
    """

    def __init__(self, partition: TopicPartition, offset: int, earliest: int, latest: int) -> None:
        super().__init__(f"{partition}: offset {offset} is outside the broker's log [{earliest}, {latest}]")
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class RecordTooLarge(ConsumerdError):
    """A message or batch exceeds ``fetch.max_message_bytes``, compressed or decompressed.

    Args:
        size: Its size in bytes, if known.
        next_offset: Offset at which the next unit begins, if its header could be read.
        raw: The part of it that was fetched.
    """

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        limit: int,
        size: int | None = None,
        *,
        next_offset: int | None = None,
        raw: bytes = b"",
    ) -> None:
        known = f"{size} bytes" if size is not None else "more"
        super().__init__(
            f"{partition}: the message at offset {offset} has {known}, the limit is {limit}; "
            "raise fetch.max_message_bytes (and fetch.memory_budget_bytes, a quarter of which is the most), or set "
            "fetch.on_oversized"
        )
        self.partition = partition
        self.offset = offset
        self.limit = limit
        self.size = size
        self.next_offset = next_offset
        self.raw = raw


class ProduceError(ConsumerdError):
    """A record was not written, or it is unknown whether it was.

    ``partition`` is its destination, once that was chosen.
    """

    def __init__(self, message: str, *, partition: TopicPartition | None = None) -> None:
        super().__init__(message)
        self.partition = partition


class OversizedRecord(ProduceError):
    """A record exceeds the size of a request; it was not buffered."""


class BufferFull(ProduceError):
    """The producer's buffer stayed full until the caller's timeout; the record was not buffered."""


class TopicMissing(ProduceError):
    """The topic or partition does not exist, or may not be written; nothing was buffered.

    A topic that is created automatically may also have taken too long.
    """


class RecordLeftOut(ProduceError):
    """A hook of the producer left the record out; it was not written."""


class WriteRefused(ProduceError):
    """The broker refused the record for good; it was not written.

    The cause is the broker's error.
    """


class DeliveryTimedOut(ProduceError):
    """No acknowledgement in time; the record may have been written, if it was sent.

    The cause is the last failure.
    """


class ProducerClosed(ProduceError):
    """The producer was closed: the record was not accepted, or not sent in time."""


class SinkError(ConsumerdError):
    """A sink did not accept its input."""


class RetriableSinkError(SinkError):
    """The same write may succeed later (a full disk, a server that is away).

    The partition pauses and retries. With ``resume_position`` None, the sink is unchanged, and the same call is made
    again. Otherwise unacknowledged records were dropped, and the next batch must not begin above that position.
    """

    def __init__(self, message: str, *, resume_position: int | None = None) -> None:
        super().__init__(message)
        self.resume_position = resume_position


class PermanentSinkError(SinkError):
    """The sink will never accept this; the policy ``on_rejected`` decides.

    ``refused`` is the index in the batch of the record concerned. None means that no single record is (but a path, a
    setting, or all records), so nothing can be passed over and the partition stops.
    """

    def __init__(self, message: str, *, refused: int | None = None) -> None:
        super().__init__(message)
        self.refused = refused


class SinkClosed(SinkError):
    """The reader of the sink's output has gone (EPIPE on stdout).

    That is no fault, but the process has nothing left to do.
    """


def forget_frames(error: BaseException) -> None:
    """Release the frames of an error and its causes, with the buffers they hold."""
    chain: BaseException | None = error
    while chain is not None:
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__
