# SPDX-License-Identifier: Apache-2.0
"""Is what ZooKeeper holds of the group what its members can work with? Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from consumerd.admin.doctor.facts import Node, PartitionNode, RegistryFacts
from consumerd.admin.doctor.findings import Finding, Severity, join_few
from consumerd.errors import OffsetError
from consumerd.group.assignors import Strategy
from consumerd.group.identity import consumer_of
from consumerd.group.plan import (
    DisagreementKind,
    plan_assignment,
    plan_disagreements,
    plan_owner_disagreements,
)
from consumerd.landing.chain import ROOT_RECORD
from consumerd.model import ConsumerId, ThreadId, TopicPartition
from consumerd.offsets.requests import parse_request
from consumerd.offsets.store import Validity
from consumerd.telemetry.wording import counted
from consumerd.zk.layout import group_path, id_path, ids_path, owners_root, topic_path

_LINGERING: Final = re.compile(r"-[0-9a-f]{8}")
_ROOT: Final = re.compile(r"[0-9a-f]{32}")
_AGAIN: Final = "look again in a while: a rebalance that is going on shows the same for a moment"
_PENDING_MS: Final = 60_000
"""A running owner carries a request out within moments."""


def check_registry(facts: RegistryFacts, strategy: Strategy) -> list[Finding]:
    """Return what is wrong with members, owners, stored positions, requests and recorded roots."""
    if facts.generation is None and facts.legacy_nodes:
        return [_tell_unknown_generation(facts)]
    return [
        *_check_topics(facts),
        *_check_members(facts),
        *_check_disagreements(facts, strategy),
        *_check_owners(facts),
        *_check_unowned(facts, strategy),
        *_check_rights(facts),
        *_check_offsets(facts),
        *_check_requests(facts),
        *_check_roots(facts),
    ]


# -- generation and topics


def _tell_unknown_generation(facts: RegistryFacts) -> Finding:
    """Say that the group may be of Kafka 0.7: by the rules of 0.8 every node of a healthy one would be wrong."""
    return Finding(
        severity=Severity.WARNING,
        check="generation-unknown",
        where=group_path(facts.group),
        what=f"nodes of this group are in the form of Kafka 0.6 or 0.7 ({join_few(facts.legacy_nodes)}), and no broker is "
        "registered that would tell which Kafka this is: nothing else was examined",
        advice="leave the nodes as they are, and look again once a broker runs; a group of 0.6 or 0.7 cannot be examined",
    )


def _check_topics(facts: RegistryFacts) -> Iterator[Finding]:
    for topic, view in sorted(facts.topics.items()):
        if view is not None and view.problem is not None:
            yield Finding(
                severity=Severity.ERROR,
                check="topic-unreadable",
                where=topic_path(topic),
                what=f"{view.problem}: no member can tell the topic's partitions, so that none is claimed anew",
                advice="see what has written the node; a broker's controller log has the replicas that stood there",
            )


# -- members


def _check_members(facts: RegistryFacts) -> Iterator[Finding]:
    sessions: dict[int, list[str]] = defaultdict(list)
    consumers = {member.consumer: member for member in facts.snapshot.members}
    for member in facts.snapshot.members:
        where = id_path(facts.group, member.consumer)
        sessions[member.session_id].append(member.consumer)
        if member.session_id == 0:
            yield Finding(
                severity=Severity.ERROR,
                check="member-without-session",
                where=where,
                what="the node is persistent: no session holds it, and it never goes, though partitions are assigned to it",
                advice="delete the node; no client of Kafka or of ours makes one like it",
            )
        if member.problem is not None:
            yield Finding(
                severity=Severity.ERROR,
                check="member-unreadable",
                where=where,
                what=f"{member.problem}; held by {_holder(facts, member.session_id)}. Every Java member's rebalance fails",
                advice="find the process behind that session and stop it, or delete the node",
            )
    for consumer, member in sorted(consumers.items()):
        if _LINGERING.fullmatch(consumer[-9:]) and (older := consumers.get(ConsumerId(consumer[:-9]))) is not None:
            yield Finding(
                severity=Severity.WARNING,
                check="duplicate-consumer-id",
                where=id_path(facts.group, consumer),
                what=f"{older.consumer} is registered by session {older.session_id:#x} and again, with a suffix, by "
                f"{member.session_id:#x}: two processes have the same group.consumer_id, or one has crashed and come back",
                advice="give each process a group.consumer_id of its own; after a crash it passes with the old session",
            )
    for session_id, names in sorted(sessions.items()):
        if session_id and len(names) > 1:
            yield Finding(
                severity=Severity.WARNING,
                check="session-with-two-members",
                where=ids_path(facts.group),
                what=f"session {session_id:#x} has registered {len(names)} members: {join_few(names)}",
                advice="a client that shares one session, or that has registered twice; restart it if it owns too little",
            )


def _check_disagreements(facts: RegistryFacts, strategy: Strategy) -> Iterator[Finding]:
    for one in plan_disagreements(facts.snapshot, strategy):
        if one.kind is not DisagreementKind.UNREADABLE:  # told above, with its session
            yield Finding(
                severity=Severity.WARNING,
                check="members-disagree",
                where=id_path(facts.group, ConsumerId(one.member)) if one.member else ids_path(facts.group),
                what=f"{one.kind.value}: {one.detail}",
                advice="let all members subscribe alike, with one partition.assignment.strategy",
            )


# -- owners


def _check_owners(facts: RegistryFacts) -> Iterator[Finding]:
    sessions = {member.consumer: member.session_id for member in facts.snapshot.members}
    for node in facts.owners:
        if (misplaced := _check_place(facts, node, "owner")) is not None:
            yield misplaced
        if node.partition is None:
            continue
        session_id = node.stat.ephemeral_owner
        if session_id == 0:
            yield Finding(
                severity=Severity.ERROR,
                check="owner-without-session",
                where=node.path,
                what=f"the node is persistent and says {_text(node)}: no session holds it, so that it never goes and "
                "nobody can claim the partition",
                advice="delete the node",
            )
            continue
        consumer = _find_consumer(node, sessions)
        if consumer not in sessions:
            yield Finding(
                severity=Severity.ERROR,
                check="owner-not-registered",
                where=node.path,
                what=f"{_text(node)} owns it, and no such member is registered; held by {_holder(facts, session_id)}",
                advice="it goes with the session. If it stays, the process behind the session has lost its registration: "
                "restart it",
            )
        elif sessions[consumer] != session_id:
            yield Finding(
                severity=Severity.WARNING,
                check="owner-of-another-session",
                where=node.path,
                what=f"{_text(node)} owns it in session {session_id:#x}, while {consumer} is registered by "
                f"{sessions[consumer]:#x}: left by an earlier session of the same consumer id",
                advice="it goes when the older session expires. If it stays, two processes use one consumer id",
            )


def _check_unowned(facts: RegistryFacts, strategy: Strategy) -> Iterator[Finding]:
    assignment = plan_assignment(facts.snapshot, strategy)
    holders = facts.holders()
    sessions = {member.consumer: member.session_id for member in facts.snapshot.members}
    unowned: dict[ConsumerId, list[TopicPartition]] = defaultdict(list)
    for partition in sorted(assignment.keys() - holders.keys()):
        unowned[consumer_of(assignment[partition])].append(partition)
    for consumer, partitions in sorted(unowned.items()):
        ours = sessions[consumer] in facts.our_sessions
        yield Finding(
            severity=Severity.ERROR,
            check="partitions-unowned",
            where=owners_root(facts.group),
            what=f"without an owner: {counted(len(partitions), 'partition')} of {consumer}, session {sessions[consumer]:#x}: "
            f"{join_few(partitions)}",
            advice=f"{_AGAIN}. " + ("Then see its status page" if ours else "Then restart that member: a Java member that "
            "has used up rebalance.max.retries owns nothing until the group changes"),
        )  # fmt: skip
    live = {
        partition: holder for partition, holder in holders.items() if consumer_of(ThreadId(holder.thread)) in sessions
    }
    for one in plan_owner_disagreements(facts.snapshot, strategy, live, ConsumerId("")):
        if one.kind is DisagreementKind.STRATEGY:
            yield Finding(
                severity=Severity.WARNING,
                check="owners-not-as-planned",
                where=owners_root(facts.group),
                what=one.detail,
                advice=f"{_AGAIN}. Then make group.assignor the partition.assignment.strategy of the other members",
            )


# -- positions and requests


def _check_offsets(facts: RegistryFacts) -> Iterator[Finding]:
    for node in facts.offsets:
        if (misplaced := _check_place(facts, node, "stored position")) is not None:
            yield misplaced
        if node.partition is not None and node.partition.is_legacy:
            continue  # a byte offset of 0.7, which no member here reads
        position = facts.find_position(node)
        if position.validity is Validity.MALFORMED and node.partition is not None:
            yield Finding(
                severity=Severity.ERROR,
                check="position-malformed",
                where=node.path,
                what=f"{position.explain()}: whoever claims the partition stops it, unless files that have landed say where "
                "to go on",
                advice="say where to go on: consumerd offsets set",
            )
        if position.validity is Validity.ANOTHER_INCARNATION:
            yield Finding(
                severity=Severity.WARNING,
                check="position-of-older-topic",
                where=node.path,
                what=f"{position.explain()} (by transaction {node.stat.mzxid}, the topic by {position.incarnation})",
                advice="consumerd begins at the earliest offset; a Java member takes the position as it is",
            )


def _check_rights(facts: RegistryFacts) -> Iterator[Finding]:
    for topic, denial in sorted(facts.denied.items()):
        yield Finding(
            severity=Severity.ERROR,
            check="topic-denied",
            where=denial.path,
            what=f"topic {topic} cannot be consumed with the credentials given here: {denial}",
            advice="grant the right with setAcl as the node's owner, or give the members credentials that have it",
        )


def _check_requests(facts: RegistryFacts) -> Iterator[Finding]:
    subscribed = facts.snapshot.topics
    for node in facts.requests:
        misplaced = _check_place(facts, node, "request")
        if misplaced is not None:
            yield misplaced
        if node.partition is None:
            continue
        try:
            request = parse_request(node.data, partition=node.partition, version=node.stat.version)
        except OffsetError as error:
            yield Finding(
                severity=Severity.ERROR,
                check="request-malformed",
                where=node.path,
                what=f"{error}: nobody carries it out",
                advice="delete the node, and ask again: consumerd offsets set",
            )
            continue
        wish = f"{request.author} wants {node.partition} to go on at {request.position}"
        if misplaced is None and node.topic not in subscribed:
            yield Finding(
                severity=Severity.WARNING,
                check="request-without-subscriber",
                where=node.path,
                what=f"{wish}, and no member subscribes to {node.topic}",
                advice="start a member that does, or delete the node",
            )
        elif misplaced is None and (age_ms := facts.wall_ms - node.stat.mtime_ms) > _PENDING_MS:
            holder = facts.holders().get(node.partition)
            held = _holder(facts, holder.session_id) if holder is not None else "nobody"
            foreign = holder is not None and holder.session_id not in facts.our_sessions
            yield Finding(
                severity=Severity.WARNING,
                check="request-pending",
                where=node.path,
                what=f"{wish}; it waits for {age_ms // 1000} s, and the partition is held by {held}",
                advice="a Java member carries no request out: stop it, or let a member of ours own the partition"
                if foreign
                else "the owner carries it out as soon as the partition delivers: see its status page",
            )


def _check_roots(facts: RegistryFacts) -> Iterator[Finding]:
    for path, root in sorted(facts.roots.items()):
        if not _ROOT.fullmatch(root):
            yield Finding(
                severity=Severity.ERROR,
                check="root-malformed",
                where=path,
                what=f"{root[:80]!r} is no root that a sink has recorded: the sink refuses its path",
                advice=f"write the root that stands in {ROOT_RECORD} at the sink's path, or delete the node",
            )


def _check_place(facts: RegistryFacts, node: PartitionNode, kind: str) -> Finding | None:
    """Return what is wrong with where the node is."""
    if node.partition is None:
        return Finding(
            severity=Severity.WARNING,
            check=f"{kind.replace(' ', '-')}-misnamed",
            where=node.path,
            what=f"its name is no partition's; held by {_holder(facts, node.stat.ephemeral_owner)}",
            advice="delete the node unless some tool of yours needs it; members pass over it",
        )
    view = facts.topics.get(node.topic)
    if view is not None and (view.problem is not None or facts.has(node.partition)):
        return None  # of a topic that cannot be read it is not known which partitions it has; that is told by itself
    if node.partition.is_legacy:
        return Finding(
            severity=Severity.NOTICE,
            check=f"{kind.replace(' ', '-')}-of-older-kafka",
            where=node.path,
            what=f"a {kind} under a name with a broker, as Kafka 0.7 (and, for owners, pykafka) makes them; members of 0.8 "
            "and later pass over it",
            advice="nothing: it does no harm. Keep it while any client of 0.7 may still use this ZooKeeper",
        )
    lacking = (
        f"topic {node.topic}" if view is None else f"partition {node.partition} ({len(view.partitions)} there are)"
    )
    return Finding(
        severity=Severity.WARNING,
        check=f"{kind.replace(' ', '-')}-without-partition",
        where=node.path,
        what=f"a {kind}, and there is no {lacking}",
        advice="delete the node if the topic was deleted for good" + (
            "; its owner releases it with its next rebalance" if kind == "owner" else ""
        ),
    )  # fmt: skip


def _holder(facts: RegistryFacts, session_id: int) -> str:
    if session_id == 0:
        return "no session"
    members = facts.members_of(session_id)
    return f"session {session_id:#x}, " + (
        f"which registered {join_few(members)}" if members else "which has no member"
    )


def _find_consumer(node: Node, known: Collection[ConsumerId]) -> ConsumerId:
    """Return the member that an owner node names: by a thread of it, or by its bare id, as clients in Go do."""
    text = node.data.decode(errors="replace")
    return ConsumerId(text) if text in known else consumer_of(ThreadId(text))


def _text(node: Node) -> str:
    return repr(node.data.decode(errors="replace")[:200])
