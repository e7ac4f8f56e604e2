# SPDX-License-Identifier: Apache-2.0
"""Producer for brokers of Kafka 0.6 and 0.7: its parts, and how to run it.

It is :class:`~consumerd.client.producer.Producer` with other parts: topics from ZooKeeper (``client.legacy_topics``),
PRODUCE and MULTIPRODUCE (``client.legacy_produce_handler``), rules for records and partitions
(``client.legacy_producer_rules``). Batches, memory, hooks, retries and closing are the same.

What a program can know
    Brokers do not respond to PRODUCE. A delivery says that its record was *sent*, never that it is stored, and has no
    offset. With ``acks`` 1 or -1, "sent" includes that the broker has worked on the request, and has not refused it.
    With ``acks`` 0 it means that the operating system has taken the bytes, as with Java's producer of 0.7. If the
    connection ends later, a part of what was sent may be lost, which is logged as ``sent_records_unconfirmed``.

    A failed delivery raises a ProduceError, whose ``in_doubt`` says what is known:

    - False: the record was certainly not written. It may be sent again without a duplicate.
    - True: the record may have been written. Its connection ended after the write, and no later attempt was confirmed.

What is sent again
    Until ``delivery_timeout_s`` is over: all that was certainly not written, and with ``UnknownOutcome.RESEND`` also
    what may have been written. Records may then be in the log twice, the second time after later records
    (``client.sender``). With ``UnknownOutcome.FAIL``, what may have been written fails at once with DeliveryUnknown.

    Example: broker 0 is killed while records 1 to 100 wait for their confirmation, and records 101 to 150 are buffered.
    It is back after 20 s. With RESEND all 150 records are sent to it, and 1 to 100 may be there twice. With FAIL,
    records 1 to 100 fail with ``in_doubt`` True, and 101 to 150 are sent. If the broker does not come back in time, 101
    to 150 fail with ``in_doubt`` False.

A broker that is away
    Its partitions are nowhere else. Records that were assigned to them wait for it. When its registration has ended in
    ZooKeeper, 6 s after a kill by default, new records go to the partitions of other brokers, those with a key too. A
    record for a named partition of it is then refused with TopicMissing. If no broker is registered, calls wait for
    one, at most ``max_block_s``.

Source: "Writing a Driver for Kafka", sections "Produce", "Multi-Produce" and "Producer".
"""

from __future__ import annotations

import random as random_numbers
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Final

from consumerd.aio.clock import monotonic
from consumerd.aio.tasks import alongside
from consumerd.client.legacy_produce_handler import LegacyProduceRequests
from consumerd.client.legacy_producer_rules import LegacyProducerRules, LegacyProducerSettings
from consumerd.client.legacy_topics import LegacyTopicSource
from consumerd.client.partitioner import LEGACY_PARTITIONER, Partitioner, make_legacy_partitioner
from consumerd.client.produce_handler import ProduceConnections
from consumerd.client.producer import DEFAULT_SETTINGS, Producer
from consumerd.client.producer_hooks import Encoder, ProducerHooks, encode_nothing
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topics import MetadataDirectory
from consumerd.errors import ConfigError
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.port import ZkClient

DEFAULT_LEGACY_SETTINGS: Final = LegacyProducerSettings()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def run_legacy_producer(
    zk: ZkClient,
    pool: ProduceConnections,
    *,
    settings: ProducerSettings = DEFAULT_SETTINGS,
    legacy: LegacyProducerSettings = DEFAULT_LEGACY_SETTINGS,
    partitioner: Partitioner | None = None,
    key_encoder: Encoder = encode_nothing,
    value_encoder: Encoder = encode_nothing,
    hooks: ProducerHooks | None = None,
    zk_hooks: Hooks | None = None,
    now: Callable[[], float] = monotonic,
    wall_ms: Callable[[], int] = _wall_ms,
    random: Callable[[], float] = random_numbers.random,
) -> AsyncIterator[Producer]:
    """Run a producer for brokers of Kafka 0.6 or 0.7 while the block runs.

    Raises ConfigError for a codec that these brokers do not know. Nothing is waited for: the first record of a topic
    waits until its brokers are read from ZooKeeper, at most ``max_block_s``.

    Args:
        zk: ZooKeeper session of the cluster; watches are set on it, and removed at the end.
        pool: Connections whose dialer is ``net.legacy_dialer.LegacyDialer``.
        settings: Settings that do not depend on the generation. Codecs are none, gzip and snappy.
        legacy: Format of messages, their largest size, and the policy for unknown outcomes.
        partitioner: Chooses an index among the partitions of all brokers (``client.legacy_producer_rules``). The
            default hashes keys like Java's producer of 0.7, and chooses at random without a key.
        key_encoder: Turns keys into bytes, for the partitioner only: messages have no key.
        value_encoder: Turns values into bytes.
        hooks: Called at each stage of a record.
        zk_hooks: Called for nodes in ZooKeeper that cannot be parsed.
        now: Monotonic clock, in seconds.
        wall_ms: Calendar clock, in ms since the epoch, for timestamps that deliveries return; they are not stored.
        random: Returns floats in [0, 1).
    """
    if settings.is_idempotent:
        raise ConfigError(
            "enable_idempotence, transactional_id: the brokers are of Kafka 0.6 or 0.7, which know no producer ids; "
            "both need brokers of 0.11 or later"
        )
    handler = LegacyProduceRequests(pool, settings, legacy)
    source = LegacyTopicSource(zk, lambda: directory.request_refresh("ZooKeeper changed"), hooks=zk_hooks)
    directory = MetadataDirectory(lambda _known: source, tuple, random=random, source_name="zookeeper")
    producer = Producer(
        pool,
        directory,
        now=now,
        wall_ms=wall_ms,
        random=random,
        settings=settings,
        partitioner=partitioner or make_legacy_partitioner(LEGACY_PARTITIONER, random, now),
        key_encoder=key_encoder,
        value_encoder=value_encoder,
        hooks=hooks,
        handler=handler,
        rules=LegacyProducerRules(settings, legacy),
    )
    with closing(source):
        async with alongside(directory.run(), name="keep what is known of topics"), producer:
            yield producer
