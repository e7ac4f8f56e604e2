# SPDX-License-Identifier: Apache-2.0
"""A broker that answers Metadata with well-formed lies, chosen by a seed, and nothing else: for whole clients.

It listens on loopback in a thread of its own. What it says is in the right form for the version that was asked for, so
that decoders have nothing to refuse: leaders that do not exist, partitions that no topic has, one broker at two hosts.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Final, Self

from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from tests.support.scripted_broker import ScriptedBroker, ScriptedServer, listing

INT32: Final = (0, 1, 2, 7, 8, -1, -2, 2**31 - 1, -(2**31))
CODES: Final = (0, 0, 0, 3, 5, 9, 29, 72, 999, -1, 32767, -32768)
HOSTS: Final = (
    "",
    " ",
    ".",
    "..",
    "127.0.0.1",
    "::1",
    "256.256.256.256",
    "a" * 64,
    "a." * 2_000,
    "x\ny",
    "\x00",
    "a\x00b",
    "\u2028",
    "\u0661",
    "é" * 40,
    "<b>&amp;",
)
PORTS: Final = (1, 9, -1, 0, 65_535, 65_536, 2**31 - 1, -(2**31))
MANY: Final = 100_000
"""Replicas of one partition, or partitions of one topic."""


def draw_brokers(chance: random.Random, version: int, ids: Collection[int]) -> list[MetadataBroker]:
    """Return brokers, some of them more than once with other addresses."""
    known = [*ids, *chance.sample(INT32, 4)]
    return [
        MetadataBroker(
            node_id=chance.choice(known),
            host=chance.choice(HOSTS),
            port=chance.choice(PORTS),
            rack=chance.choice((None, "", "\x00", "r" * 5_000)) if version >= 1 else None,
        )
        for _ in range(chance.randrange(12))
    ]


def draw_partitions(chance: random.Random, version: int, most: int) -> list[MetadataPartition]:
    """Return partitions with false numbers, leaders and codes, some twice; now and then very many."""
    shape = chance.randrange(12)
    if shape == 0:
        return [MetadataPartition(partition=number, leader=7, replicas=(), isr=()) for number in range(most)]
    many = tuple(range(most)) if shape == 1 else ()
    return [
        MetadataPartition(
            error_code=chance.choice(CODES),
            partition=chance.choice((*INT32, 0, 0, 1)),
            leader=chance.choice(INT32),
            replicas=many or tuple(chance.choices(INT32, k=chance.randrange(4))),
            isr=many or tuple(chance.choices(INT32, k=chance.randrange(4))),
            offline_replicas=tuple(chance.choices(INT32, k=chance.randrange(3))) if version >= 5 else (),
        )
        for _ in range(chance.randrange(5))
    ]


def draw_metadata(
    chance: random.Random, version: int, topics: Sequence[str], ids: Collection[int], most: int = MANY
) -> MetadataResponse:
    """Return an answer about ``topics`` and others, in any order, some twice; now and then with ``most`` partitions."""
    names = [*topics, "", "\x00", "../x", "t" * 5_000, "\u2028"]
    return MetadataResponse(
        throttle_time_ms=chance.choice((0, -1, 1)) if version >= 3 else 0,
        brokers=tuple(draw_brokers(chance, version, ids)),
        cluster_id=chance.choice((None, "", "\x00", "c" * 5_000)) if version >= 2 else None,
        controller_id=chance.choice(INT32) if version >= 1 else -1,
        topics=tuple(
            MetadataTopic(
                error_code=chance.choice(CODES),
                topic=chance.choice(names),
                is_internal=version >= 1 and chance.random() < 0.5,
                partitions=tuple(draw_partitions(chance, version, most)),
            )
            for _ in range(chance.randrange(6))
        ),
    )


class LyingBroker:
    """``with`` starts and stops it; ``answered`` counts the lies that were asked for.

    Args:
        seed: Chooses the lies.
        topics: Names of topics to lie about, besides names that no topic has.
        ids: Brokers to give false addresses, besides ids that no broker has.
    """

    def __init__(self, seed: int, topics: Sequence[str], ids: Collection[int]) -> None:
        self._chance = random.Random(seed)
        self._topics = topics
        self._ids = ids
        self.answered = 0
        self.port = 0
        self._listening = threading.Event()
        self._ended: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="lying broker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._ended is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        ranges = {MetadataRequest.api: (0, 5), ApiVersionsRequest.api: (0, 0)}
        broker = ScriptedBroker(
            {
                MetadataRequest: self._answer,
                ApiVersionsRequest: lambda _request, _version: listing(ranges),
            }
        )
        async with ScriptedServer(broker) as server:
            self.port = server.port
            self._listening.set()
            await self._ended.wait()

    def _answer(self, request: MetadataRequest, version: int) -> MetadataResponse:
        self.answered += 1
        return draw_metadata(self._chance, version, (*self._topics, *sorted(request.topics or ())), self._ids)
