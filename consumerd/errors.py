# SPDX-License-Identifier: Apache-2.0
"""All errors that consumerd raises on purpose, as one tree.

::

    ConsumerdError
    ├── ConfigError                 settings; one message that names the key
    │   └── UnsupportedGeneration   the brokers are not of the expected generation, or of two
    ├── NotFound                    the subject of a one-shot command does not exist
    ├── ProtocolError
    │   ├── LocalProtocolError      we misused a codec or a connection
    │   ├── UnsupportedVersion      a broker and we share no version of a request
    │   ├── RemoteProtocolError     the peer sent what the protocol does not allow
    │   └── CorruptMessageError     stored bytes fail their checksum or their format
    ├── BrokerError                 a broker answered with an error code
    │   └── UnknownProducer         error 59: retention, or a loss, has removed the producer's records
    ├── ConnectionLost              the connection broke; outcome of pending requests is unknown
    │   ├── AuthenticationFailed    the broker refused our identity, or did not prove its own
    │   └── RequestTimedOut
    ├── CoordinationError           ZooKeeper
    │   ├── SessionLost             the ZooKeeper session required by the operation is over
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
    │   ├── TransactionFailed
    │   │   └── ProducerFenced
    │   └── ProducerClosed
    └── SinkError
        ├── RetriableSinkError
        ├── PermanentSinkError
        └── SinkClosed              the reader of a sink's output has gone

Messages name the fault, its place, the expected and the actual value, and a remedy; never payload bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.model import TopicPartition


class ConsumerdError(Exception):
    """Base class of all errors that consumerd raises on purpose."""


class ConfigError(ConsumerdError):
    """The settings cannot work; the message names the key and a remedy. Exit code 2."""


class UnsupportedGeneration(ConfigError):
    """The brokers of a cluster are of another generation than expected, or of two.

    The generations are Kafka 0.6 and 0.7, and 0.8 and later. Nothing was written to the cluster.
    """


class NotFound(ConsumerdError):
    """The subject of a one-shot command (a group, a quarantine) does not exist.

    The message lists those that do. Exit code 1.
    """


class ProtocolError(ConsumerdError):
    """Bytes or calls that Kafka's protocol does not allow; base class of such errors."""


class LocalProtocolError(ProtocolError):
    """Our own misuse of the protocol: a field missing in this version, a closed connection."""


