# SPDX-License-Identifier: Apache-2.0
"""The lag of a partition that has no feed: it is asked for, and never 0 for want of an answer."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.errors import ConnectionLost, RetriableSinkError
from consumerd.model import TopicPartition
from consumerd.offsets.store import CommitOutcome
from tests.support.delivery import DeliveryRig, FakeSink
from tests.support.virtual_time import run
from tests.support.waiting import until

P = TopicPartition.modern("t", 0)

pytestmark = pytest.mark.usefixtures("logged")


def test_the_lag_is_known_where_the_start_cannot_be_committed() -> None:
    """No permission on the offset node: nothing is delivered, and the log grows."""

    async def scenario() -> None:
        async with DeliveryRig(settings=DeliverySettings(recheck_ms=10_000)) as rig:
            log = rig.log(P, 100, 150)
            rig.store.outcomes[P] = [CommitOutcome.FAILED] * 1000
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.FAILING)
            before = rig.status(P).lag
            await asyncio.sleep(11)
            first = rig.status(P).lag
            log.append(25)
            await asyncio.sleep(11)

            assert (before, first, rig.status(P).lag) == (None, 50, 75)
            assert rig.status(P).oldest_ms is None

            rig.brokers.unreachable = ConnectionLost("refused")
            await asyncio.sleep(11)

            assert rig.status(P).lag is None

    run(scenario())


def test_the_lag_of_a_stopped_partition_grows() -> None:
    """It counts from what is safe: what the sink had taken besides went with its writer."""

    async def scenario() -> None:
        async with DeliveryRig() as rig:
            log = rig.log(P, 0, 30)
            rig.sink.poison = {10}
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            log.append(70)
            lags = []
            for _ in range(60):
                lags.append(rig.status(P).lag)
                await asyncio.sleep(1)

            # it is looked at again every ten seconds, with a feed, which knows the end too
            assert set(lags[15:]) <= {90, None}
            assert lags[15:].count(90) > 40

    run(scenario())


def test_the_lag_is_unknown_before_a_start_is_known() -> None:
    """A sink that cannot be opened: not even the position is known."""

    async def scenario() -> None:
        async with DeliveryRig(sink=FakeSink()) as rig:
            rig.log(P, 0, 30)
            rig.sink.open_faults = [RetriableSinkError("no such volume") for _ in range(1000)]
            await rig.claim(P)
            await asyncio.sleep(60)

            assert (rig.status(P).position, rig.status(P).lag) == (None, None)

    run(scenario())


def test_a_broker_that_does_not_answer_does_not_keep_an_old_lag() -> None:
    """An end that was asked for half an hour ago is no end."""

    async def scenario() -> None:
        async with DeliveryRig() as rig:
            rig.log(P, 100, 150)
            rig.store.outcomes[P] = [CommitOutcome.FAILED] * 1000
            await rig.claim(P)
            await asyncio.sleep(11)
            known = rig.status(P).lag
            rig.brokers.hang = True
            await asyncio.sleep(25)

            assert (known, rig.status(P).lag) == (50, None)

    run(scenario())


def test_the_log_end_is_asked_for_where_no_fetch_response_has_one() -> None:
    """The lag of such a partition is known all the same, and grows while its feed is idle."""

    async def scenario() -> None:
        async with DeliveryRig(settings=DeliverySettings(recheck_ms=10_000)) as rig:
            log = rig.log(P, 100, 150)
            log.reports_end = False
            await rig.claim(P)
            await until(lambda: rig.status(P).position == 150)
            before = rig.status(P).lag
            await asyncio.sleep(11)
            first = rig.status(P).lag
            log.silent_from = 150
            log.append(25)
            await asyncio.sleep(11)

            assert (before, first, rig.status(P).lag) == (None, 0, 25)
            assert rig.status(P).high_watermark is None

            rig.brokers.unreachable = ConnectionLost("refused")
            await asyncio.sleep(11)

            assert rig.status(P).lag is None

    run(scenario())
