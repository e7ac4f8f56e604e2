# SPDX-License-Identifier: Apache-2.0
"""Requests of idempotent and transactional producers, to the brokers that answer them.

- A transactional id has a coordinator, which keeps its producer id, epoch and transaction.
- Offsets of a group go to the group's coordinator.
- A producer without transactional id gets its producer id from any broker.

Each call is one attempt; ``client.transactions`` repeats it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from consumerd.client.coordinator import CoordinatorFinder
from consumerd.client.leaders import Connections
from consumerd.client.producer_actions import (
    Action,
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    InitProducer,
    ProducerEpoch,
    TransactionOffsets,
)
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.view import Broker
from consumerd.errors import ConnectionLost, ProtocolError, RemoteProtocolError, UnsupportedVersion
from consumerd.model import TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.find_coordinator import GROUP, TRANSACTION
from consumerd.wire.modern.transactions import (
    FIRST_WITH_GENERATION,
    FIRST_WITH_PRESENT_PRODUCER,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionTopic,
    TxnCommitPartition,
    TxnCommitTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_NOT_JUDGED: Final = frozenset({ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""Codes of partitions that do not say why a request was refused."""


async def check_transactions(connections: Connections, broker: Broker) -> None:
    """Check that a broker has transactions, which came with Kafka 0.11.

    Raises UnsupportedVersion, ConnectionLost.
    """
    (await connections.get(broker, Purpose.CONTROL)).version_of(InitProducerIdRequest)


class TransactionRequests:
    """Sends the requests of one producer, each once.

    Args:
        directory: Directory of brokers.
        random: Returns floats in [0, 1), for the choice of brokers.
    """

    def __init__(
        self,
        connections: Connections,
        directory: MetadataDirectory,
        settings: ProducerSettings,
        *,
        random: Callable[[], float],
    ) -> None:
        self._connections = connections
        self._directory = directory
        self._settings = settings
        self._random = random
        self._transactional_id = settings.transactional_id
        self._coordinator = self._find_coordinator_of(settings.transactional_id or "", TRANSACTION)
        self._of_groups: dict[str, CoordinatorFinder] = {}

    def _find_coordinator_of(self, key: str, key_type: int) -> CoordinatorFinder:
        return CoordinatorFinder(
            self._connections,
            key,
            self._list_brokers,
            key_type=key_type,
            random=self._random,
            patience_s=self._settings.max_block_s,
            request_timeout_s=self._settings.attempt_timeout_s,
        )

    async def _list_brokers(self) -> Collection[Broker]:
        view = self._directory.view
        if not view.brokers:
            view = await self._directory.refresh("a producer id is needed")
        if not view.brokers:
            raise ConnectionLost(f"no broker is known: {self._directory.failure or 'none has answered'}")
        return view.brokers.values()

    async def perform(self, action: Action, identity: ProducerEpoch | None) -> ProducerEpoch | None:
        """Send one request; return the producer id and epoch for InitProducer, else None.

        Takes at most the time to connect and ``attempt_timeout_s`` for each broker that is asked. Raises BrokerError
        for an error code, ConnectionLost, ProtocolError.
        """
        if isinstance(action, InitProducer):
            return await self._identify(action.present)
        assert identity is not None, "identified first"
        match action:
            case AddPartitions(partitions):
                await self._add_partitions(identity, partitions)
            case AddOffsets(group_id):
                await self._add_offsets(identity, group_id)
            case CommitOffsets(group):
                await self._commit_offsets(identity, group)
            case EndTransaction(commit):
                await self._end(identity, commit=commit)
        return None

    # -- producer id

    async def _identify(self, present: ProducerEpoch | None) -> ProducerEpoch:
        if self._transactional_id is not None:
            return await self._coordinator.ask_once(lambda connection: self._ask_identity(connection, present))
        lost: ConnectionLost | ProtocolError | None = None
        for broker in sorted(await self._list_brokers(), key=lambda _: self._random()):
            try:
                return await self._ask_identity(await self._connections.get(broker, Purpose.CONTROL), None)
            except (ConnectionLost, RemoteProtocolError) as error:
                lost = error
        raise lost or ConnectionLost("no broker is known")

    async def _ask_identity(self, connection: BrokerConnection, present: ProducerEpoch | None) -> ProducerEpoch:
        version = connection.version_of(InitProducerIdRequest)
        if present is not None and version < FIRST_WITH_PRESENT_PRODUCER:
            raise UnsupportedVersion(
                f"INIT_PRODUCER_ID: broker {connection.address} speaks v{version}, a new epoch for a running producer "
                f"needs v{FIRST_WITH_PRESENT_PRODUCER}"
            )
        producer_id, epoch = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH) if present is None else present
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        response = await connection.request(request, timeout_s=self._settings.attempt_timeout_s, version=version)
        return _read_identity(response, f"InitProducerId at {connection.address}")

    # -- the transaction

    async def _add_partitions(self, identity: ProducerEpoch, partitions: Iterable[TopicPartition]) -> None:
        request = AddPartitionsToTxnRequest(
            transactional_id=self._id(),
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            topics=tuple(
                TransactionTopic(topic=topic, partitions=tuple(numbers))
                for topic, numbers in _numbers_of(partitions).items()
            ),
        )

        async def ask(connection: BrokerConnection) -> None:
            response = await connection.request(request, timeout_s=self._settings.attempt_timeout_s)
            _check_partitions(response, f"AddPartitionsToTxn at {connection.address}")

        await self._coordinator.ask_once(ask)

    async def _add_offsets(self, identity: ProducerEpoch, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self._id(),
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=group_id,
        )

        async def ask(connection: BrokerConnection) -> None:
            response = await connection.request(request, timeout_s=self._settings.attempt_timeout_s)
            _check(response.error_code, f"AddOffsetsToTxn for group {group_id!r} at {connection.address}")

        await self._coordinator.ask_once(ask)

    async def _commit_offsets(self, identity: ProducerEpoch, group: TransactionOffsets) -> None:
        finder = self._of_groups.get(group.group_id)
        if finder is None:
            finder = self._of_groups[group.group_id] = self._find_coordinator_of(group.group_id, GROUP)

        async def ask(connection: BrokerConnection) -> None:
            version = connection.version_of(TxnOffsetCommitRequest)
            if group.member_id and version < FIRST_WITH_GENERATION:
                raise UnsupportedVersion(
                    f"TXN_OFFSET_COMMIT: broker {connection.address} speaks v{version}, offsets of a group's member "
                    f"need v{FIRST_WITH_GENERATION} (Kafka 2.5)"
                )
            request = TxnOffsetCommitRequest(
                transactional_id=self._id(),
                group_id=group.group_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                generation_id=group.generation_id,
                member_id=group.member_id,
                topics=_offsets_by_topic(group.offsets),
            )
            response = await connection.request(request, timeout_s=self._settings.attempt_timeout_s, version=version)
            _check_partitions(response, f"TxnOffsetCommit for group {group.group_id!r} at {connection.address}")

        await finder.ask_once(ask)

    async def _end(self, identity: ProducerEpoch, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._id(),
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )

        async def ask(connection: BrokerConnection) -> None:
            response = await connection.request(request, timeout_s=self._settings.attempt_timeout_s)
            _check(response.error_code, f"EndTxn ({'commit' if commit else 'abort'}) at {connection.address}")

        await self._coordinator.ask_once(ask)

    def _id(self) -> str:
        assert self._transactional_id is not None, "only transactional producers have transactions"
        return self._transactional_id


