# SPDX-License-Identifier: Apache-2.0
"""Are the stored positions in the logs, and what would a member do where they are not? Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from consumerd.admin.doctor.facts import LogFacts, RegistryFacts
from consumerd.admin.doctor.findings import Finding, Severity, join_few
from consumerd.admin.positions import advise_stop
from consumerd.delivery.policy import OffsetPolicy, OnOutOfRange
from consumerd.model import LogRange
from consumerd.telemetry.wording import counted, format_time
from consumerd.zk.layout import BROKER_TOPICS

_SET: Final = "say where to go on: consumerd offsets set"


def check_positions(facts: RegistryFacts, logs: LogFacts, policy: OffsetPolicy | None) -> list[Finding]:
    """Return the positions that a broker does not hold; ``policy`` is that of the settings, None where there are none."""
    silent = sorted(logs.asked - logs.ranges.keys())
    found = [*_check_ranges(facts, logs, policy), *_check_stops(facts, policy)]
    if silent:
        found.append(
            Finding(
                severity=Severity.WARNING,
                check="log-unknown",
                where=BROKER_TOPICS,
                what=f"no broker has said what it holds of {counted(len(silent), 'partition')}: {join_few(silent)}",
                advice="see whether they have leaders: consumerd topics --partitions",
            )
        )
    return found


def _check_ranges(facts: RegistryFacts, logs: LogFacts, policy: OffsetPolicy | None) -> Iterator[Finding]:
    for node in facts.offsets:
        log = logs.ranges.get(node.partition) if node.partition is not None else None
        position = facts.find_position(node).valid
        if log is None or position is None or log.earliest <= position <= log.latest:
            continue
        below = position < log.earliest
        if not below and node.partition in facts.stops:
            continue  # told as a stop
        choice = None if policy is None else policy.on_below if below else policy.on_above
        what = (
            f"position {position} is below the log [{log.earliest}, {log.latest}): {log.earliest - position} offsets are "
            "gone, deleted before they were read"
            if below
            else f"position {position} is above the log [{log.earliest}, {log.latest}): the log has lost its end, or the "
            "position is another cluster's"
        )
        yield Finding(
            severity=Severity.ERROR,
            check="position-below-log" if below else "position-above-log",
            where=node.path,
            what=f"{what}. {_tell_choice(choice, log, below=below)}",
            advice=_SET if choice in (None, "stop") else "nothing, if that is what you want; else " + _SET,
        )


def _check_stops(facts: RegistryFacts, policy: OffsetPolicy | None) -> Iterator[Finding]:
    for partition, stop in sorted(facts.stops.items()):
        what = f"{partition} {stop.describe()}" if stop.lost is not None else f"{partition}: {stop.problem}"
        if stop.lost is not None and policy is not None and policy.on_above != "stop":
            what += f". offsets.on_above is {policy.on_above} now: whoever claims the partition goes on by that"
        yield Finding(
            severity=Severity.ERROR,
            check="stopped-above-log" if stop.lost is not None else "truncation-note-malformed",
            where=stop.path,
            what=f"{what}. So it has been since {format_time(stop.since_ms)}",
            advice=advise_stop(facts.group, partition)
            if stop.lost is not None
            else "mend the node as it says; until then the partition does not go on, whoever claims it",
        )


def _tell_choice(choice: OnOutOfRange | None, log: LogRange, *, below: bool) -> str:
    key = "offsets.on_below" if below else "offsets.on_above"
    if choice is None:
        return f"{key} of the member that claims it decides what happens"
    if choice == "stop":
        return f"{key} is stop: whoever claims the partition stops it"
    at_start = choice == "earliest" or (choice == "nearest" and below)
    return f"{key} is {choice}: whoever claims the partition goes on at {log.earliest if at_start else log.latest}"
