# SPDX-License-Identifier: Apache-2.0
"""Idempotent and transactional producers over brokers by script, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.client.delivery import Delivery
from consumerd.client.producer import Producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    DeliveryTimedOut,
    LocalProtocolError,
    ProducerFenced,
    RequestTimedOut,
    TransactionFailed,
    UnknownProducer,
    WriteRefused,
)
from consumerd.model import TopicPartition
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.produce import ProduceRequest
from consumerd.wire.modern.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tests.support.producing import NOT_AUTHORIZED, NOT_ENOUGH_REPLICAS, NOT_LEADER, TOO_LARGE, produce_to
from tests.support.scripted_broker import Reaction
from tests.support.transacting import (
    CONCURRENT,
    FENCED,
    INVALID_STATE,
    LOADING,
    NO_COORDINATOR,
    NOT_COORDINATOR,
    OUT_OF_ORDER,
    UNKNOWN_PRODUCER,
    UNMAPPED,
    TransactionalCluster,
)

PRODUCER_FENCED, TIMED_OUT, DUPLICATE, GROUP_DENIED, ID_DENIED, BAD_TIMEOUT = 90, 7, 46, 30, 53, 50
T0, T1 = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)
QUICK = {"request_timeout_s": 1.0, "delivery_timeout_s": 5.0, "max_block_s": 8.0}


def one_topic(partitions: int = 2, **options: Any) -> TransactionalCluster:
    cluster = TransactionalCluster(**options)
    cluster.topic("t", *[1] * partitions)
    return cluster


async def asserting(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Run a scenario; what ``pytest.raises`` misses fails by an assertion, which no task group wraps."""
    try:
        return await scenario
    except pytest.fail.Exception as missed:
        raise AssertionError(str(missed)) from missed


def transact(
    cluster: TransactionalCluster, scenario: Callable[[Producer], Coroutine[Any, Any, Any]], **settings: Any
) -> Any:
    """Run a scenario with a transactional producer that has its id."""

    async def run(producer: Producer) -> Any:
        await producer.init_transactions()
        return await asserting(scenario(producer))

    return produce_to(cluster, run, settings=ProducerSettings(transactional_id="x", **{**QUICK, **settings}))


def idempotent(cluster: TransactionalCluster, scenario: Callable[[Producer], Coroutine[Any, Any, Any]]) -> Any:
    settings = ProducerSettings(enable_idempotence=True, **QUICK)
    return produce_to(cluster, lambda producer: asserting(scenario(producer)), settings=settings)


async def write(producer: Producer, *values: bytes, partition: int = 0) -> list[Delivery]:
    return [await producer.enqueue("t", value, partition=partition) for value in values]


# -- the way through


def test_committed_records_are_seen_and_aborted_ones_are_not() -> None:
    """The purpose of it all, with two partitions and four transactions."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        for number in range(4):
            producer.begin_transaction()
            await write(producer, b"a%d" % number, b"b%d" % number)
            await producer.send("t", b"c%d" % number, partition=1)
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())

    transact(cluster, scenario)
    assert [b"a0", b"b0", b"a2", b"b2"] == cluster.committed()
    assert [b"c0", b"c2"] == cluster.committed(partition=1)
    assert ["x"] * len(cluster.requests()) == [request.transactional_id for request, _ in cluster.requests()]


def test_a_transaction_without_records_costs_no_request() -> None:
    """The coordinator has not heard of it, and would refuse to end it."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await producer.commit_transaction()
        producer.begin_transaction()
        await producer.abort_transaction()

    transact(cluster, scenario)
    assert [] == cluster.requests(EndTxnRequest)