def _check(code: int, context: str) -> None:
    if code:
        raise broker_error(code, context)


def _read_identity(response: InitProducerIdResponse, context: str) -> ProducerEpoch:
    """Return producer id and epoch. Raises BrokerError, RemoteProtocolError.

    The code comes first: with one, such as 14 of a coordinator that is loading, the id is -1, and brokers would take
    records of producer -1 without looking for duplicates.
    """
    _check(response.error_code, context)
    if response.producer_id < 0 or response.producer_epoch < 0:
        raise RemoteProtocolError(
            f"{context}: expected a producer id and epoch from 0 on, got {response.producer_id} and "
            f"{response.producer_epoch}"
        )
    return ProducerEpoch(response.producer_id, response.producer_epoch)


def _check_partitions(response: AddPartitionsToTxnResponse | TxnOffsetCommitResponse, context: str) -> None:
    """Raise BrokerError for the partition with the most lasting error, if there is any."""
    refused = [
        broker_error(one.error_code, f"{context}, {topic.topic}/{one.partition}")
        for topic in response.topics
        for one in topic.partitions
        if one.error_code not in _NOT_JUDGED
    ]
    if refused:
        raise min(refused, key=lambda error: error.retriable)


def _numbers_of(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """Return the sorted partition numbers of each topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions, key=lambda one: (one.topic, one.partition.number)):
        found[partition.topic].append(partition.partition.number)
    return found


def _offsets_by_topic(offsets: Mapping[TopicPartition, tuple[int, str]]) -> tuple[TxnCommitTopic, ...]:
    found: dict[str, list[TxnCommitPartition]] = defaultdict(list)
    for partition, (offset, metadata) in offsets.items():
        found[partition.topic].append(
            TxnCommitPartition(partition=partition.partition.number, offset=offset, metadata=metadata)
        )
    return tuple(TxnCommitTopic(topic=topic, partitions=tuple(partitions)) for topic, partitions in found.items())
