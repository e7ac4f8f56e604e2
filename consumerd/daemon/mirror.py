# SPDX-License-Identifier: Apache-2.0
"""Judges if groups may move to the target of a mirror now. Pure.

It is safe if this member owns all partitions of the group, each of them runs, and each has nothing in the source that
is not in the target. Producers that still write to the source make that untrue in the next moment: so stop them first.

Example: partition ``orders/0`` has the log end 120. 120 was delivered to the sink, whose last transaction has committed
100. So 20 offsets are missing in the target, and ``consumerd_lag_records``, which is 0, does not show them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from consumerd.daemon.status import MirrorStatus, MirrorTopicStatus, PartitionReport
from consumerd.delivery.status import DeliveryState
from consumerd.telemetry.wording import counted, join_shown

_NAMED: Final = 5
"""Limit of partitions that one reason names."""


def describe_mirror(
    partitions: Collection[PartitionReport],
    *,
    mirrors: Collection[str],
    not_ready: Collection[str],
    group_partitions: int,
    absent: Collection[str],
) -> MirrorStatus | None:
    """Return the status of the mirrors of this process; None if no sink is one.

    Args:
        partitions: Reports about all partitions that this member owns.
        mirrors: Names of the sinks that are mirrors.
        not_ready: Reasons why this process is not ready.
        group_partitions: Number of partitions of all members of the group.
        absent: Topics that are subscribed to and cannot be read, and partitions that are away.
    """
    if not mirrors:
        return None
    own = [one for one in partitions if one.sink in mirrors]
    unsafe = [f"not ready: {reason}" for reason in not_ready]
    if absent:
        unsafe.append(f"cannot be read: {join_shown(absent, _NAMED)}")
    if not own:
        unsafe.append("this process owns no partition of it")
    if (others := group_partitions - len(partitions)) > 0:
        unsafe.append(f"{counted(others, 'partition')} of the group are not owned here: look at the other members, too")
    unsafe += _find_unsafe(own)
    topics = [
        MirrorTopicStatus(topic=name, partitions=len(some), lag=_sum_lags(some))
        for name in sorted({one.topic for one in own})
        for some in [[one for one in own if one.topic == name]]
    ]
    return MirrorStatus(safe_to_cut_over=not unsafe, unsafe=tuple(unsafe), topics=tuple(topics))


def find_mirror_lag(one: PartitionReport) -> int | None:
    """Return how many source offsets are not in the target; None if unknown."""
    if one.lag is None or one.position is None or one.acknowledged is None:
        return None
    return one.lag + one.position - one.acknowledged


def _sum_lags(partitions: Collection[PartitionReport]) -> int | None:
    lags = [lag for one in partitions if (lag := find_mirror_lag(one)) is not None]
    return sum(lags) if len(lags) == len(partitions) else None


def _find_unsafe(partitions: Collection[PartitionReport]) -> Iterator[str]:
    stopped = [one for one in partitions if one.state == DeliveryState.STOPPED]
    halted = [one for one in partitions if one.state not in (DeliveryState.STOPPED, DeliveryState.RUNNING)]
    running = [one for one in partitions if one.state == DeliveryState.RUNNING]
    for one in stopped[:_NAMED]:
        yield f"{_name(one)} is stopped: {one.reason}"
    if len(stopped) > _NAMED:
        yield f"{counted(len(stopped) - _NAMED, 'more partition')} stopped"
    if halted:
        yield join_shown((f"{_name(one)} is {one.state}" for one in halted), _NAMED)
    behind = [f"{_name(one)} is {lag:,} behind" for one in running if (lag := find_mirror_lag(one))]
    if behind:
        yield join_shown(behind, _NAMED)
    unknown = [_name(one) for one in running if find_mirror_lag(one) is None]
    if unknown:
        yield f"lag unknown: {join_shown(unknown, _NAMED)}"


def _name(one: PartitionReport) -> str:
    return f"{one.topic}/{one.partition}"