def test_offsets_count_from_the_commit_on() -> None:
    """Those of an aborted transaction never do."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> list[dict[Any, int]]:
        seen = []
        for offset, end in ((5, producer.commit_transaction), (9, producer.abort_transaction)):
            producer.begin_transaction()
            await producer.send_offsets_to_transaction({T0: offset, T1: (offset + 1, "mine")}, "g")
            seen.append(dict(cluster.committed_offsets))
            await end()
        return seen

    seen = transact(cluster, scenario)
    assert [{}, {("g", T0): 5, ("g", T1): 6}] == seen
    assert {("g", T0): 5, ("g", T1): 6} == cluster.committed_offsets
    assert 1 == len({request.group_id for request, _ in cluster.requests(AddOffsetsToTxnRequest)})


def test_a_partition_is_added_once_in_a_transaction() -> None:
    """And again in the next."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        for _ in range(2):
            producer.begin_transaction()
            for _ in range(3):
                await producer.send("t", b"a", partition=0)
            await producer.commit_transaction()

    transact(cluster, scenario)
    assert 2 == len(cluster.requests(AddPartitionsToTxnRequest))


@pytest.mark.parametrize("code", [LOADING, NO_COORDINATOR, NOT_COORDINATOR, CONCURRENT])
@pytest.mark.parametrize(
    "request_class",
    [InitProducerIdRequest, AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest],
)
def test_passing_errors_are_retried(request_class: type[Any], code: int) -> None:
    """A coordinator that loads, moves or still ends the last transaction: nothing is lost or told."""
    cluster = one_topic()
    cluster.scripted[request_class].extend([code] * 3)

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await write(producer, b"a")
        await producer.send_offsets_to_transaction({T0: 1}, "g")
        await producer.commit_transaction()

    transact(cluster, scenario)
    assert [b"a"] == cluster.committed()
    assert {("g", T0): 1} == cluster.committed_offsets
    assert 4 == len(cluster.requests(request_class))


@pytest.mark.parametrize("reaction", [Reaction.CLOSE, Reaction.SILENT])
@pytest.mark.parametrize(
    "request_class",
    [
        FindCoordinatorRequest,
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest,
        TxnOffsetCommitRequest,
        EndTxnRequest,
    ],
)
def test_lost_answers_are_asked_for_again(request_class: type[Any], reaction: Reaction) -> None:
    """Each request may be made twice; the transaction is committed once."""
    cluster = one_topic()
    cluster.scripted[request_class].append(reaction)

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await write(producer, b"a")
        await producer.send_offsets_to_transaction({T0: 1}, "g")
        await producer.commit_transaction()
        producer.begin_transaction()
        await write(producer, b"b")
        await producer.abort_transaction()

    transact(cluster, scenario)
    assert [b"a"] == cluster.committed()
    assert {("g", T0): 1} == cluster.committed_offsets


def test_no_record_is_written_with_the_id_of_an_error() -> None:
    """Brokers take records of producer -1 without looking for duplicates."""
    cluster = one_topic()
    cluster.scripted[InitProducerIdRequest].extend([LOADING, LOADING])
    deliveries = idempotent(cluster, lambda producer: write(producer, b"a"))
    assert 0 == deliveries[0].result().offset
    assert {0} == {batch_owner(request)[2] for request, _ in cluster.requests()}
    assert -1 not in {batch_owner(request)[0] for request, _ in cluster.requests()}


def batch_owner(request: ProduceRequest) -> tuple[int, int, int]:
    """Return producer id, epoch and sequence of the first batch of a request."""
    data = bytes(request.topics[0].partitions[0].record_set or b"")
    return int.from_bytes(data[43:51], signed=True), int.from_bytes(data[51:53]), int.from_bytes(data[53:57])


# -- fenced


@pytest.mark.parametrize("code", [FENCED, PRODUCER_FENCED])
@pytest.mark.parametrize(
    "request_class", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest]
)
def test_a_fenced_producer_has_ended(request_class: type[Any], code: int) -> None:
    """It commits nothing, and no call of it works again."""
    cluster = one_topic()
    cluster.scripted[request_class].append(code)

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await write(producer, b"a")
        with pytest.raises(ProducerFenced, match="transactional id 'x' is fenced: another producer has begun"):
            await producer.send_offsets_to_transaction({T0: 1}, "g")
            await producer.commit_transaction()
        for call in (producer.commit_transaction, producer.abort_transaction, producer.init_transactions):
            with pytest.raises(ProducerFenced):
                await call()
        with pytest.raises(ProducerFenced):
            producer.begin_transaction()
        with pytest.raises(ProducerFenced):
            await producer.enqueue("t", b"b")

    transact(cluster, scenario)
    assert [] == cluster.committed()
    assert {} == cluster.committed_offsets


