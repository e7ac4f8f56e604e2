# SPDX-License-Identifier: Apache-2.0
"""Checks of committed positions against the offset ranges of partition logs.

A problem's text says what a member does if it starts at such a position: what the policies in the settings say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from consumerd.admin.doctor.facts import LogFacts, RegistryFacts
from consumerd.admin.doctor.findings import join_few
from consumerd.admin.positions import advise_stop
from consumerd.delivery.policy import (
    OffsetPolicy,
    Reposition,
    StartReason,
    Stop,
    TryAgain,
    in_log,
    plan_out_of_range,
)
from consumerd.errors import OffsetOutOfRange
from consumerd.landing.findings import Finding, Severity
from consumerd.model import TopicPartition
from consumerd.telemetry.wording import counted, format_time
from consumerd.zk.layout import BROKER_TOPICS

_SET: Final = "say where to go on: consumerd offsets set"


def check_positions(facts: RegistryFacts, logs: LogFacts, policy: OffsetPolicy | None) -> list[Finding]:
    """Return problems with committed positions that are outside the partition's log.

    Partitions whose log range is unknown are named, too.

    Args:
        policy: What members do at a position outside the log, by the settings; None if no settings are given.
    """
    silent = sorted(logs.asked - logs.ranges.keys())
    found = [*_check_ranges(facts, logs, policy), *_check_stops(facts, policy)]
    if silent:
        found.append(
            Finding(
                severity=Severity.WARNING,
                kind="log-unknown",
                where=BROKER_TOPICS,
                detail=f"no broker has said what it holds of {counted(len(silent), 'partition')}: {join_few(silent)}",
                advice="see whether they have leaders: consumerd topics --partitions",
            )
        )
    return found


def _check_ranges(facts: RegistryFacts, logs: LogFacts, policy: OffsetPolicy | None) -> Iterator[Finding]:
    for partition, (where, found) in facts.list_counting().items():
        log = logs.ranges.get(partition)
        position = found.believed
        if log is None or position is None or in_log(position, log):
            continue
        below = position < log.earliest
        if not below and partition in facts.stops:
            continue  # _check_stops yields it
        error = OffsetOutOfRange(partition, position, log.earliest, log.latest)
        outcome = None if policy is None else plan_out_of_range(error, policy)
        setting = "offsets.on_below" if below else "offsets.on_above"
        what = (
            f"position {position} is below the log [{log.earliest}, {log.latest}): {log.earliest - position} offsets "
            "are gone, deleted before they were read"
            if below
            else f"position {position} is above the log [{log.earliest}, {log.latest}): {_explain_above(partition)}"
        )
        yield Finding(
            severity=Severity.CRITICAL,
            kind="position-below-log" if below else "position-above-log",
            where=where,
            detail=f"{what}. {_tell_outcome(setting, outcome, policy)}",
            advice="nothing, if that is what you want; else " + _SET if isinstance(outcome, Reposition) else _SET,
        )


def _explain_above(partition: TopicPartition) -> str:
    if (broker := partition.partition.broker) is not None:
        return f"broker {broker} has lost its log and began again at 0, or the position is another cluster's"
    return "the log was truncated, or the position is another cluster's"


def _check_stops(facts: RegistryFacts, policy: OffsetPolicy | None) -> Iterator[Finding]:
    for partition, stop in sorted(facts.stops.items()):
        what = f"{partition} {stop.describe()}" if stop.lost is not None else f"{partition}: {stop.problem}"
        if stop.lost is not None and policy is not None and policy.on_above != "stop":
            what += f". offsets.on_above is {policy.on_above} now: the next owner of the partition follows it"
        yield Finding(
            severity=Severity.CRITICAL,
            kind="stopped-above-log" if stop.lost is not None else "truncation-note-malformed",
            where=stop.path or str(partition),
            detail=what if stop.since_ms is None else f"{what}. So it has been since {format_time(stop.since_ms)}",
            advice=advise_stop(facts.group, partition)
            if stop.lost is not None
            else "repair the node as it says; until then no owner delivers the partition",
        )


def _tell_outcome(setting: str, outcome: Reposition | Stop | TryAgain | None, policy: OffsetPolicy | None) -> str:
    if policy is None or outcome is None:
        return f"{setting} of the member that claims it decides what happens"
    if not isinstance(outcome, Reposition):
        return f"{setting} is stop: the next owner stops the partition"
    choice = policy.on_above if outcome.reason is StartReason.ON_ABOVE else policy.on_below
    return f"{setting} is {choice}: the next owner of the partition continues at {outcome.position}"
