# SPDX-License-Identifier: Apache-2.0
"""Whatever brokers do to a transactional producer: each committed record is there once, and no other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumerd.client.producer import Producer
from consumerd.client.producer_actions import AddPartitions, BatchSequence, EndTransaction, InitProducer, ProducerEpoch
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.producer_state import Phase, ProducerState, Remedy, Verdict
from consumerd.errors import (
    ConnectionLost,
    ConsumerdError,
    DeliveryTimedOut,
    LocalProtocolError,
    ProduceError,
    RequestTimedOut,
    TransactionFailed,
)
from consumerd.model import TopicPartition
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.support.producing import NOT_AUTHORIZED, NOT_ENOUGH_REPLICAS, NOT_LEADER, TOO_LARGE, produce_to
from tests.support.scripted_broker import Reaction
from tests.support.transacting import (
    CONCURRENT,
    LOADING,
    NO_COORDINATOR,
    NOT_COORDINATOR,
    OUT_OF_ORDER,
    UNKNOWN_PRODUCER,
    TransactionalCluster,
)

pytestmark = pytest.mark.records

PARTITIONS = 2
ASKED = (FindCoordinatorRequest, InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest)
SAID = (LOADING, NO_COORDINATOR, NOT_COORDINATOR, CONCURRENT, NOT_AUTHORIZED, Reaction.CLOSE, Reaction.SILENT)
ANSWERS = (0, NOT_LEADER, NOT_ENOUGH_REPLICAS, TOO_LARGE, NOT_AUTHORIZED, Reaction.CLOSE, Reaction.SILENT)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, PARTITIONS - 1), st.integers(0, 900)),
        st.tuples(st.just("send"), st.integers(0, PARTITIONS - 1), st.integers(0, 900)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
        st.tuples(st.just("abort"), st.just(0), st.just(0)),
        st.tuples(st.just("answer"), st.integers(0, PARTITIONS - 1), st.sampled_from(ANSWERS)),
        st.tuples(st.just("script"), st.integers(0, len(ASKED) - 1), st.sampled_from(SAID)),
        st.tuples(st.just("cut"), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("replace"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@dataclass
class Told:
    """What the program knows of one transaction: what it wrote, and whether it was committed, None if it cannot know."""

    values: dict[int, list[bytes]] = field(default_factory=lambda: {number: [] for number in range(PARTITIONS)})
    committed: bool | None = False


class Program:
    """Writes in transactions, and notes what it is told."""

    def __init__(self, cluster: TransactionalCluster) -> None:
        self.cluster = cluster
        self.told: list[Told] = []

    async def run(self, producer: Producer, steps: list[tuple[str, int, object]]) -> list[tuple[str, int, object]]:
        """Go on until the producer ends or is to be replaced; return the steps that are left."""
        await self._insist(producer.init_transactions)
        self._begin(producer)
        for number, (what, one, other) in enumerate(steps):
            if what == "replace":
                self.told[-1].committed = False if self.told[-1].committed is not None else None
                return steps[number + 1 :]
            try:
                await self._step(producer, number, what, one, other)
            except TransactionFailed as failure:
                if failure.fatal:
                    return steps[number + 1 :]
                await self._end(producer, commit=False)
        await self._end(producer, commit=True)
        return []

    async def _step(self, producer: Producer, number: int, what: str, one: int, other: object) -> None:
        cluster = self.cluster
        if what == "send":
            assert isinstance(other, int)
            value = b"%d-%d " % (len(self.told), number) + b"x" * other
            await producer.enqueue("t", value, partition=one)
            self.told[-1].values[one].append(value)
        elif what in ("commit", "abort"):
            await self._end(producer, commit=what == "commit")
        elif what == "answer":
            cluster.answers[TopicPartition.modern("t", one)].append(other)  # type: ignore[arg-type]  # a code or a reaction
        elif what == "script":
            cluster.scripted[ASKED[one]].append(other)  # type: ignore[arg-type]  # a code or a reaction
        elif what == "cut":
            for stream in list(cluster.network.streams):
                if stream.address == cluster.brokers[one].address:
                    stream.end(ConnectionLost("cut"))
        else:
            await asyncio.sleep(0.5 * one)

    def _begin(self, producer: Producer) -> None:
        producer.begin_transaction()
        self.told.append(Told())

    async def _end(self, producer: Producer, *, commit: bool) -> None:
        if commit:
            self.told[-1].committed = None
            try:
                await self._insist(producer.commit_transaction)
                self.told[-1].committed = True
            except TransactionFailed as failure:
                self.told[-1].committed = None if failure.fatal else False
                if failure.fatal:
                    raise
                await self._insist(producer.abort_transaction)
        else:
            await self._insist(producer.abort_transaction)
        self._begin(producer)

    async def _insist(self, call: object) -> None:
        """Repeat a call whose outcome is unknown."""
        while True:
            try:
                await call()  # type: ignore[operation]  # a method of the producer
            except (DeliveryTimedOut, RequestTimedOut):
                continue
            return


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, identify_version=st.sampled_from([1, 4]))
def test_committed_records_are_there_once(steps: list[tuple[str, int, object]], identify_version: int) -> None:
    """Answers get lost, leaders refuse, producers are replaced: all or nothing of a transaction, in order."""
    cluster = TransactionalCluster(2, identify_version=identify_version)
    cluster.topic("t", 1, 2)
    program = Program(cluster)
    options = ProducerSettings(
        transactional_id="x", batch_bytes=2_000, request_timeout_s=1, delivery_timeout_s=6, max_block_s=5,
        close_timeout_s=1,
    )  # fmt: skip
    left: list[tuple[str, int, object]] | None = steps
    while left is not None:
        remaining = left

        async def scenario(producer: Producer, remaining: list[tuple[str, int, object]] = remaining) -> object:
            try:
                return await program.run(producer, remaining)
            except TransactionFailed as failure:
                if not failure.fatal:
                    raise
                return remaining[1:]

        result = produce_to(cluster, scenario, settings=options)
        left = list(result) if result else None  # type: ignore[call-overload]  # steps
    check(cluster, program.told)


def check(cluster: TransactionalCluster, told: list[Told]) -> None:
    """Each partition has the records of the committed transactions, one after the other."""
    for number in range(PARTITIONS):
        seen = cluster.committed("t", number)
        assert len(seen) == len(set(seen)), "each once"
        left = list(seen)
        for one in told:
            values = one.values[number]
            there = values and left[: len(values)] == values
            if one.committed:
                assert left[: len(values)] == values, "what was committed is there, in its order"
            if one.committed or (one.committed is None and there):
                del left[: len(values)]
        assert not left, "nothing else is there"


class SequenceMachine(RuleBasedStateMachine):
    """Numbers of one partition against a log that checks them: every loss of an answer, and what it leads to.

    The log takes a batch if its number follows, and knows the last one again. Copies of lost requests may still come.
    """

    def __init__(self) -> None:
        super().__init__()
        self.partition = TopicPartition.modern("t", 0)
        self.state = ProducerState(None)
        self.state.identified(ProducerEpoch(7, 0))
        self.log: list[int] = []
        self.epoch, self.first, self.next = 0, -1, 0
        self.batch: tuple[BatchSequence, list[int]] | None = None
        self.in_doubt = False
        self.records = 0
        self.given_up: set[int] = set()
        self.late: list[tuple[BatchSequence, list[int]]] = []

    def append(self, sequence: BatchSequence, records: list[int]) -> bool:
        """Take a batch as a broker does; return False if it is refused."""
        if sequence.epoch < self.epoch:
            return False
        if sequence.epoch == self.epoch and (sequence.base_sequence, sequence.base_sequence + len(records)) == (
            self.first,
            self.next,
        ):
            return True
        expected = self.next if sequence.epoch == self.epoch else 0
        if sequence.base_sequence != expected:
            return False
        self.log += records
        self.epoch, self.first, self.next = sequence.epoch, expected, expected + len(records)
        return True

    @precondition(lambda self: self.batch is None)
    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        """Begin a batch."""
        assert self.state.judge(self.partition, numbered=False) is Verdict.SEND
        records = list(range(self.records, self.records + count))
        self.records += count
        self.batch, self.in_doubt = (self.state.number(self.partition, count), records), False

    @precondition(lambda self: self.batch is not None)
    @rule(arrives=st.sampled_from(["now", "later", "never"]), answered=st.booleans())
    def attempt(self, arrives: str, *, answered: bool) -> None:
        """Send it: the request or its answer may be lost."""
        assert self.batch is not None
        sequence, records = self.batch
        if arrives == "later":
            self.late.append(self.batch)
        taken = arrives == "now" and self.append(sequence, records)
        if arrives != "now" or not answered:
            self.in_doubt = True
        elif taken:
            self.state.written(self.partition, len(self.log) - 1)
            self.batch = None
        else:
            self.refuse(sequence, records)

    def refuse(self, sequence: BatchSequence, records: list[int]) -> None:
        """The answer is error 45."""
        remedy = self.state.refused(self.partition, sequence, 45, in_doubt=self.in_doubt, log_start_offset=0)
        if remedy is Remedy.RENUMBER:
            self.batch = (self.state.number(self.partition, len(records)), records)
        else:
            assert remedy is Remedy.GIVE_UP
            self.give_up()

    @precondition(lambda self: self.batch is not None)
    @rule()
    def give_up(self) -> None:
        """Its time is over."""
        assert self.batch is not None
        sequence, records = self.batch
        self.given_up.update(records)
        self.state.lost(self.partition, sequence, ProduceError("late", in_doubt=self.in_doubt))
        self.batch = None

    @precondition(lambda self: self.late)
    @rule()
    def copy_arrives(self) -> None:
        """A request that was thought lost comes after all."""
        self.append(*self.late.pop(0))

    @invariant()
    def each_record_once_in_order(self) -> None:
        """Those that were not given up, and perhaps some that were."""
        assert sorted(set(self.log)) == self.log
        under_way = set(self.batch[1]) if self.batch is not None else set()
        assert set(range(self.records)) - under_way - self.given_up <= set(self.log)


TestSequences = SequenceMachine.TestCase
TestSequences.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@given(first=st.integers(0, (1 << 31) - 1), count=st.integers(1, 1 << 20))
def test_numbers_begin_again_after_the_largest_one(first: int, count: int) -> None:
    """As ``DefaultRecordBatch.incrementSequence``: after 2,147,483,647 comes 0."""
    partition = TopicPartition.modern("t", 0)
    state = ProducerState(None)
    state.identified(ProducerEpoch(1, 0))
    state.give_back(partition, state.number(partition, 1)._replace(base_sequence=first))
    state.number(partition, count)

    expected = first + count if first + count <= (1 << 31) - 1 else count - ((1 << 31) - 1 - first) - 1
    assert expected == state.number(partition, 1).base_sequence


def test_an_exhausted_epoch_asks_for_another_id() -> None:
    """Epochs have 16 bits."""
    partition = TopicPartition.modern("t", 0)
    state = ProducerState(None)
    state.identified(ProducerEpoch(1, (1 << 15) - 1))
    batch = state.number(partition, 3)
    state.lost(partition, batch, ProduceError("late", in_doubt=True))

    assert InitProducer(None) == state.next_action()
    assert Verdict.WAIT is state.judge(partition, numbered=False)
    state.identified(ProducerEpoch(2, 0))
    assert BatchSequence(2, 0, 0) == state.number(partition, 1)


def test_numbers_of_an_older_epoch_are_not_given_back() -> None:
    """A batch of another partition's former epoch must not move the new epoch's numbers."""
    partition, other = (TopicPartition.modern("t", number) for number in range(2))
    state = ProducerState(None)
    state.identified(ProducerEpoch(1, 0))
    old = state.number(partition, 5)
    state.lost(other, state.number(other, 1), ProduceError("late", in_doubt=True))
    state.written(partition, 4)
    assert BatchSequence(1, 1, 0) == state.number(partition, 2)
    state.give_back(partition, old)

    assert BatchSequence(1, 1, 2) == state.number(partition, 1)


@given(calls=st.lists(st.sampled_from(["init", "begin", "commit", "abort", "end", "act", "lose", "fail"]), max_size=40))
def test_no_order_of_calls_leaves_the_phases(calls: list[str]) -> None:
    """A call works or raises; an action is there exactly where the phase needs one, and READY is always in reach."""
    partition = TopicPartition.modern("t", 0)
    state = ProducerState("x")
    for call in calls:
        try:
            match call:
                case "act":
                    act(state)
                case "lose":
                    if (action := state.next_action()) is not None:
                        state.start(action)
                        assert state.failed(action, ConnectionLost("cut"))
                        assert action == state.next_action(), "it is made again"
                case "fail":
                    state.doom(ConnectionLost("a record"))
                case "begin":
                    state.begin()
                    state.want(partition)
                case _:
                    getattr(state, call)()
        except (TransactionFailed, LocalProtocolError):
            pass
        assert (state.failure is not None) == (state.phase in (Phase.ABORTABLE, Phase.FAILED))
    lead_to_ready(state)
    assert state.phase is Phase.READY


def act(state: ProducerState) -> None:
    """Make the next request, with success."""
    action = state.next_action()
    if isinstance(action, InitProducer):
        state.identified(ProducerEpoch(1, 0))
    elif action is not None:
        state.start(action)
        state.succeeded(action)


def lead_to_ready(state: ProducerState) -> None:
    if state.phase is Phase.NEW:
        state.init()
    if state.may_abort:
        state.abort()
    for _ in range(5):
        act(state)
        state.end()


def test_a_transaction_is_ended_only_when_its_records_have_outcomes() -> None:
    """EndTxn before would leave records behind the marker."""
    partition = TopicPartition.modern("t", 0)
    state = ProducerState("x")
    state.init()
    state.identified(ProducerEpoch(1, 0))
    state.begin()
    state.want(partition)
    assert Verdict.WAIT is state.judge(partition, numbered=False)
    action = state.next_action()
    assert AddPartitions(frozenset({partition})) == action
    assert action is not None
    state.start(action)
    state.succeeded(action)
    assert Verdict.SEND is state.judge(partition, numbered=False)
    state.commit()
    assert state.next_action() is None
    state.end()
    assert EndTransaction(commit=True) == state.next_action()


def test_a_batch_with_a_number_is_sent_again_in_a_doomed_transaction() -> None:
    """Only its outcome tells the partition's next number; one without a number fails."""
    partition = TopicPartition.modern("t", 0)
    state = ProducerState("x")
    state.init()
    state.identified(ProducerEpoch(1, 0))
    state.begin()
    cause: ConsumerdError = ConnectionLost("a record")
    state.doom(cause)

    assert Verdict.SEND is state.judge(partition, numbered=True)
    assert Verdict.FAIL is state.judge(partition, numbered=False)
    assert cause is state.explain_unwritten(partition).__cause__


def test_an_unknown_log_start_repeats_the_batch() -> None:
    """As Kafka's producer: the broker will tell it, and only then it is known whether retention was the reason."""
    partition = TopicPartition.modern("t", 0)
    state = ProducerState(None)
    state.identified(ProducerEpoch(1, 0))
    batch = state.number(partition, 1)

    refused = state.refused(partition, batch, UNKNOWN_PRODUCER, in_doubt=False, log_start_offset=-1)
    assert Remedy.REPEAT is refused
    assert state.refused(partition, batch, NOT_LEADER, in_doubt=False, log_start_offset=-1) is None
    assert Remedy.RENUMBER is state.refused(partition, batch, OUT_OF_ORDER, in_doubt=False, log_start_offset=-1)
