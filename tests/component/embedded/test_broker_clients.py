# SPDX-License-Identifier: Apache-2.0
"""Foreign clients on brokers that pass for older releases, or store what is not their release's; topics come of themselves.

What they do on a broker of 1.1 is in ``test_foreign_clients``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.releases import get_imitation
from tests.support.foreign.aiokafka_client import Aiokafka
from tests.support.foreign.client import ForeignClient, Record, Row
from tests.support.foreign.kafka_python import KafkaPython
from tests.support.foreign.librdkafka import Librdkafka
from tests.support.foreign.script import CODECS, T0
from tests.support.served_logs import served_logs

CLIENTS: Final[Sequence[Callable[[str], ForeignClient]]] = (KafkaPython, Aiokafka, Librdkafka)
RECORDS: Final = [
    Record(key=b"k", value=b"value-%d-" % number + b"x" * number, timestamp_ms=T0 + 1000 * number)
    for number in range(40)
]


def write_and_read(
    writer: ForeignClient, reader: ForeignClient, topic: str, codec: str, records: Sequence[Record] = RECORDS
) -> list[Row]:
    """Write with the one, and return what the other reads."""
    try:
        writer.produce(topic, codec, records)
        return reader.read({topic: len(records)})[topic]
    finally:
        writer.close()
        reader.close()


def rows_of(records: Sequence[Record]) -> list[tuple[int, bytes | None, bytes | None, int | None]]:
    """Return offset, key, value and time of what was written."""
    return [(number, one.key, one.value, one.timestamp_ms) for number, one in enumerate(records)]


def seen(rows: Sequence[Row]) -> list[tuple[int, bytes | None, bytes | None, int | None]]:
    """Return offset, key, value and time of what was read."""
    return [(row.offset, row.key, row.value, row.timestamp_ms) for row in rows]


@pytest.mark.parametrize("writer", CLIENTS)
async def test_what_a_client_writes_every_client_reads_from_a_broker_of_0_10(
    writer: Callable[[str], ForeignClient], tmp_path: Path
) -> None:
    """Every codec in the format of 0.10, which is neither the oldest nor the newest; the codecs take turns with the readers."""
    async with served_logs(tmp_path, as_release="0.10") as broker:
        for codec, reader in zip(CODECS, itertools.cycle(CLIENTS), strict=False):
            clients = (writer(broker.bootstrap), reader(broker.bootstrap))
            rows = await asyncio.to_thread(write_and_read, *clients, f"t-{codec}", codec)

            assert rows_of(RECORDS) == seen(rows)


@pytest.mark.parametrize(("release", "api_version"), [("0.8.2", (0, 8, 2)), ("0.9", (0, 9))])
async def test_clients_that_are_told_an_old_release_speak_to_it(
    release: str, api_version: tuple[int, ...], tmp_path: Path
) -> None:
    """Brokers of that time list no versions; records have no times there."""
    untimed = [replace(one, timestamp_ms=None) for one in RECORDS]
    async with served_logs(tmp_path, as_release=release) as broker:
        for codec in ("none", "gzip", "snappy"):
            clients = (KafkaPython(broker.bootstrap, api_version), KafkaPython(broker.bootstrap, api_version))
            rows = await asyncio.to_thread(write_and_read, *clients, f"t-{codec}", codec, untimed)

            assert [one[:3] for one in rows_of(untimed)] == [one[:3] for one in seen(rows)]


@pytest.mark.parametrize("message_format", [0, 1])
async def test_new_clients_read_old_formats(message_format: int, tmp_path: Path) -> None:
    """A broker of 1.1 that keeps an old format for its old consumers converts down what new producers send."""
    settings = replace(LogSettings(), message_format=message_format)
    async with served_logs(tmp_path, settings=settings) as broker:
        clients = (Aiokafka(broker.bootstrap), Librdkafka(broker.bootstrap))
        rows = await asyncio.to_thread(write_and_read, *clients, "t", "gzip")

    kept = RECORDS if message_format else [replace(one, timestamp_ms=None) for one in RECORDS]
    assert rows_of(kept) == seen(rows)


def test_imitated_releases_store_what_theirs_did() -> None:
    """The tests above rest on it."""
    assert [0, 0, 1, 2] == [get_imitation(name).message_format for name in ("0.8.2", "0.9", "0.10", "1.1")]
