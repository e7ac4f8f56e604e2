# SPDX-License-Identifier: Apache-2.0
"""Reading of a range: a log that ends below it is told soon, with or without a high watermark in fetch responses."""

import asyncio
from types import SimpleNamespace

import pytest

from consumerd.errors import OffsetOutOfRange, RequestTimedOut
from consumerd.fetch.patient_feed import PatientFeed
from consumerd.model import LogRange, TopicPartition
from tests.support.virtual_time import run

P = TopicPartition.modern("t", 0)


class Ranges:
    """Log ranges, whose answer a test sets."""

    def __init__(self, latest, *, replicated):
        self.latest = latest
        self.logs_are_replicated = replicated

    async def read(self, partitions):
        await asyncio.sleep(0)
        return {one: LogRange(0, self.latest) for one in partitions}


async def read_for(latest, high_watermark, *, replicated):
    """Read from 80 on, where nothing comes; return the error and the seconds after which it was raised."""
    feed = SimpleNamespace(partition=P, high_watermark=high_watermark, next=asyncio.Event().wait)
    patient = PatientFeed(feed, Ranges(latest, replicated=replicated), patience_s=60, explain=lambda: "silence")
    began = asyncio.get_running_loop().time()
    with pytest.raises((OffsetOutOfRange, RequestTimedOut)) as raised:
        await patient.next(80)
    return type(raised.value), asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("latest", [60, 80])
def test_a_lost_end_of_kafka_0_7_is_told_after_seconds(latest):
    """Its fetch responses have no high watermark, so the whole patience was waited for."""

    async def scenario():
        error, waited_s = await read_for(latest, None, replicated=False)
        assert error is OffsetOutOfRange
        assert 10 <= waited_s <= 13

    run(scenario())


@pytest.mark.parametrize(
    ("latest", "high_watermark", "replicated"),
    [(81, None, False), (60, None, True), (60, 81, True), (81, 80, True)],
    ids=["not at the end", "no answer yet", "the watermark is higher", "the leader knows more"],
)
def test_a_silent_broker_is_waited_for(latest, high_watermark, replicated):
    """With replicas both sources must agree, since each may lag."""

    async def scenario():
        error, waited_s = await read_for(latest, high_watermark, replicated=replicated)
        assert error is RequestTimedOut
        assert 60 <= waited_s <= 61

    run(scenario())


def test_a_lost_end_is_told_where_both_sources_agree():
    """As after an unclean leader election."""

    async def scenario():
        error, _ = await read_for(80, 80, replicated=True)
        assert error is OffsetOutOfRange

    run(scenario())