class UnsupportedVersion(ProtocolError):
    """A broker and we share no version of a request; the message names both ranges.

    Retrying does not help.
    """


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol; the message names the byte in the frame."""


class CorruptMessageError(ProtocolError):
    """Stored records fail their checksum, or cannot be decompressed.

    A unit is the smallest part of a log that can be told apart: a message, a compressed wrapper or a batch.

    Args:
        partition: Partition whose log has the damaged unit.
        offset: Offset of the damaged unit.
        next_offset: Offset at which the next unit begins; None if unknown.
        claimed_end: Offset after the unit according to its own header alone, which may be damaged, too; None if
            unknown.
        raw: The unit's bytes, for the quarantine, never for messages.
    """

    def __init__(
        self,
        message: str,
        *,
        partition: TopicPartition | None = None,
        offset: int | None = None,
        next_offset: int | None = None,
        claimed_end: int | None = None,
        raw: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset
        self.claimed_end = claimed_end
        self.raw = raw


class DecompressedTooLarge(CorruptMessageError):
    """A message or batch exceeds the size limit when decompressed; it need not be damaged.

    The limit is ``fetch.max_message_bytes``, or a smaller one that memory sets.
    """


class BrokerError(ConsumerdError):
    """A broker answered with an error code.

    Attributes:
        code: Number of the error in Kafka's protocol.
        name: Kafka's name of the error, such as ``NOT_LEADER_OR_FOLLOWER``.
        retriable: True if the same request may succeed later.
        refresh: True if the request may succeed after a metadata refresh, at another broker.
        context: Description of the request, for the message.
        advice: Advice to the operator, for the message; empty for none.
    """

    def __init__(
        self,
        code: int,
        name: str,
        context: str,
        *,
        retriable: bool = False,
        refresh: bool = False,
        advice: str = "",
    ) -> None:
        super().__init__(f"{context}: broker answered error {code} ({name})" + (f": {advice}" if advice else ""))
        self.code = code
        self.name = name
        self.context = context
        self.retriable = retriable
        self.refresh = refresh
        self.advice = advice


class UnknownProducer(BrokerError):
    """A broker has no record of a producer's earlier batches (error 59).

    Args:
        log_start_offset: First offset of the partition's log; -1 if the broker does not tell it.
    """

    def __init__(self, code: int, name: str, context: str, *, log_start_offset: int = -1) -> None:
        super().__init__(code, name, context)
        self.log_start_offset = log_start_offset


class ConnectionLost(ConsumerdError):
    """The connection broke; it is unknown whether pending requests took effect."""


class AuthenticationFailed(ConnectionLost):
    """A server refused our identity, or failed to prove its own.

    Nothing was requested from it. The next attempt waits for seconds (``net.pool``): a refusal rarely passes by itself.
    """


class RequestNotSent(ConnectionLost):
    """Nothing of a request was written to the connection: the broker cannot have it."""


class RequestTimedOut(ConnectionLost):
    """No answer within the deadline; the connection is closed, since answers come in order."""


class CoordinationError(ConsumerdError):
    """A request to ZooKeeper failed."""


class SessionLost(CoordinationError):
    """The ZooKeeper session required by the operation is over, or not established."""


class OwnershipLost(CoordinationError):
    """The claim is gone for good: released, taken over, or its session ended.

    Records that are not acknowledged must be dropped: the partition's next owner reads them again.
    """


class LeasePaused(CoordinationError):
    """ZooKeeper does not respond: the claim is valid, but must not be used now.

    Wait with the claim's ``wait_usable``, then try again.
    """


class IncarnationChanged(CoordinationError):
    """The topic was deleted and re-created while it was consumed.

    Positions of the deleted topic mean nothing in the new one.
    """


class RebalanceFailed(CoordinationError):
    """A rebalance pass failed; it is retried with backoff."""


class ClusterChanged(ConsumerdError):
    """ZooKeeper holds another cluster than at the start. Retrying does not help."""


class OffsetError(ConsumerdError):
    """A position that cannot be used: malformed, or refused by ZooKeeper or Kafka."""


class OffsetOutOfRange(OffsetError):
    """The broker confirmed (Fetch, then ListOffsets) that its log does not have ``offset``.

    Args:
        earliest: First offset of the log.
        latest: Next offset to be written.
        replaced: True if the log is proven to be another one, which began again at 0 and may hold ``offset`` by now.
            Only logs without replicas prove that.
    """

    def __init__(
        self, partition: TopicPartition, offset: int, earliest: int, latest: int, *, replaced: bool = False
    ) -> None:
        fault = "is of an earlier log than" if replaced else "is outside"
        super().__init__(f"{partition}: offset {offset} {fault} the broker's log [{earliest}, {latest}]")
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest
        self.replaced = replaced


class RecordTooLarge(ConsumerdError):
    """A message or batch exceeds ``fetch.max_message_bytes``, compressed or decompressed.

    Args:
        size: Its size in bytes; None if unknown.
        next_offset: Offset after it; None if its header could not be read.
        raw: Bytes of it that were fetched; the rest is missing.
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

    Attributes:
        partition: Destination of the record, once that was chosen.
        in_doubt: True if the record may have been written: to send it again may write it twice. False if it certainly
            was not written.
    """

    def __init__(self, message: str, *, partition: TopicPartition | None = None, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.partition = partition
        self.in_doubt = in_doubt


class OversizedRecord(ProduceError):
    """A record exceeds the size of a request; it was not buffered."""


class BufferFull(ProduceError):
    """The producer's buffer stayed full until the caller's timeout; the record was not buffered."""


class TopicMissing(ProduceError):
    """The topic or partition does not exist, or may not be written; nothing was buffered.

    Also raised if, within the producer's ``max_block_s``, no broker answered questions about the topic, or brokers that
    create it on request were not ready.
    """


class RecordLeftOut(ProduceError):
    """A hook of the producer left the record out; it was not written."""


class WriteRefused(ProduceError):
    """The broker refused the record for good; it was not written.

    ``__cause__`` is the broker's error.
    """


class DeliveryUnknown(ProduceError):
    """A record was sent once, and its connection ended before the broker had confirmed it.

    The producer was told not to send such records again (``client.legacy_producer_rules.UnknownOutcome.FAIL``).
    ``in_doubt`` is True, and ``__cause__`` is the end of the connection.
    """


class DeliveryTimedOut(ProduceError):
    """No acknowledgement in time; the record may have been written, if ``in_doubt`` is True.

    ``__cause__`` is the last failure.
    """


class TransactionFailed(ProduceError):
    """A producer's transaction cannot be committed, or the producer cannot go on.

    ``__cause__`` is the reason.

    Attributes:
        fatal: True if the producer cannot be used any more; False if ``abort_transaction`` lets it go on.
    """

    def __init__(
        self, message: str, *, fatal: bool = False, partition: TopicPartition | None = None, in_doubt: bool = False
    ) -> None:
        super().__init__(message, partition=partition, in_doubt=in_doubt)
        self.fatal = fatal


class ProducerFenced(TransactionFailed):
    """Another producer has begun with this transactional id, or the transaction has timed out.

    What this producer had not committed is never visible to readers of committed records.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, fatal=True)


class ProducerClosed(ProduceError):
    """The producer was closed: the record was not accepted, or not sent in time."""


class SinkError(ConsumerdError):
    """A sink did not accept its input; base class of such errors."""


class RetriableSinkError(SinkError):
    """The same write may succeed later (a full disk, a server that is away).

    The partition pauses and retries. If ``resume_position`` is None, the sink is unchanged, and the same call is made
    again. Otherwise the sink has dropped the records that it had not acknowledged, and needs them again: the next batch
    must begin at ``resume_position`` or below.

    ``retry_after_s`` is the time, in seconds, for which the destination has asked to be left alone; the pause until the
    next try is at least that long. It is 0 if there is no such wish.
    """

    def __init__(self, message: str, *, resume_position: int | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.resume_position = resume_position
        self.retry_after_s = retry_after_s


class PermanentSinkError(SinkError):
    """The sink will never accept this; the policy ``on_rejected`` decides.

    ``refused`` is the index, in the batch, of the record that the sink rejects. It is None if the fault lies not in one
    record, but in a path, a setting, or all records: then no record can be passed over, and the partition stops.
    """

    def __init__(self, message: str, *, refused: int | None = None) -> None:
        super().__init__(message)
        self.refused = refused


class SinkClosed(SinkError):
    """The reader of the sink's output has gone (EPIPE on stdout).

    That is no fault, but the process has nothing left to do.
    """


def forget_frames(error: BaseException) -> None:
    """Remove the stack frames from an error and its causes.

    The frames would keep their local variables, such as buffers, in memory as long as the error.
    """
    chain: BaseException | None = error
    while chain is not None:
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__
