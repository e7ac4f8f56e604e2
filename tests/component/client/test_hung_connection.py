# SPDX-License-Identifier: Apache-2.0
"""Producers over real connections that hang: one that is not given up would fail every record after the first."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import DeliveryTimedOut
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from consumerd.wire.modern.produce import ProducedPartition, ProducedTopic, ProduceRequest, ProduceResponse
from tests.support.scripted_broker import Reaction, ScriptedBroker, ScriptedServer

RANGES = {ApiKey.PRODUCE: (0, 3), ApiKey.METADATA: (0, 1), ApiKey.LIST_OFFSETS: (0, 1)}


@asynccontextmanager
async def first_connection_hangs() -> AsyncIterator[tuple[ScriptedServer, ScriptedBroker]]:
    """Serve topic t; the connection that brings the first Produce request is never answered again, others are."""
    broker = ScriptedBroker(ranges=RANGES)

    def describe(_request: MetadataRequest, _version: int) -> MetadataResponse:
        partition = MetadataPartition(partition=0, leader=1, replicas=(1,), isr=(1,))
        return MetadataResponse(
            brokers=(MetadataBroker(node_id=1, host="127.0.0.1", port=server.port),),
            controller_id=1,
            topics=(MetadataTopic(topic="t", partitions=(partition,)),),
        )

    def take(_request: ProduceRequest, _version: int) -> object:
        count = len(broker.asked(ProduceRequest))
        if count == 1:
            return Reaction.SILENT
        return ProduceResponse(
            topics=(ProducedTopic(topic="t", partitions=(ProducedPartition(partition=0, base_offset=count),)),)
        )

    broker.handlers |= {MetadataRequest: describe, ProduceRequest: take}
    async with ScriptedServer(broker) as server:
        yield server, broker


@pytest.mark.parametrize(
    ("delivery_s", "request_s", "first_is_lost"),
    [(0.5, 30.0, True), (0.5, 0.5, True), (30.0, 0.5, False)],
    ids=["delivery below request", "both the same", "delivery above request"],
)
def test_a_hung_connection_costs_one_attempt(delivery_s: float, request_s: float, first_is_lost: bool) -> None:
    """Whatever the two time-outs: the attempt ends with its connection, and the next has another."""

    async def write() -> list[str]:
        outcomes = []
        settings = ProducerSettings(delivery_timeout_s=delivery_s, request_timeout_s=request_s, close_timeout_s=1)
        async with (
            first_connection_hangs() as (server, _),
            open_producer(f"127.0.0.1:{server.port}", settings=settings) as producer,
        ):
            for number in range(3):
                try:
                    await producer.send("t", b"%d" % number)
                    outcomes.append("written")
                except DeliveryTimedOut:
                    outcomes.append("lost")
        return outcomes

    assert ["lost" if first_is_lost else "written", "written", "written"] == asyncio.run(write())


def test_the_command_tries_again_after_silence() -> None:
    """Half of --timeout is for the first attempt, so that a second one fits into it."""

    async def write() -> tuple[int | None, bytes, int]:
        async with first_connection_hangs() as (server, broker):
            command = [sys.executable, "-m", "consumerd", "produce", "t", "--bootstrap", f"127.0.0.1:{server.port}"]
            process = await asyncio.create_subprocess_exec(
                *command, "--timeout", "4", stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            _, error = await process.communicate(b"hello\n")
            return process.returncode, error, len(broker.asked(ProduceRequest))

    code, error, requests = asyncio.run(write())
    assert (0, 2) == (code, requests)
    assert b"1 record acknowledged" in error
