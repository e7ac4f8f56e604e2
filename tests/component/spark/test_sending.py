# SPDX-License-Identifier: Apache-2.0
"""A task of the Spark sink, without Spark: what the broker refuses fails the task."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from consumerd.errors import ProduceError
from consumerd.spark.datasource import lookup
from consumerd.spark.datasource.outgoing import OutgoingColumns
from consumerd.spark.datasource.sending import send_batches
from consumerd.spark.datasource.write_options import parse_write_options
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from tests.support.embedded import EmbeddedThread
from tests.support.zookeeper import run_server

COLUMNS = OutgoingColumns(value=0, fixed_topic="t")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    with (
        run_server() as zookeeper,
        EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{zookeeper.connect_string}/sending") as running,
    ):
        running.create_topic("t", 1)
        yield running


def _send(broker: EmbeddedThread, *values: bytes, **given: str) -> None:
    options = parse_write_options({"kafka.bootstrap.servers": broker.bootstrap, "topic": "t", **given})
    batches = [pa.record_batch({"value": pa.array([value], pa.binary())}) for value in values]
    send_batches(iter(batches), COLUMNS, options)


def test_a_task_whose_last_batch_is_refused_fails(broker: EmbeddedThread) -> None:
    """Rows that are still buffered when the input ends have no later call to fail in: only the flush hears of them."""
    written = broker.count("t", 1)
    refused = broker.arm(lambda faults: faults.error(ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=1))

    with pytest.raises(ProduceError, match="TOPIC_AUTHORIZATION_FAILED"):
        _send(broker, b"one")
    assert 1 == refused.hits
    assert written == broker.count("t", 1)


def test_a_task_is_done_when_its_last_batch_is_acknowledged(broker: EmbeddedThread) -> None:
    """What it reports is what stands in the log."""
    written = broker.count("t", 1)

    _send(broker, b"one", b"two")
    assert written + 2 == broker.count("t", 1)


def test_a_task_that_fails_sends_nothing_more(broker: EmbeddedThread) -> None:
    """Spark tries it again with the same rows, which would stand in the log once more."""
    written = broker.count("t", 1)
    options = parse_write_options(
        {"kafka.bootstrap.servers": broker.bootstrap, "topic": "t", "kafka.linger.ms": "60000"}
    )

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"buffered"], pa.binary())})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send_batches(batches(), COLUMNS, options)
    assert written == broker.count("t", 1)


NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1,127.0.0.1:2"}


def test_brokers_that_were_replaced_since_the_query_began_are_looked_up_again(broker: EmbeddedThread) -> None:
    """A stream runs for months, and its tasks get the addresses that the driver has found at its beginning."""
    written = broker.count("t", 1)

    _send(broker, b"one", **NOBODY, zookeeper=broker.zookeeper)
    assert written + 1 == broker.count("t", 1)


def test_brokers_that_cannot_be_looked_up_again_are_told(
    broker: EmbeddedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors need not reach ZooKeeper; the one who reads this knows what helps."""
    monkeypatch.setattr(lookup, "_SESSION_S", 0.5)
    with pytest.raises(ProduceError, match=r"none of 127\.0\.0\.1:1,127\.0\.0\.1:2 answers.*start the query again"):
        _send(broker, b"one", **NOBODY, zookeeper="127.0.0.1:1")
