# SPDX-License-Identifier: Apache-2.0
"""What a writer may be asked for."""

from __future__ import annotations

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import ConfigError
from consumerd.spark.datasource.write_options import WriteOptions, in_options, parse_write_options
from consumerd.wire.compression import Codec

WHERE = {"kafka.bootstrap.servers": "localhost:9092"}


def test_addresses_and_a_topic_are_enough() -> None:
    """All replicas acknowledge by default: a job that succeeds has written its rows."""
    found = parse_write_options({**WHERE, "topic": "orders"})

    assert (
        WriteOptions(cluster=ClusterAddress(client_id="consumerd-spark", bootstrap="localhost:9092"), topic="orders")
        == found
    )
    assert found.settings.acks == -1


def test_a_record_of_identities_stays_with_the_driver() -> None:
    """Executors open the cluster to write, and do not have the file."""
    found = parse_write_options({**WHERE, "identities": "/none.json"})

    assert found == parse_write_options(WHERE)


def test_settings_of_javas_producer_count_in_their_units() -> None:
    """A job moves over with the options that it has, whatever their case."""
    found = parse_write_options(
        {
            **WHERE,
            "Kafka.Acks": "1",
            "kafka.compression.type": "lz4",
            "kafka.linger.ms": "50",
            "kafka.batch.size": "131072",
            "kafka.max.request.size": "20000000",
            "kafka.delivery.timeout.ms": "90000",
            "kafka.retries": "3",
            "checkpointLocation": "/somewhere",
            "partitioner": "java-hash",
            "keepTimestamps": "true",
        }
    )

    assert (
        ProducerSettings(
            acks=1,
            codec=Codec.LZ4,
            linger_s=0.05,
            batch_bytes=131072,
            max_request_bytes=20_000_000,
            buffer_bytes=40_000_000,
            delivery_timeout_s=90.0,
        )
        == found.settings
    )
    assert ("java-hash", True) == (found.partitioner, found.keep_timestamps)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("kafka.acks", "2", "kafka.acks: expected all or"),
        ("kafka.compression.type", "brotli", "kafka.compression.type: expected none or gzip"),
        ("kafka.linger.ms", "-1", "kafka.linger.ms: expected a whole number"),
        (
            "kafka.linger.ms",
            "120000",
            "kafka.linger.ms: 120000 leaves no time to send; expected less than kafka.delivery.timeout.ms, 120000",
        ),
        ("kafka.buffer.memory", "1000", "kafka.buffer.memory: 1000 cannot hold one record of kafka.max.request.size"),
        ("partitioner", "mine", "partitioner: expected murmur2 or"),
        ("kafka.key.serializer", "x", "kafka.key.serializer"),
        ("topics", "x", "topics: there is no such option; did you mean topic?"),
    ],
)
def test_what_cannot_be_is_refused_by_the_options_name(option: str, value: str, said: str) -> None:
    """Nobody who writes a job knows the names of our settings."""
    with pytest.raises(ConfigError) as refused:
        parse_write_options({**WHERE, option: value})

    assert said in str(refused.value)


def test_messages_of_the_producer_speak_of_options() -> None:
    """Its advice must be one that can be followed."""
    assert in_options("raise max_request_bytes, or delivery_timeout_s") == (
        "raise kafka.max.request.size, or kafka.delivery.timeout.ms"
    )
