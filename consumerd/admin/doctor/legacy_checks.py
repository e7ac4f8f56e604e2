# SPDX-License-Identifier: Apache-2.0
"""Checks of a group's znodes on Kafka 0.6 and 0.7, for ``consumerd doctor``.

A name ``B-P`` is the usual one here. While broker B is away, the nodes of its partitions have no registered partition:
they are needed when it comes back, so no advice is to delete them. A plain number is the name that a client of 0.8 or
later gives a partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from consumerd.admin.doctor.facts import PartitionNode, RegistryFacts
from consumerd.admin.doctor.findings import join_few
from consumerd.landing.findings import Finding, Severity
from consumerd.offsets.positions import StoredEntry
from consumerd.telemetry.wording import counted
from consumerd.zk.layout import broker_path, topic_path

AGAIN: Final = "look again in a while: a rebalance that is going on shows the same for a moment"


def check_away(facts: RegistryFacts) -> Iterator[Finding]:
    """Return one problem for each broker that has partitions of the group away."""
    for away in facts.find_away():
        topics = sorted({one.topic for one in away.partitions})
        yield Finding(
            severity=Severity.CRITICAL,
            kind="partition-away",
            where=topic_path(topics[0]) if away.is_registered else broker_path(away.broker),
            detail=f"{away.reason}; {away.outlook}. {counted(len(away.partitions), 'partition')} with a "
            f"position: {join_few(away.partitions)}",
            advice=f"broker {away.broker} has lost its logs, or was given an empty folder (log.dir): correct that if "
            "it was not meant. When a partition is back, offsets.on_above decides where its owner continues"
            if away.is_registered
            else f"start broker {away.broker} again, with its logs and the same brokerid. Leave the positions as they "
            "are: the group continues at them. If the broker is gone for good, so are its records",
        )


def check_legacy_place(facts: RegistryFacts, node: PartitionNode | StoredEntry, kind: str) -> Finding | None:
    """Return a finding if a node's name is strange here, else None.

    The caller has found that the partition is not registered. A stored position of a partition that is away is no
    finding here: :func:`check_away` has one for all positions of a broker.

    Args:
        kind: Kind of the node: owner, stored position or request.
    """
    partition, prefix = node.partition, kind.replace(" ", "-")
    if partition is None:
        return None
    if not partition.is_legacy:
        return Finding(
            severity=Severity.WARNING,
            kind=f"{prefix}-of-newer-kafka",
            where=node.path,
            detail=f"a {kind} under a plain number, as Kafka 0.8 and later name a partition; the brokers here are of "
            "0.6 or 0.7, whose partitions are named BROKER-N, and no member here reads it",
            advice="find the client that has written it: it is set up for another cluster, or for another release",
        )
    if not facts.is_away(partition) or isinstance(node, StoredEntry):
        return None
    broker = partition.partition.broker
    if kind == "request":
        return Finding(
            severity=Severity.NOTICE,
            kind="request-of-away-partition",
            where=node.path,
            detail=f"it waits until broker {broker} registers the partition again: then its owner carries it out",
            advice="nothing, or withdraw it: consumerd offsets cancel",
        )
    return Finding(
        severity=Severity.WARNING,
        kind="owner-of-away-partition",
        where=node.path,
        detail=f"the partition has an owner, and broker {broker} does not register it: the owner releases it when it "
        "rebalances",
        advice=f"{AGAIN}. Then restart that owner: it has not noticed that the broker is away",
    )
