# SPDX-License-Identifier: Apache-2.0
"""A cluster by script with a transaction coordinator, and logs that check sequence numbers as brokers do.

As Kafka 1.1 (``TransactionCoordinator``, ``ProducerStateManager``): a new producer of a transactional id fences the one
before; a batch that is there already is acknowledged again; a gap is error 45, a producer without entry error 59.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from consumerd.cluster.view import Broker
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from consumerd.wire.modern.produce import ProducedPartition
from consumerd.wire.modern.transactions import (
    AddedPartition,
    AddedTopic,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnCommittedPartition,
    TxnCommittedTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.support.producing import ProduceCluster
from tests.support.scripted_broker import Body, Reaction, ScriptedBroker

OUT_OF_ORDER, FENCED, INVALID_STATE, UNMAPPED, UNKNOWN_PRODUCER = 45, 47, 48, 49, 59
CONCURRENT, LOADING, NO_COORDINATOR, NOT_COORDINATOR, NO_TOPIC = 51, 14, 15, 16, 3

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_COUNT_AT: Final = 57
_TRANSACTIONAL: Final = 0x10

Scripted = int | Reaction


@dataclass
class Producer:
    """What a coordinator keeps of a transactional id."""

    producer_id: int
    epoch: int = 0
    former_epoch: int = -1
    open: bool = False
    ended_by: bool | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)


@dataclass
class Last:
    """The last batch of a producer in a partition."""

    epoch: int
    first: int
    next: int
    base_offset: int


class TransactionalCluster(ProduceCluster):
    """Brokers whose first one coordinates everything.

    ``scripted`` has, by request, what is answered next instead: an error code (nothing is done), CLOSE or SILENT (it is
    done, and nobody is told).
    """

    def __init__(self, brokers: int = 1, *, newest: int = 7, identify_version: int = 4) -> None:
        self.scripted: dict[type[Any], deque[Scripted]] = defaultdict(deque)
        self.producers: dict[str, Producer] = {}
        self.ids = 1000
        self.last: dict[tuple[TopicPartition, int], Last] = {}
        self.epochs: dict[tuple[TopicPartition, int], int] = {}
        self.committed_offsets: dict[tuple[str, TopicPartition], int] = {}
        self.outcomes: dict[tuple[int, int, int], bool] = {}
        self.owners: dict[TopicPartition, list[tuple[int, int, int] | None]] = defaultdict(list)
        """The transaction (producer id, epoch, number) of each record, None without one."""
        self.numbers: dict[int, int] = defaultdict(int)
        self.log_start = 0
        self.has_successor_after_end = False
        """Whether another producer takes the id when a transaction ends."""
        self._identify_version = identify_version
        super().__init__(brokers, newest=newest)

    def start(self, broker: Broker, ranges: Mapping[ApiKey, tuple[int, int]]) -> None:
        """See ProduceCluster."""
        more = {
            ApiKey.FIND_COORDINATOR: (0, 1),
            ApiKey.INIT_PRODUCER_ID: (0, self._identify_version),
            ApiKey.ADD_PARTITIONS_TO_TXN: (0, 2),
            ApiKey.ADD_OFFSETS_TO_TXN: (0, 2),
            ApiKey.TXN_OFFSET_COMMIT: (0, 3),
            ApiKey.END_TXN: (0, 2),
        }
        super().start(broker, {**ranges, **more})
        peer = self.network.brokers[broker.address]
        assert isinstance(peer, ScriptedBroker)
        answers = {
            FindCoordinatorRequest: self._find,
            InitProducerIdRequest: self._identify,
            AddPartitionsToTxnRequest: self._add_partitions,
            AddOffsetsToTxnRequest: self._add_offsets,
            TxnOffsetCommitRequest: self._commit_offsets,
            EndTxnRequest: self._end,
        }
        for kind, answer in answers.items():
            peer.handlers[kind] = lambda request, version, answer=answer: answer(request, version)  # type: ignore[misc]  # a default binds it

    def committed(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        """Return what a reader of committed records sees."""
        key = TopicPartition.modern(topic, partition)
        return [
            stored.value
            for stored, owner in zip(self.logs[key], self.owners[key], strict=True)
            if owner is None or self.outcomes.get(owner)
        ]

    # -- coordinator

    def _take(self, request: object) -> Scripted:
        script = self.scripted[type(request)]
        return script.popleft() if script else 0

    def _find(self, request: FindCoordinatorRequest, _version: int) -> object:
        taken = self._take(request)
        if isinstance(taken, Reaction):
            return taken
        if taken:
            return FindCoordinatorResponse(error_code=taken, node_id=-1, host="", port=-1)
        first = next(one for one in self.brokers.values() if one.address in self.network.brokers)
        return FindCoordinatorResponse(node_id=first.id, host=first.host, port=first.port)

    def _identify(self, request: InitProducerIdRequest, _version: int) -> object:
        taken = self._take(request)
        if isinstance(taken, int) and taken:
            return InitProducerIdResponse(error_code=taken, producer_id=-1, producer_epoch=-1)
        answer = self._assign(request)
        return taken if isinstance(taken, Reaction) else answer

    def _assign(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        self.ids += 1
        if request.transactional_id is None:
            return InitProducerIdResponse(producer_id=self.ids, producer_epoch=0)
        kept = self.producers.get(request.transactional_id)
        if kept is None:
            kept = self.producers[request.transactional_id] = Producer(self.ids)
            return InitProducerIdResponse(producer_id=kept.producer_id, producer_epoch=0)
        if kept.open:
            kept.epoch += 1  # so that what it wrote last cannot come after the marker
            kept.former_epoch = -1
            self._finish(kept, commit=False)
            return InitProducerIdResponse(error_code=CONCURRENT, producer_id=-1, producer_epoch=-1)
        if request.producer_epoch not in (-1, kept.epoch, kept.former_epoch):
            return InitProducerIdResponse(error_code=90, producer_id=-1, producer_epoch=-1)
        if request.producer_epoch in (-1, kept.epoch):
            kept.former_epoch, kept.epoch = kept.epoch, kept.epoch + 1
        return InitProducerIdResponse(producer_id=kept.producer_id, producer_epoch=kept.epoch)

    def _check(self, request: Any) -> int:
        kept = self.producers.get(request.transactional_id)
        if kept is None or kept.producer_id != request.producer_id:
            return UNMAPPED
        return 0 if kept.epoch == request.producer_epoch else FENCED

    def _add_partitions(self, request: AddPartitionsToTxnRequest, _version: int) -> object:
        taken = self._take(request)
        code = taken if isinstance(taken, int) and taken else self._check(request)
        wanted = [TopicPartition.modern(topic.topic, number) for topic in request.topics for number in topic.partitions]
        if not code and not all(one.topic in self.leaders for one in wanted):
            code = NO_TOPIC
        if not code:
            self._open(request.transactional_id).partitions.update(wanted)
        if isinstance(taken, Reaction):
            return taken
        return AddPartitionsToTxnResponse(
            topics=tuple(
                AddedTopic(
                    topic=topic.topic,
                    partitions=tuple(AddedPartition(partition=one, error_code=code) for one in topic.partitions),
                )
                for topic in request.topics
            )
        )

    def _open(self, transactional_id: str) -> Producer:
        kept = self.producers[transactional_id]
        if not kept.open:
            kept.open = True
            self.numbers[kept.producer_id] += 1
        return kept

    def _add_offsets(self, request: AddOffsetsToTxnRequest, _version: int) -> object:
        taken = self._take(request)
        code = taken if isinstance(taken, int) and taken else self._check(request)
        if not code:
            self._open(request.transactional_id)
        return taken if isinstance(taken, Reaction) else AddOffsetsToTxnResponse(error_code=code)

    def _commit_offsets(self, request: TxnOffsetCommitRequest, _version: int) -> object:
        taken = self._take(request)
        scripted = taken if isinstance(taken, int) else 0
        kept = self.producers[request.transactional_id]
        topics = []
        for topic in request.topics:
            partitions = []
            for one in topic.partitions:
                code = scripted or self._check(request) or (0 if topic.topic in self.leaders else NO_TOPIC)
                if not code:
                    kept.offsets[request.group_id, TopicPartition.modern(topic.topic, one.partition)] = one.offset
                partitions.append(TxnCommittedPartition(partition=one.partition, error_code=code))
            topics.append(TxnCommittedTopic(topic=topic.topic, partitions=tuple(partitions)))
        return taken if isinstance(taken, Reaction) else TxnOffsetCommitResponse(topics=tuple(topics))

    def _end(self, request: EndTxnRequest, _version: int) -> object:
        taken = self._take(request)
        code = taken if isinstance(taken, int) and taken else self._check(request)
        if not code:
            kept = self.producers[request.transactional_id]
            if kept.open:
                self._finish(kept, commit=request.committed)
            elif kept.ended_by is not request.committed:
                code = INVALID_STATE
        return taken if isinstance(taken, Reaction) else EndTxnResponse(error_code=code)

    def _finish(self, kept: Producer, *, commit: bool) -> None:
        for epoch in range(kept.epoch + 1):
            self.outcomes[kept.producer_id, epoch, self.numbers[kept.producer_id]] = commit
        for partition in kept.partitions:
            self.epochs[partition, kept.producer_id] = kept.epoch
        if commit:
            self.committed_offsets |= kept.offsets
        kept.open, kept.ended_by = False, commit
        kept.partitions, kept.offsets = set(), {}
        if self.has_successor_after_end:
            kept.epoch, kept.former_epoch = kept.epoch + 1, -1

    # -- logs

    def append_one(
        self, broker: BrokerId, partition: TopicPartition, data: bytes
    ) -> ProducedPartition | Reaction | Body:
        """See ProduceCluster."""
        producer_id, epoch, first = _PRODUCER.unpack_from(data, _PRODUCER_AT)
        script = self.answers[partition]
        scripted = bool(script) and isinstance(script[0], int) and bool(script[0])
        if producer_id < 0 or scripted or self.leaders[partition.topic][partition.partition.number] != broker:
            return super().append_one(broker, partition, data)
        number = partition.partition.number
        last = self.last.get((partition, producer_id))
        count = struct.unpack_from(">i", data, _COUNT_AT)[0]
        if epoch < max(self.epochs.get((partition, producer_id), -1), -1 if last is None else last.epoch):
            return self._refuse(partition, FENCED)
        if last is not None and last.epoch == epoch and (last.first, last.next) == (first, first + count):
            said = script.popleft() if script else 0
            if isinstance(said, (Reaction, Body)):
                return said
            return ProducedPartition(partition=number, base_offset=last.base_offset, log_append_time_ms=-1)
        expected = 0 if last is None or last.epoch != epoch else last.next
        if first != expected:
            return self._refuse(partition, UNKNOWN_PRODUCER if last is None else OUT_OF_ORDER)
        base_offset = len(self.logs[partition])
        answer = super().append_one(broker, partition, data)
        if len(self.logs[partition]) > base_offset:
            self.last[partition, producer_id] = Last(epoch, first, first + count, base_offset)
            is_transactional = bool(data[22] & _TRANSACTIONAL)
            owner = (producer_id, epoch, self.numbers[producer_id]) if is_transactional else None
            self.owners[partition] += [owner] * count
        return answer

    def _refuse(self, partition: TopicPartition, code: int) -> ProducedPartition:
        return ProducedPartition(
            partition=partition.partition.number, error_code=code, base_offset=-1, log_start_offset=self.log_start
        )

    def forget(self, partition: TopicPartition) -> None:
        """Lose what is known of producers, as a broker does after retention or a loss."""
        for key in [key for key in self.last if key[0] == partition]:
            del self.last[key]
