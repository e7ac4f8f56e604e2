# SPDX-License-Identifier: Apache-2.0
"""What to do about error codes of brokers."""

import pytest

from consumerd.client.remedies import advise_lookup, advise_write, explain_no_leader, is_denied
from consumerd.cluster.view import ClusterView, PartitionView, TopicView
from consumerd.errors import BrokerError, ConnectionLost, ConsumerdError, CoordinationError
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode, broker_error


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "allow `Write` on `Topic:orders` for our principal"),
        (ErrorCode.NOT_ENOUGH_REPLICAS, "min.insync.replicas of orders asks for, so nothing was appended"),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "min.insync.replicas of orders asks for: the leader has appended"),
        (ErrorCode.REQUEST_TIMED_OUT, "replicas of orders have not followed in time: the leader has appended"),
    ],
)
def test_a_failed_write_says_what_has_happened_and_what_to_do(code: ErrorCode, advice: str) -> None:
    """Codes 7 and 20 leave records in the log, and each try adds them once more; code 19 does not."""
    found = advise_write(broker_error(code, "Produce"), "orders")

    assert found is not None
    assert advice in found


def test_failures_that_say_nothing_about_a_remedy_get_no_advice() -> None:
    """A lost connection has a text of its own."""
    for failure in (None, ConnectionLost("refused"), broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, "Produce")):
        assert None is advise_write(failure, "orders")


def test_a_refused_lookup_names_the_right() -> None:
    """ListOffsets takes Describe."""
    refused = broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "ListOffsets at broker 1")
    lost = ConnectionLost("refused")

    assert str(advise_lookup(refused, "orders")).endswith(": allow `Describe` on `Topic:orders` for our principal")
    assert lost is advise_lookup(lost, "orders")


def test_an_unknown_topic_may_be_a_hidden_one() -> None:
    """Brokers of 0.10 answer code 3 for a topic that we may not describe."""
    unknown = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "ListOffsets at broker 1")

    found = advise_lookup(unknown, "orders")

    assert isinstance(found, BrokerError)
    assert found.retriable  # the advice changes nothing else
    assert "deleted" in str(found)
    assert "allow `Describe` on `Topic:orders`" in str(found)


def test_a_partition_without_a_leader_is_explained_by_what_metadata_said() -> None:
    """Without Describe, Metadata names the topic with code 29 and no partition, or not at all."""
    orders = TopicPartition.modern("orders", 0)
    denied = ClusterView(topics={"orders": TopicView(name="orders", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)})
    led = {orders.partition: PartitionView(leader=None)}

    assert "(29) to Metadata: allow `Describe`" in explain_no_leader(orders, denied)
    assert "hides it from us: allow `Describe`" in explain_no_leader(orders, ClusterView())
    known = ClusterView(topics={"orders": TopicView(name="orders", partitions=led)})
    assert explain_no_leader(orders, known).startswith("the partition has no leader")


@pytest.mark.parametrize(
    ("failure", "denied"),
    [
        (broker_error(29, "Fetch"), True),
        (broker_error(30, "OffsetFetch"), True),
        (broker_error(31, "ListGroups"), True),
        (broker_error(3, "Fetch"), False),
        (ConnectionLost("refused"), False),
    ],
)
def test_denials_are_told_from_other_errors(failure: ConsumerdError, denied: bool) -> None:
    """Also as the cause of an error of the positions' store."""
    around = CoordinationError("positions cannot be read")
    around.__cause__ = failure

    assert denied == is_denied(failure) == is_denied(around)
