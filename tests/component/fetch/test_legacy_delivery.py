# SPDX-License-Identifier: Apache-2.0
"""Delivery from brokers of Kafka 0.7 in memory, in virtual time: policies for damage, and the lag."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.model import Gap, GapReason
from consumerd.wire.legacy.stored_message import encode_message
from tests.support.delivery import DeliveryRig
from tests.support.legacy_peer import LegacyCluster, encode_messages, legacy_partition
from tests.support.virtual_time import run
from tests.support.waiting import until

P = legacy_partition("t", 0)
BEFORE, AFTER = encode_messages([b"before"] * 3), encode_messages([b"after"] * 3)


def damage_length(message: bytes) -> bytes:
    """Return a message with a length that leads to no message."""
    data = bytearray(message)
    data[2] ^= 0x01
    return bytes(data)


def deliver(
    log: bytes,
    scenario: Callable[[LegacyCluster, DeliveryRig], Awaitable[None]],
    *,
    policy: Any = "stop",
    position: int | None = None,
    **fetch: Any,
) -> None:
    """Run a scenario on a partition with this log, and perhaps a stored position."""

    async def play() -> None:
        cluster = LegacyCluster()
        cluster.peers[0].log("t", 0).append(log)
        settings = DeliverySettings(
            offsets=OffsetPolicy(on_missing="earliest"),
            on_corrupt=policy,
            on_oversized=policy,
            commit_interval_ms=100,
            recheck_ms=500,
        )
        async with (
            cluster.reading(P, **fetch) as (fetcher, ranges),
            DeliveryRig(settings=settings, feeds=fetcher, ranges=ranges) as rig,
        ):
            if position is not None:
                rig.store.put(P, position)
            await rig.claim(P)
            await scenario(cluster, rig)

    run(play())


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
@pytest.mark.parametrize("ask_bytes", [50, 100_000])
def test_damage_is_passed_and_everything_around_it_is_delivered(policy: str, ask_bytes: int) -> None:
    """The gaps are exactly the damage, in as many parts as it takes to find its end."""
    bad = damage_length(encode_message(b"bad" * 200))
    end = len(BEFORE + bad + AFTER)

    async def scenario(_: LegacyCluster, rig: DeliveryRig) -> None:
        await until(lambda: rig.store.position(P) == end)
        behind = len(BEFORE + bad)
        assert rig.landed(P) == [0, 16, 32, behind, behind + 15, behind + 30]
        gaps = rig.sink.landed[P].gaps
        assert [gap.reason for gap in gaps] == [GapReason.CORRUPT] * len(gaps)
        assert [gaps[0].start, *(gap.end for gap in gaps)] == [*(gap.start for gap in gaps), behind]
        assert len(gaps) <= 3
        if policy == "quarantine":
            assert b"".join(unit.raw for unit in rig.quarantine.units) == bad

    deliver(BEFORE + bad + AFTER, scenario, policy=policy, max_partition_bytes=ask_bytes)


def test_damage_at_the_end_of_the_log_is_passed_and_later_messages_are_delivered() -> None:
    """Logs end with a whole message, so the damage ends there, too."""
    bad = damage_length(encode_message(b"bad" * 200))

    async def scenario(cluster: LegacyCluster, rig: DeliveryRig) -> None:
        behind = len(BEFORE + bad)
        await until(lambda: rig.store.position(P) == behind)
        cluster.peers[0].log("t", 0).append(AFTER)
        await until(lambda: rig.store.position(P) == behind + len(AFTER))
        assert rig.landed(P) == [0, 16, 32, behind, behind + 15, behind + 30]

    deliver(BEFORE + bad, scenario, policy="skip")


def test_damage_stops_the_partition_by_default_and_the_advice_names_the_next_message() -> None:
    """An operator who follows it loses nothing that could be read."""
    bad = damage_length(encode_message(b"bad" * 200))

    async def scenario(_: LegacyCluster, rig: DeliveryRig) -> None:
        await until(lambda: rig.status(P).reason is not None)
        reason = str(rig.status(P).reason)
        first, end = len(BEFORE), len(BEFORE + bad)
        assert (
            "; the log is damaged, or the broker was wiped and its log is another one: set fetch.on_corrupt, or say "
            f"where to go on with `consumerd offsets set TOPIC/PARTITION=POSITION`: position {end} passes over it, "
            f"offsets {first} to {end - 1}"
        ) in reason
        assert "replica" not in reason
        assert rig.landed(P) == [0, 16, 32]

    deliver(BEFORE + bad + AFTER, scenario)


def test_damage_whose_end_nothing_proves_stops_until_a_position_behind_it_is_asked_for() -> None:
    """The text says which positions are safe, though none can be named; one of them ends the stop."""
    damage = b"\xff" * 5000

    async def scenario(cluster: LegacyCluster, rig: DeliveryRig) -> None:
        log = cluster.peers[0].log("t", 0)
        log.roll()
        segment = log.end
        log.append(AFTER)
        await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
        reason = str(rig.status(P).reason)
        assert "where to go on with `consumerd offsets set TOPIC/PARTITION=POSITION`: it is not known where" in reason
        assert (
            "; it cannot be passed over, since nothing fetched behind it proves where a message begins; the position "
            "of a time behind it is one (offsets reset --to), since a log segment begins there; this is retried"
        ) in reason
        assert len(BEFORE) == rig.store.position(P)

        rig.requests.put(P, segment)
        await until(lambda: rig.store.position(P) == segment + len(AFTER))
        assert rig.landed(P) == [0, 16, 32, segment, segment + 15, segment + 30]

    deliver(BEFORE + damage, scenario, policy="skip", max_message_bytes=1000, max_partition_bytes=1000)


def test_a_position_inside_of_a_message_stops_the_partition_and_the_reason_names_the_message() -> None:
    """Set by hand, or left of a log that was wiped and has outgrown it."""
    whole = encode_message(b"whole" * 20)

    async def scenario(_: LegacyCluster, rig: DeliveryRig) -> None:
        await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
        reason, begin = str(rig.status(P).reason), len(BEFORE)
        assert (
            f"no message begins there: it lies inside of the message at byte offset {begin}, from which reading can "
            "begin"
        ) in reason
        assert f"position {len(BEFORE + whole)} passes over it" in reason
        assert rig.landed(P) == []

        rig.requests.put(P, begin)
        await until(lambda: rig.store.position(P) == len(BEFORE + whole + AFTER))
        assert begin == rig.landed(P)[0]

    deliver(BEFORE + whole + AFTER, scenario, position=len(BEFORE) + 40)


def test_an_oversized_message_is_passed_by_its_size() -> None:
    """The messages after it confirm the size."""
    large = encode_message(b"l" * 5000)

    async def scenario(_: LegacyCluster, rig: DeliveryRig) -> None:
        await until(lambda: rig.store.position(P) == len(BEFORE + large + AFTER))
        assert rig.sink.landed[P].gaps == [Gap(len(BEFORE), len(BEFORE + large), GapReason.SKIPPED)]
        assert len(rig.landed(P)) == 6

    deliver(BEFORE + large + AFTER, scenario, policy="skip", max_message_bytes=1000, max_partition_bytes=100)


def test_a_damaged_length_above_the_limit_passes_over_nothing_that_can_be_read() -> None:
    """Its claim is inside of the log, but in the middle of a message."""
    bad = bytearray(encode_message(b"b" * 40))
    bad[2] = 0x20  # 8 KiB more
    later = encode_messages([b"x" * 90] * 200)

    async def scenario(_: LegacyCluster, rig: DeliveryRig) -> None:
        await until(lambda: rig.status(P).reason is not None)
        reason = str(rig.status(P).reason)
        assert "; it cannot be passed over, since no readable record was found after it; this is retried" in reason
        assert "proves where a message begins" not in reason
        assert rig.store.position(P) == len(BEFORE)

    deliver(BEFORE + bytes(bad) + later, scenario, policy="skip", max_message_bytes=1000, max_partition_bytes=100)


def test_the_lag_comes_from_offsets() -> None:
    """Fetch responses have no high watermark."""

    bad = damage_length(encode_message(b"bad" * 200))

    async def scenario(_: LegacyCluster, rig: DeliveryRig) -> None:
        await until(lambda: rig.status(P).lag == len(bad + AFTER))
        assert rig.status(P).position == len(BEFORE)
        assert rig.status(P).high_watermark is None

    deliver(BEFORE + bad + AFTER, scenario)
