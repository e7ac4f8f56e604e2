"""The producer against the embedded broker; librdkafka reads what was written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.wire.compression import Codec
from tests.support.embedded import EmbeddedProcess

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
ROWS = [(None if number % 4 == 0 else b"key-%d" % number, b"x" * number * 50) for number in range(60)] + [(b"k", None)]


@pytest.mark.parametrize("release", ["0.10", "1.1"])
def test_every_codec_and_acknowledgement_is_written(release: str, tmp_path: Path) -> None:
    """Into a topic that the first record makes; in the formats of two releases."""

    async def write(bootstrap: str) -> list[tuple[bytes | None, bytes | None]]:
        written: list[tuple[bytes | None, bytes | None]] = []
        for codec in CODECS:
            for acks in (0, 1, -1):
                settings = ProducerSettings(codec=codec, acks=acks, batch_bytes=20_000)
                async with open_producer(bootstrap, settings=settings) as producer:
                    deliveries = [await producer.enqueue("made", value, key=key, partition=0) for key, value in ROWS]
                    offsets = [(await delivery).offset for delivery in deliveries]
                if acks:
                    assert list(range(len(written), len(written) + len(ROWS))) == offsets
                written += ROWS
        return written

    with EmbeddedProcess(tmp_path, "--as-release", release) as broker:
        written = asyncio.run(write(broker.bootstrap))
        assert written == broker.read("made")