def test_a_successor_fences_and_voids_what_was_open() -> None:
    """Records of the first that come later are refused, and those before are aborted."""
    cluster = one_topic()

    async def scenario(first: Producer) -> None:
        first.begin_transaction()
        await first.send("t", b"old", partition=0)
        await first.send("t", b"old", partition=1)
        # the second one, by its requests alone
        for _ in range(2):
            cluster._assign(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1))
        with pytest.raises(ProducerFenced):
            await first.send("t", b"late", partition=0)
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()

    transact(cluster, scenario)
    assert [] == cluster.committed()
    assert [] == cluster.committed(partition=1)
    assert [b"old"] == cluster.values("t")


@pytest.mark.parametrize("code", [UNMAPPED, INVALID_STATE, ID_DENIED])
def test_what_an_abort_does_not_mend_ends_the_producer(code: int) -> None:
    """Such as a transactional id that the coordinator has forgotten."""
    cluster = one_topic()
    cluster.scripted[AddPartitionsToTxnRequest].append(code)

    async def scenario(producer: Producer) -> tuple[TransactionFailed, BaseException | None]:
        producer.begin_transaction()
        await write(producer, b"a")
        with pytest.raises(TransactionFailed) as caught:
            await producer.commit_transaction()
        with pytest.raises(TransactionFailed):
            await producer.abort_transaction()
        return caught.value, caught.value.__cause__

    failure, cause = transact(cluster, scenario)
    assert failure.fatal
    assert isinstance(cause, BrokerError)
    assert code == cause.code


@pytest.mark.parametrize("code", [BAD_TIMEOUT, ID_DENIED, 31])
def test_a_refused_id_is_told_by_the_first_call(code: int) -> None:
    """A timeout above the broker's limit, a missing right."""
    cluster = one_topic()
    cluster.scripted[InitProducerIdRequest].append(code)

    async def scenario(producer: Producer) -> None:
        with pytest.raises(TransactionFailed, match=f"error {code} ") as caught:
            await producer.init_transactions()
        assert caught.value.fatal

    produce_to(cluster, scenario, settings=ProducerSettings(transactional_id="x", **QUICK))


def test_a_broker_without_transactions_is_told_by_the_first_call() -> None:
    """0.10 knows no producer ids; records would be written without any check."""
    cluster = one_topic()
    for broker in cluster.brokers.values():
        cluster.network.brokers[broker.address].ranges = {  # type: ignore[attr-defined]  # scripted brokers
            key: versions
            for key, versions in cluster.network.brokers[broker.address].ranges.items()  # type: ignore[attr-defined]  # scripted brokers
            if key < 18
        }

    async def scenario(producer: Producer) -> None:
        with pytest.raises(TransactionFailed, match=r"needs brokers of 0\.11 or later"):
            await producer.init_transactions()

    produce_to(cluster, scenario, settings=ProducerSettings(transactional_id="x", **QUICK))
    assert [] == cluster.requests()


# -- failures that an abort mends


