# SPDX-License-Identifier: Apache-2.0
"""Checks of a group's committed positions in Kafka against those in ZooKeeper, for ``consumerd doctor``."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from consumerd.admin.doctor.facts import RegistryFacts
from consumerd.admin.doctor.findings import join_few
from consumerd.landing.findings import Finding, Severity
from consumerd.offsets.positions import describe_ahead, find_outrun
from consumerd.offsets.store import Place, Validity
from consumerd.telemetry.wording import counted
from consumerd.zk.layout import offsets_root


def check_kafka_positions(facts: RegistryFacts, *, ignored: bool) -> list[Finding]:
    """Return problems with the committed positions that a group has in Kafka.

    There are none for a group without positions in Kafka, unless they could not be read.

    Args:
        ignored: True if the setting ``offsets.ignore_other_place`` permits a start although the store that members do
            not read holds larger positions.
    """
    return [
        *_check_outrun(facts, facts.places, ignored=ignored),
        *_check_age(facts, facts.places),
        *_check_missing(facts, facts.places),
        *_check_unknown(facts),
    ]


def _check_outrun(facts: RegistryFacts, places: Collection[Place], *, ignored: bool) -> Iterator[Finding]:
    kept, larger = facts.kept, find_outrun(facts.kept, places)
    read, other = (Place.KAFKA, Place.ZOOKEEPER) if Place.KAFKA in places else (Place.ZOOKEEPER, Place.KAFKA)
    if larger:
        shown = [describe_ahead(one, kept.find_counting(one, places), position) for one, position in larger.items()]
        outcome = (
            f"consumerd run begins at those in {read.label} (offsets.ignore_other_place)"
            if ignored
            else "consumerd run refuses to start"
        )
        way = "consumerd offsets set" if read is Place.ZOOKEEPER else "offsets.dual_commit: true"
        yield Finding(
            severity=Severity.WARNING if ignored else Severity.CRITICAL,
            kind=f"position-larger-in-{other.value}",
            where=offsets_root(facts.group),
            detail=f"{other.label} has larger positions of {counted(len(larger), 'partition')}: {join_few(shown)}; "
            f"{outcome}. Either members commit to {other.label} alone, or positions in {read.label} were moved back; "
            f"it "
            "cannot be told which",
            advice=f"to go on at those in {other.label}: {way}; at those in {read.label}: offsets.ignore_other_place",
        )
    elif kept.kafka and Place.KAFKA not in places:
        yield Finding(
            severity=Severity.NOTICE,
            kind="positions-in-kafka",
            where=offsets_root(facts.group),
            detail=f"Kafka has positions of {counted(len(kept.kafka), 'partition')}, none larger: "
            f"{kept.explain_places(places)}",
            advice="nothing: so it is in a group that commits to both. See them with: consumerd offsets show",
        )


def _check_age(facts: RegistryFacts, places: Collection[Place]) -> Iterator[Finding]:
    """Name positions in Kafka that count and may be of a deleted topic."""
    if Place.KAFKA not in places:
        return
    unknown = [
        one
        for one in sorted(facts.kept.kafka)
        if (found := facts.kept.find_counting(one, places)).place is Place.KAFKA
        and found.validity is Validity.UNKNOWN_AGE
        and found.believed is not None
    ]
    if unknown:
        yield Finding(
            severity=Severity.NOTICE,
            kind="position-of-unknown-age",
            where=offsets_root(facts.group),
            detail=f"Kafka does not tell the age of positions of {counted(len(unknown), 'partition')}, which another "
            f"client has committed: {join_few(unknown)}",
            advice="nothing, with brokers of 0.9 or later; 0.8.2 keeps positions of deleted topics",
        )


def _check_missing(facts: RegistryFacts, places: Collection[Place]) -> Iterator[Finding]:
    """Name partitions that have landed data and no position."""
    if Place.KAFKA not in places:
        return
    landed = {partition for _, partition in facts.landed_ends if facts.has(partition)}
    missing = [
        one
        for one in sorted(landed)
        if facts.kept.find_counting(one, places).validity is Validity.ABSENT and not facts.kept.is_unknown(one, places)
    ]
    if missing:
        yield Finding(
            severity=Severity.WARNING,
            kind="position-missing-in-kafka",
            where=offsets_root(facts.group),
            detail=f"records of {counted(len(missing), 'partition')} have landed, and Kafka has no position: "
            f"{join_few(missing)}. Brokers forget positions that are not committed for offsets.retention.minutes",
            advice="nothing for partitions whose files are there: they go on at the files' end",
        )


def _check_unknown(facts: RegistryFacts) -> Iterator[Finding]:
    if facts.kept.unknown:
        yield Finding(
            severity=Severity.WARNING,
            kind="kafka-positions-unknown",
            where=offsets_root(facts.group),
            detail=f"it is not known which positions of the group are in Kafka: {facts.kept.unknown}",
            advice="see whether the brokers run; where they refuse, grant Describe on the group (before 0.11: Read)",
        )
