# SPDX-License-Identifier: Apache-2.0
"""What transactions promise, tried on any cluster: real brokers of Kafka, and the embedded one.

Each function writes into a topic of its own, and returns what a reader of committed records has to see, by partition.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import ProducerFenced, TransactionFailed
from consumerd.model import TopicPartition
from consumerd.wire.compression import Codec
from tests.support.documents import TOP
from tests.support.transactional_writer import MOMENTS, PARTITIONS, PER_TRANSACTION, POSITIONS, REQUESTS

Seen = Mapping[int, Sequence[bytes]]

_KILLS_PER_REQUEST: Final = 2
_PATIENCE_S: Final = 60.0


async def commit_and_abort(bootstrap: str, topic: str) -> Seen:
    """Write twelve transactions into three partitions, of which every third is aborted, with each codec."""
    seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4):
        settings = ProducerSettings(transactional_id=topic, codec=codec, batch_bytes=2_000)
        async with open_producer(bootstrap, settings=settings) as producer:
            await producer.init_transactions()
            for number in range(4):
                producer.begin_transaction()
                values = [b"%s-%d-%d" % (codec.name.encode(), number, one) for one in range(150)]
                for one, value in enumerate(values):
                    await producer.enqueue(topic, value, key=b"key", partition=one % 3, headers=(("h", b"1"),))
                if number == 1:
                    await producer.flush()
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    for one, value in enumerate(values):
                        seen[one % 3].append(value)
    return seen


async def fence(bootstrap: str, topic: str) -> Seen:
    """Let a successor begin while a producer is in the middle of a transaction."""
    settings = ProducerSettings(transactional_id=topic, retry_backoff_s=0.02)
    async with (
        open_producer(bootstrap, settings=settings) as first,
        open_producer(bootstrap, settings=settings) as second,
    ):
        await first.init_transactions()
        first.begin_transaction()
        await first.send(topic, b"committed", partition=0)
        await first.commit_transaction()
        first.begin_transaction()
        await first.send(topic, b"void", partition=0)
        await second.init_transactions()
        with pytest.raises(ProducerFenced):  # straight to the partition, which is in the transaction already
            await first.send(topic, b"late", partition=0)
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        second.begin_transaction()
        await second.send(topic, b"of the successor", partition=0)
        await second.commit_transaction()
    return {0: [b"committed", b"of the successor"]}


async def commit_offsets(bootstrap: str, topic: str, group: str) -> None:
    """Commit a group's offsets 5 with a transaction, and abort one with 9; those of a missing topic are refused."""
    settings = ProducerSettings(transactional_id=topic)
    async with open_producer(bootstrap, settings=settings) as producer:
        await producer.init_transactions()
        partition = TopicPartition.modern(topic, 0)
        producer.begin_transaction()
        await producer.send_offsets_to_transaction({partition: (5, "mine")}, group)
        await producer.commit_transaction()
        producer.begin_transaction()
        await producer.send_offsets_to_transaction({partition: 9}, group)
        await producer.abort_transaction()
        producer.begin_transaction()
        absent = TopicPartition.modern("absent", 0)
        with pytest.raises(TransactionFailed, match=r"error 3 \(UNKNOWN_TOPIC_OR_PARTITION\)") as caught:
            await producer.send_offsets_to_transaction({absent: 1}, group, timeout_s=1.5)
        assert not caught.value.fatal
        await producer.abort_transaction()
        producer.begin_transaction()
        with pytest.raises(TransactionFailed, match=r"error 12 \(OFFSET_METADATA_TOO_LARGE\)"):
            await producer.send_offsets_to_transaction({partition: (6, "x" * 4097)}, group)
        await producer.abort_transaction()


async def refuse_a_long_timeout(bootstrap: str, topic: str) -> None:
    """Ask for transactions that may take longer than the broker allows (error 50)."""
    settings = ProducerSettings(transactional_id=topic, transaction_timeout_ms=1 << 30)
    async with open_producer(bootstrap, settings=settings) as producer:
        with pytest.raises(TransactionFailed, match=r"error 50 \(INVALID_TRANSACTION_TIMEOUT\)") as caught:
            await producer.init_transactions()
        assert caught.value.fatal


def kill_at_each_step(bootstrap: str, topic: str) -> tuple[Seen, int]:
    """Kill a writer before, after and upon the answer of each of its requests; return the number of kills, too."""
    kills = 0
    until = 240
    for nth in range(1, _KILLS_PER_REQUEST + 1):
        for request in REQUESTS:
            for moment in MOMENTS:
                if request == "INIT_PRODUCER_ID" and nth > 1:
                    continue  # there may be no second one
                done = _run_writer(bootstrap, topic, until, request, moment, str(nth))
                assert -signal.SIGKILL == done.returncode, (request, moment, nth, done.stderr.decode()[-3000:])
                kills += 1
    done = _run_writer(bootstrap, topic, until)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    seen = {
        partition: [b"%d" % number for number in range(until) if number % PARTITIONS == partition]
        for partition in range(PARTITIONS)
    }
    steps = range(PER_TRANSACTION, until + PER_TRANSACTION, PER_TRANSACTION)
    return {**seen, POSITIONS: [b"%d" % position for position in steps]}, kills


def _run_writer(bootstrap: str, topic: str, until: int, *where: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tests.support.transactional_writer", bootstrap, topic, str(until), *where]
    return subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False, cwd=TOP)
