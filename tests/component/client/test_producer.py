# SPDX-License-Identifier: Apache-2.0
"""The producer against the embedded broker; librdkafka reads what was written."""

from __future__ import annotations

import asyncio
import itertools
import signal
from functools import partial
from pathlib import Path

import pytest

from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.wire.compression import Codec
from tests.support.embedded import EmbeddedProcess
from tests.support.waiting import wait_until

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
ROWS = [(None if number % 4 == 0 else b"key-%d" % number, b"x" * number * 50) for number in range(60)] + [(b"k", None)]


def _has(broker: EmbeddedProcess, count: int) -> bool:
    return broker.count("made") >= count


@pytest.mark.parametrize("release", ["0.10", "1.1"])
def test_every_codec_and_acknowledgement_is_written(release: str, tmp_path: Path) -> None:
    """Into a topic that the first record makes; in the formats of two releases."""

    async def write(bootstrap: str, codec: Codec, acks: int) -> list[int | None]:
        settings = ProducerSettings(codec=codec, acks=acks, batch_bytes=20_000)
        async with open_producer(bootstrap, settings=settings) as producer:
            deliveries = [await producer.enqueue("made", value, key=key, partition=0) for key, value in ROWS]
            return [(await delivery).offset for delivery in deliveries]

    with EmbeddedProcess(tmp_path, "--as-release", release) as broker:
        written: list[tuple[bytes | None, bytes | None]] = []
        for codec, acks in itertools.product(CODECS, (0, 1, -1)):
            offsets = asyncio.run(write(broker.bootstrap, codec, acks))
            begins = len(written)
            written += ROWS
            if acks:
                assert list(range(begins, len(written))) == offsets
            else:
                assert [None] * len(ROWS) == offsets
                assert len(written) == len(broker.read("made")), "not worked on when the producer was closed"
        assert written == broker.read("made")


def test_what_nobody_answers_for_is_sent_though_the_producer_is_gone(tmp_path: Path) -> None:
    """With acks 0 a record is written when the system has taken it: it comes to a broker that is busy for longer than we live."""

    async def write(broker: EmbeddedProcess) -> None:
        # nor does anybody hear that it has worked on what it was sent
        settings = ProducerSettings(acks=0, batch_bytes=20_000, close_timeout_s=1.0)
        async with open_producer(broker.bootstrap, settings=settings) as producer:
            await producer.send("made", b"first", partition=0)
            broker.process.send_signal(signal.SIGSTOP)
            for key, value in ROWS:
                await producer.enqueue("made", value, key=key, partition=0)

    with EmbeddedProcess(tmp_path) as broker:
        try:
            asyncio.run(write(broker))
        finally:
            broker.process.send_signal(signal.SIGCONT)
        wait_until(partial(_has, broker, 1 + len(ROWS)), "all is written")
        assert [(None, b"first"), *ROWS] == broker.read("made")
