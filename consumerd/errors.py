# SPDX-License-Identifier: Apache-2.0
"""Every error that consumerd raises on purpose, as one tree.

::

    ConsumerdError
    ├── ConfigError                 settings; one message that names the key
    │   └── UnsupportedGeneration   the cluster's brokers are of a generation that we cannot consume
    ├── NotFound                    what a one-shot command was asked about is not there
    ├── ProtocolError
    │   ├── LocalProtocolError      we misused a codec or a connection
    │   ├── UnsupportedVersion      a broker and we share no version of a request
    │   ├── RemoteProtocolError     the peer sent what the protocol does not allow
    │   └── CorruptMessageError     stored bytes fail their checksum or their format
    ├── BrokerError                 a broker answered with an error code
    ├── ConnectionLost              the connection is gone; outcome of what was in flight is unknown
    │   └── RequestTimedOut
    ├── CoordinationError           ZooKeeper
    │   ├── SessionLost             the session in which this was to happen is over
    │   ├── OwnershipLost           a claim is gone for good
    │   ├── LeasePaused             a claim may not be used at this moment
    │   ├── IncarnationChanged      the topic was deleted and made again
    │   └── RebalanceFailed
    ├── ClusterChanged              ZooKeeper is another one, or has lost its data
    ├── OffsetError
    │   └── OffsetOutOfRange
    ├── RecordTooLarge
    ├── ProduceError                a record was not written, or it is not known whether it was
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
        └── SinkClosed              whoever read a sink's output has gone

Messages say what, where, expected, got, and what to do; never payload bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.model import TopicPartition


class ConsumerdError(Exception):
    """Root of everything that consumerd raises on purpose."""


class ConfigError(ConsumerdError):
    """The settings cannot work; the message names the key and what to write instead. Exit code 2."""


class UnsupportedGeneration(ConfigError):
    """The settings name a cluster whose brokers are of a generation that we cannot consume; nothing was written there."""


class NotFound(ConsumerdError):
    """What a one-shot command was asked about (a group, a quarantine) is not there; the message says what is. Exit code 1."""


class ProtocolError(ConsumerdError):
    """Bytes or calls that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """We asked for something that cannot be encoded (a field absent in this version, a closed connection)."""


class UnsupportedVersion(ProtocolError):
    """A broker and we share no version of a request; the message names both ranges. Trying again does not help."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are not of the protocol; the message says at which byte of the frame."""


class CorruptMessageError(ProtocolError):
    """Stored records that fail their checksum, or whose compressed form cannot be read.

    ``offset`` is that of the smallest unit that can be told apart (message, wrapper or batch), ``next_offset`` where
    the next unit begins when that is known, and ``raw`` the unit's bytes (for quarantine, never for the message).
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
    """A unit that gives more than the limit when it is decompressed; nothing else is known to be wrong with it."""


class BrokerError(ConsumerdError):
    """A broker answered with an error code.

    ``code`` is the number; ``name``, ``retriable`` and ``refresh`` are the row of ``wire.errorcodes`` for it.
    ``context`` says what was asked.
    """

    def __init__(self, code: int, name: str, context: str, *, retriable: bool = False, refresh: bool = False) -> None:
        super().__init__(f"{context}: broker answered error {code} ({name})")
        self.code = code
        self.name = name
        self.context = context
        self.retriable = retriable
        self.refresh = refresh


class ConnectionLost(ConsumerdError):
    """The connection broke; whether what was in flight took effect is unknown."""


class RequestTimedOut(ConnectionLost):
    """No answer within the deadline; the connection is closed, since answers come in order."""


class CoordinationError(ConsumerdError):
    """ZooKeeper could not do what was asked."""


class SessionLost(CoordinationError):
    """The session in which this was to happen is over, or not established."""


class OwnershipLost(CoordinationError):
    """The claim is gone for good: released, taken over, or its session ended. Drop what is unacknowledged."""


class LeasePaused(CoordinationError):
    """ZooKeeper has not answered for a while: the claim stands but must not be used now. Wait, then try again."""


class IncarnationChanged(CoordinationError):
    """The topic was deleted and made again while it was consumed; positions of the old one mean nothing."""


class RebalanceFailed(CoordinationError):
    """A rebalance pass could not finish; it is tried again with backoff."""


class ClusterChanged(ConsumerdError):
    """What ZooKeeper holds is of another cluster than at the start. Trying again does not help."""


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
    """A message or batch is larger than ``fetch.max_message_bytes``, as it is or decompressed; ``size`` is its size in
    bytes when known, else None.

    ``next_offset`` is where the next unit begins when its header could be read, ``raw`` as much of it as was fetched.
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
    """A record was not written, or it is not known whether it was; ``partition`` is where to, once that was chosen."""

    def __init__(self, message: str, *, partition: TopicPartition | None = None) -> None:
        super().__init__(message)
        self.partition = partition


class OversizedRecord(ProduceError):
    """A record larger than a request may be; it was not buffered."""


class BufferFull(ProduceError):
    """The producer's buffer stayed full for as long as the caller was ready to wait; the record was not buffered."""


class TopicMissing(ProduceError):
    """The topic, or the partition, is not there, did not come into being in time, or may not be written to; the record was
    not buffered.
    """


class RecordLeftOut(ProduceError):
    """A hook of the producer has left the record out; it was not written."""


class WriteRefused(ProduceError):
    """The broker refused the record, and would again; it was not written. The cause is what the broker said."""


class DeliveryTimedOut(ProduceError):
    """No acknowledgement in time; the record may have been written, unless it was never sent. The cause is the last failure."""


class ProducerClosed(ProduceError):
    """The producer was closed; the record was not accepted, or given up at the end of the time for closing."""


class SinkError(ConsumerdError):
    """A sink did not take what it was given."""


class RetriableSinkError(SinkError):
    """The same write may succeed later (a full disk, a server that is away): the partition pauses and retries.

    ``resume_position`` says with what. None: the sink is as it was before the call, the same call is made again. A
    number: what was not acknowledged has been dropped, and the next batch must not start above it.
    """

    def __init__(self, message: str, *, resume_position: int | None = None) -> None:
        super().__init__(message)
        self.resume_position = resume_position


class PermanentSinkError(SinkError):
    """The sink will never take this; the policy ``on_rejected`` decides.

    ``refused`` is the index, in the batch given, of the one record that it is about; None: about none in particular
    (a path, the setting, all of it), so that nothing can be passed over and the partition stops.
    """

    def __init__(self, message: str, *, refused: int | None = None) -> None:
        super().__init__(message)
        self.refused = refused


class SinkClosed(SinkError):
    """Whoever read the sink's output has gone (EPIPE on stdout): no fault, but the process has nothing left to do."""


def forget_frames(error: BaseException) -> None:
    """Let go of the frames of an error and of its causes, and so of what they hold: what was fetched and decompressed."""
    chain: BaseException | None = error
    while chain is not None:
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__