@pytest.mark.parametrize(
    ("request_class", "code"),
    [
        (AddPartitionsToTxnRequest, NOT_AUTHORIZED),
        (AddOffsetsToTxnRequest, GROUP_DENIED),
        (TxnOffsetCommitRequest, GROUP_DENIED),
        (TxnOffsetCommitRequest, 12),
    ],
)
def test_after_a_refusal_only_an_abort_goes_on(request_class: type[Any], code: int) -> None:
    """Then the next transaction works."""
    cluster = one_topic()
    cluster.scripted[request_class].append(code)

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await write(producer, b"a")
        with pytest.raises(TransactionFailed, match="must be aborted") as caught:
            await producer.send_offsets_to_transaction({T0: 1}, "g")
            await producer.commit_transaction()
        assert not caught.value.fatal
        with pytest.raises(TransactionFailed, match="must be aborted"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        producer.begin_transaction()
        await write(producer, b"b")
        await producer.commit_transaction()

    transact(cluster, scenario)
    assert [b"b"] == cluster.committed()
    assert {} == cluster.committed_offsets


def test_offsets_of_a_missing_topic_end_the_transaction_in_time() -> None:
    """Error 3 may pass while the topic comes into being; it is not waited for without end."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        with pytest.raises(TransactionFailed, match=r"must be aborted.*no outcome within 2 s.*absent/0.*error 3"):
            await producer.send_offsets_to_transaction({TopicPartition.modern("absent", 0): 1}, "g", timeout_s=2)
        await producer.abort_transaction()

    transact(cluster, scenario)
    assert {} == cluster.committed_offsets


def test_a_record_that_is_refused_spoils_its_transaction() -> None:
    """Committing the others would lose it."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await write(producer, b"a")
        cluster.answers[T0].append(NOT_AUTHORIZED)
        with pytest.raises(TransactionFailed, match="must be aborted"):
            await producer.commit_transaction()
        with pytest.raises(TransactionFailed):
            await producer.enqueue("t", b"more")
        await producer.abort_transaction()
        producer.begin_transaction()
        await write(producer, b"b")
        await producer.commit_transaction()

    transact(cluster, scenario)
    assert [b"b"] == cluster.committed()
    assert [0, 0] == [batch_owner(request)[2] for request, _ in cluster.requests()], "its number is used again"


def test_an_abort_gives_up_what_was_not_sent() -> None:
    """It does not wait for a leader that does not come; what it gave up says so."""
    cluster = one_topic()
    cluster.leaders["t"] = [None, 1]

    async def scenario(producer: Producer) -> tuple[Delivery, float]:
        producer.begin_transaction()
        await producer.send("t", b"sent", partition=1)
        (delivery,) = await write(producer, b"stuck")
        started = asyncio.get_running_loop().time()
        await producer.abort_transaction()
        return delivery, asyncio.get_running_loop().time() - started

    delivery, took = transact(cluster, scenario)
    with pytest.raises(TransactionFailed, match="t/0: not written: the transaction was aborted") as caught:
        delivery.result()
    assert not caught.value.in_doubt
    assert took < 1


def test_a_lost_answer_of_produce_writes_no_batch_twice() -> None:
    """The same numbers go out again, and the broker answers with the offset that the batch has."""
    cluster = one_topic()
    cluster.answers[T0].extend([Reaction.CLOSE, Reaction.SILENT])
    first, second = idempotent(cluster, lambda producer: write(producer, b"a", b"b"))
    assert (0, 1) == (first.result().offset, second.result().offset)
    assert [b"a", b"b"] == cluster.values("t")
    assert [0, 0, 0] == [batch_owner(request)[2] for request, _ in cluster.requests()]


def test_numbers_follow_each_other_in_each_partition() -> None:
    """Whatever comes between: another partition, a leader that moved, a batch that was too large."""
    cluster = one_topic(brokers=2)
    cluster.answers[T0].extend([0, NOT_LEADER, NOT_ENOUGH_REPLICAS, TOO_LARGE])

    async def scenario(producer: Producer) -> None:
        for number in range(3):
            await write(producer, b"%d" % number, b"+%d" % number)
            await producer.send("t", b"other", partition=1)
            await producer.flush()

    idempotent(cluster, scenario)
    assert [b"0", b"+0", b"1", b"+1", b"2", b"+2"] == cluster.values("t")
    assert [b"other"] * 3 == cluster.values("t", 1)


def test_a_batch_that_is_there_already_is_written() -> None:
    """Error 46 says so; its offset is not known then."""
    cluster = one_topic()
    cluster.answers[T0].append(DUPLICATE)
    (delivery,) = idempotent(cluster, lambda producer: write(producer, b"a"))
    assert delivery.result().offset is None


# -- sequences that are not resolved


def test_an_idempotent_producer_goes_on_in_a_new_epoch() -> None:
    """After a batch with an unknown outcome, which is told, and none later is refused for it."""
    cluster = one_topic()
    cluster.answers[T0].extend([Reaction.SILENT] * 5)

    async def scenario(producer: Producer) -> list[Delivery]:
        lost = await write(producer, b"lost")
        await producer.flush()
        return lost + await write(producer, b"next")

    lost, following = idempotent(cluster, scenario)
    with pytest.raises(DeliveryTimedOut) as caught:
        lost.result()
    assert caught.value.in_doubt
    assert 1 == following.result().offset
    assert [b"lost", b"next"] == cluster.values("t")
    assert (1, 0) == batch_owner(cluster.requests()[-1][0])[1:]


@pytest.mark.parametrize("code", [OUT_OF_ORDER, UNKNOWN_PRODUCER, FENCED])
def test_a_broker_that_lost_its_state_gets_new_numbers(code: int) -> None:
    """The batch was surely not written, so it is sent again, once."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> Delivery:
        await producer.send("t", b"a", partition=0)
        cluster.answers[T0].append(code) if code != UNKNOWN_PRODUCER else cluster.forget(T0)
        (delivery,) = await write(producer, b"b")
        await delivery
        return delivery

    assert 1 == idempotent(cluster, scenario).result().offset
    assert [b"a", b"b"] == cluster.values("t")
    assert (1, 0) == batch_owner(cluster.requests()[-1][0])[1:]


def test_a_batch_in_doubt_is_not_sent_with_new_numbers() -> None:
    """Its first copy may be there: the caller is told, instead of a second copy."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> Delivery:
        await producer.send("t", b"a", partition=0)
        cluster.answers[T0].extend([Reaction.CLOSE, OUT_OF_ORDER])
        (delivery,) = await write(producer, b"b")
        await producer.flush()
        return delivery

    with pytest.raises(WriteRefused) as caught:
        idempotent(cluster, scenario).result()
    assert caught.value.in_doubt
    assert [b"a", b"b"] == cluster.values("t")


def test_a_transaction_goes_on_where_retention_has_removed_the_producer() -> None:
    """A quiet partition: all that the producer wrote is gone, so its numbers begin again, in the same epoch."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        for number in range(2):
            producer.begin_transaction()
            await write(producer, b"%d" % number)
            await producer.commit_transaction()
            cluster.forget(T0)
            cluster.log_start = number + 1

    transact(cluster, scenario)
    assert [b"0", b"1"] == cluster.committed()
    assert [0, 0] == [batch_owner(request)[1] for request, _ in cluster.requests()[-2:]]


def test_a_transaction_whose_records_were_lost_is_aborted() -> None:
    """The log still begins before them: it was not retention."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await producer.send("t", b"a", partition=0)
        cluster.forget(T0)
        with pytest.raises(WriteRefused) as caught:
            await producer.send("t", b"b", partition=0)
        assert isinstance(caught.value.__cause__, UnknownProducer)
        with pytest.raises(TransactionFailed, match="must be aborted"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        producer.begin_transaction()
        await write(producer, b"c")
        await producer.commit_transaction()

    transact(cluster, scenario)
    assert [b"c"] == cluster.committed()


def in_doubt_then(cluster: TransactionalCluster, after: Callable[[Producer], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``after`` when a transaction has a batch with an unknown outcome, and cannot be committed."""

    async def scenario(producer: Producer) -> Any:
        producer.begin_transaction()
        cluster.answers[T0].extend([Reaction.SILENT] * 5)
        await write(producer, b"lost")
        with pytest.raises(TransactionFailed, match="must be aborted"):
            await producer.commit_transaction()
        cluster.answers.clear()
        return await after(producer)

    return transact(cluster, scenario)


def test_after_an_unknown_outcome_an_abort_takes_a_new_epoch() -> None:
    """Whatever the broker expects next, numbers begin again at 0 there (KIP-360, from 2.5 on)."""
    cluster = one_topic()

    async def after(producer: Producer) -> None:
        await producer.abort_transaction()
        producer.begin_transaction()
        await write(producer, b"next")
        await producer.commit_transaction()

    in_doubt_then(cluster, after)
    assert [b"next"] == cluster.committed()
    assert (1, 0) == batch_owner(cluster.requests()[-1][0])[1:]
    present = [(request.producer_id, request.producer_epoch) for request, _ in cluster.requests(InitProducerIdRequest)]
    assert [(-1, -1), (1001, 0)] == present


def test_a_new_epoch_fences_no_successor() -> None:
    """A producer that was fenced meanwhile must not take the id back."""
    cluster = one_topic()

    async def after(producer: Producer) -> None:
        cluster.has_successor_after_end = True  # right between the abort and the request for the new epoch
        with pytest.raises(ProducerFenced):
            await producer.abort_transaction()
        assert 1 == cluster.producers["x"].epoch

    in_doubt_then(cluster, after)


def test_older_brokers_have_no_new_epoch_for_a_running_producer() -> None:
    """Asking without one's own epoch would fence a successor: the producer ends, and says what to do."""
    cluster = one_topic(identify_version=1)

    async def after(producer: Producer) -> None:
        with pytest.raises(TransactionFailed, match="open another with the same transactional id") as caught:
            await producer.abort_transaction()
        assert caught.value.fatal

    in_doubt_then(cluster, after)
    assert 1 == len(cluster.requests(InitProducerIdRequest))
    assert [] == cluster.committed()


# -- the outcome is unknown


def test_a_commit_without_an_answer_is_repeated_by_the_caller() -> None:
    """It may have happened, so it can neither be aborted nor called a failure."""
    cluster = one_topic()
    cluster.scripted[EndTxnRequest].extend([Reaction.CLOSE] + [NOT_COORDINATOR] * 100)

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await write(producer, b"a")
        with pytest.raises(DeliveryTimedOut, match="the outcome is unknown: call commit_transaction again") as caught:
            await producer.commit_transaction(timeout_s=3)
        assert caught.value.in_doubt
        with pytest.raises(LocalProtocolError, match="the commit is under way"):
            await producer.abort_transaction()
        with pytest.raises(LocalProtocolError, match="expected ready"):
            producer.begin_transaction()
        cluster.scripted.clear()
        await producer.commit_transaction()

    transact(cluster, scenario)
    assert [b"a"] == cluster.committed()


def test_a_cancelled_commit_can_be_called_again_or_aborted_while_records_are_on_their_way() -> None:
    """Nothing was said to the coordinator yet."""
    cluster = one_topic()
    cluster.answer_delay_s = 0.5

    async def scenario(producer: Producer) -> None:
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            await write(producer, end.__name__.encode())
            with pytest.raises(TimeoutError):
                async with timeout(0.2):
                    await producer.commit_transaction()
            await end()

    transact(cluster, scenario)
    assert [b"commit_transaction"] == cluster.committed()


def test_an_abort_of_what_the_coordinator_never_heard_of_succeeds() -> None:
    """The only request about it got lost: EndTxn is refused, and there is nothing to end."""
    cluster = one_topic()
    cluster.scripted[AddPartitionsToTxnRequest].extend([NOT_COORDINATOR] * 100)

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await write(producer, b"a")
        await asyncio.sleep(1)
        await producer.abort_transaction()
        cluster.scripted.clear()
        producer.begin_transaction()
        await write(producer, b"b")
        await producer.commit_transaction()

    transact(cluster, scenario)
    assert [b"b"] == cluster.committed()


def test_the_first_call_may_go_unanswered() -> None:
    """It says what it waited for, and may be called again."""
    cluster = one_topic()
    cluster.scripted[FindCoordinatorRequest].extend([NO_COORDINATOR] * 20)

    async def scenario(producer: Producer) -> None:
        with pytest.raises(RequestTimedOut, match=r"init_transactions: no outcome within 2 s; last: .*error 15"):
            await producer.init_transactions(timeout_s=2)
        cluster.scripted.clear()
        await producer.init_transactions()

    produce_to(cluster, scenario, settings=ProducerSettings(transactional_id="x", **QUICK))


def test_records_wait_for_a_producer_id_and_say_so_when_it_does_not_come() -> None:
    """Without one they would be written without a check."""
    cluster = one_topic()
    cluster.scripted[InitProducerIdRequest].extend([LOADING] * 100)

    async def scenario(producer: Producer) -> Delivery:
        (delivery,) = await write(producer, b"a")
        await producer.flush()
        return delivery

    with pytest.raises(DeliveryTimedOut, match=r"not sent: a request for the producer id .*error 14") as caught:
        idempotent(cluster, scenario).result()
    assert not caught.value.in_doubt


# -- the end, and wrong calls


def test_closing_aborts_what_is_open() -> None:
    """Readers of committed records would wait for its end."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        await producer.send("t", b"a", partition=0)

    transact(cluster, scenario)
    assert [False] == [request.committed for request, _ in cluster.requests(EndTxnRequest)]


def test_records_outside_of_a_transaction_are_refused() -> None:
    """They would belong to none; the memory that was reserved for them is free again."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> int:
        with pytest.raises(LocalProtocolError, match=r"writing a record.*is ready, expected open"):
            await producer.enqueue("t", b"a")
        return producer.counts().open_bytes

    assert 0 == transact(cluster, scenario)


def test_calls_out_of_order_are_refused() -> None:
    """With the order in the message."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        with pytest.raises(LocalProtocolError, match="is new, expected ready; the order is init_transactions"):
            producer.begin_transaction()
        await producer.init_transactions()
        await producer.init_transactions()
        for call in (producer.commit_transaction(), producer.abort_transaction()):
            with pytest.raises(LocalProtocolError, match="is ready, expected open"):
                await call
        with pytest.raises(LocalProtocolError, match="expected open"):
            await producer.send_offsets_to_transaction({T0: 1}, "g")
        producer.begin_transaction()
        with pytest.raises(LocalProtocolError, match="is open, expected ready"):
            producer.begin_transaction()

    produce_to(cluster, scenario, settings=ProducerSettings(transactional_id="x", **QUICK))


def test_a_producer_without_an_id_has_no_transactions() -> None:
    """Idempotent or not."""

    async def scenario(producer: Producer) -> None:
        with pytest.raises(LocalProtocolError, match="transactional"):
            producer.begin_transaction()

    produce_to(one_topic(), scenario)
    idempotent(one_topic(), scenario)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"enable_idempotence": True, "acks": 1}, "acks: enable_idempotence"),
        ({"transactional_id": "x", "acks": 0}, "acks: enable_idempotence"),
        ({"transactional_id": ""}, "transactional_id: expected a name"),
        ({"transactional_id": "x", "transaction_timeout_ms": 0}, "transaction_timeout_ms: expected more than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], told: str) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match=told):
        ProducerSettings(**settings)


def test_a_handler_of_ones_own_writes_no_numbers() -> None:
    """So it is refused together with them."""

    async def scenario(_producer: Producer) -> None:
        raise AssertionError

    class Handler:
        async def handle(self, *_: object) -> None: ...

        async def drain(self) -> None: ...

    with pytest.raises(ConfigError, match="handler: enable_idempotence"):
        produce_to(one_topic(), scenario, settings=ProducerSettings(enable_idempotence=True), handler=Handler())


def test_a_lost_connection_is_not_the_end() -> None:
    """All connections end in the middle of a transaction."""
    cluster = one_topic()

    async def scenario(producer: Producer) -> None:
        producer.begin_transaction()
        for number in range(3):
            await write(producer, b"%d" % number)
            await asyncio.sleep(0.01)
            for stream in list(cluster.network.streams):
                stream.end(ConnectionLost("cut"))
        await producer.commit_transaction()

    transact(cluster, scenario)
    assert [b"0", b"1", b"2"] == cluster.committed()
