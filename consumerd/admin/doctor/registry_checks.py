# SPDX-License-Identifier: Apache-2.0
"""Checks of a group's znodes in ZooKeeper, for ``consumerd doctor``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from consumerd.admin.doctor.facts import Node, PartitionNode, RegistryFacts
from consumerd.admin.doctor.findings import join_few
from consumerd.admin.doctor.legacy_checks import AGAIN, check_away, check_legacy_place
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
from consumerd.landing.findings import Finding, Severity
from consumerd.model import ConsumerId, Generation, ThreadId, TopicPartition
from consumerd.offsets.positions import StoredEntry
from consumerd.offsets.requests import parse_request
from consumerd.offsets.store import Validity
from consumerd.telemetry.wording import counted
from consumerd.zk.layout import group_path, id_path, ids_path, owners_root, topic_path

_LINGERING: Final = re.compile(r"-[0-9a-f]{8}")
_ROOT: Final = re.compile(r"[0-9a-f]{32}")
_PENDING_MS: Final = 60_000
"""A running owner carries a request out within moments."""


def check_registry(facts: RegistryFacts, strategy: Strategy) -> list[Finding]:
    """Return problems with a group's members, owners, committed positions, requests and landing folders in ZooKeeper.

    If the znodes are in the format of Kafka 0.7 and no broker is registered, the generation of the cluster is unknown:
    then the result is a single problem that says so.

    Args:
        facts: State of the group in ZooKeeper.
        strategy: Assignor of the settings, to compare owners with the assignment.
    """
    if facts.generation is None and facts.legacy_nodes:
        return [_tell_unknown_generation(facts)]
    return [
        *_check_topics(facts),
        *_check_members(facts),
        *_check_disagreements(facts, strategy),
        *_check_owners(facts),
        *_check_unowned(facts, strategy),
        *_check_rights(facts),
        *check_away(facts),
        *_check_offsets(facts),
        *_check_requests(facts),
        *_check_roots(facts),
    ]


# -- generation and topics


def _tell_unknown_generation(facts: RegistryFacts) -> Finding:
    """Return the finding that the group may be of Kafka 0.7.

    Kafka 0.7 writes the same nodes in another format, so checked as nodes of 0.8 all of them would have findings.
    """
    return Finding(
        severity=Severity.WARNING,
        kind="generation-unknown",
        where=group_path(facts.group),
        detail=f"nodes of this group are in the form of Kafka 0.6 or 0.7 ({join_few(facts.legacy_nodes)}), and no "
        "broker is registered that would tell which Kafka this is: nothing else was examined",
        advice="leave the nodes as they are, and look again once a broker runs, or with cluster.generation: legacy",
    )


def _check_topics(facts: RegistryFacts) -> Iterator[Finding]:
    for topic, view in sorted(facts.topics.items()):
        if view is not None and view.problem is not None:
            yield Finding(
                severity=Severity.CRITICAL,
                kind="topic-unreadable",
                where=topic_path(topic),
                detail=f"{view.problem}: no member can tell the topic's partitions, so that none is claimed again",
                advice="see what has written the node: only brokers write there, and each writes its own node anew "
                "when it starts"
                if facts.generation is Generation.LEGACY
                else "see what has written the node; a broker's controller log has the replicas that stood there",
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
                severity=Severity.CRITICAL,
                kind="member-without-session",
                where=where,
                detail="the node is persistent: no session holds it, and it never goes, though partitions are assigned "
                "to it",
                advice="delete the node; no client of Kafka or of ours makes one like it",
            )
        if member.problem is not None:
            yield Finding(
                severity=Severity.CRITICAL,
                kind="member-unreadable",
                where=where,
                detail=f"{member.problem}; held by {_holder(facts, member.session_id)}. Every Java member's rebalance "
                "fails",
                advice="find the process behind that session and stop it, or delete the node",
            )
    for consumer, member in sorted(consumers.items()):
        if _LINGERING.fullmatch(consumer[-9:]) and (older := consumers.get(ConsumerId(consumer[:-9]))) is not None:
            yield Finding(
                severity=Severity.WARNING,
                kind="duplicate-consumer-id",
                where=id_path(facts.group, consumer),
                detail=f"{older.consumer} is registered by session {older.session_id:#x} and again, with a suffix, by "
                f"{member.session_id:#x}: two processes have the same group.consumer_id, or one has crashed and come "
                "back",
                advice="give each process a group.consumer_id of its own; after a crash it passes with the old session",
            )
    for session_id, names in sorted(sessions.items()):
        if session_id and len(names) > 1:
            yield Finding(
                severity=Severity.WARNING,
                kind="session-with-two-members",
                where=ids_path(facts.group),
                detail=f"session {session_id:#x} has registered {len(names)} members: {join_few(names)}",
                advice="a client that shares one session, or that has registered twice; restart it if it owns too "
                "little",
            )


def _check_disagreements(facts: RegistryFacts, strategy: Strategy) -> Iterator[Finding]:
    for one in plan_disagreements(facts.snapshot, strategy):
        if one.kind is not DisagreementKind.UNREADABLE:  # _check_members yields it, with its session
            yield Finding(
                severity=Severity.WARNING,
                kind="members-disagree",
                where=id_path(facts.group, ConsumerId(one.member)) if one.member else ids_path(facts.group),
                detail=f"{one.kind.value}: {one.detail}",
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
                severity=Severity.CRITICAL,
                kind="owner-without-session",
                where=node.path,
                detail=f"the node is persistent and says {_text(node)}: no session holds it, so that it never goes and "
                "no member can claim the partition",
                advice="delete the node",
            )
            continue
        consumer = _find_consumer(node, sessions)
        if consumer not in sessions:
            yield Finding(
                severity=Severity.CRITICAL,
                kind="owner-not-registered",
                where=node.path,
                detail=f"{_text(node)} owns it, and no such member is registered; held by {_holder(facts, session_id)}",
                advice="it goes with the session. If it stays, the process behind the session has lost its "
                "registration: restart it",
            )
        elif sessions[consumer] != session_id:
            yield Finding(
                severity=Severity.WARNING,
                kind="owner-of-another-session",
                where=node.path,
                detail=f"{_text(node)} owns it in session {session_id:#x}, while {consumer} is registered by "
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
        then = (
            "see its status page"
            if sessions[consumer] in facts.our_sessions
            else "restart that member: a Java member that has used up rebalance.max.retries owns nothing until the "
            "group changes"
        )
        yield Finding(
            severity=Severity.CRITICAL,
            kind="partitions-unowned",
            where=owners_root(facts.group),
            detail=f"without an owner: {counted(len(partitions), 'partition')} of {consumer}, session "
            f"{sessions[consumer]:#x}: {join_few(partitions)}",
            advice=f"{AGAIN}. Then {then}",
        )
    live = {
        partition: holder for partition, holder in holders.items() if consumer_of(ThreadId(holder.thread)) in sessions
    }
    for one in plan_owner_disagreements(facts.snapshot, strategy, live, ConsumerId("")):
        if one.kind is DisagreementKind.STRATEGY:
            yield Finding(
                severity=Severity.WARNING,
                kind="owners-not-as-planned",
                where=owners_root(facts.group),
                detail=one.detail,
                advice=f"{AGAIN}. Then make group.assignor the partition.assignment.strategy of the other members",
            )


# -- positions and requests


def _check_offsets(facts: RegistryFacts) -> Iterator[Finding]:
    for entry in facts.offsets:
        if (misplaced := _check_place(facts, entry, "stored position")) is not None:
            yield misplaced
        if entry.partition is not None and entry.partition.is_legacy and facts.generation is not Generation.LEGACY:
            continue  # a byte offset of 0.7, which no member here reads
        position = entry.position
        if position.validity is Validity.MALFORMED and entry.partition is not None:
            yield Finding(
                severity=Severity.CRITICAL,
                kind="position-malformed",
                where=entry.path,
                detail=f"{position.explain()}: the next owner of the partition stops it, unless landed files say "
                "where to continue",
                advice="say where to go on: consumerd offsets set",
            )
        if position.validity is Validity.ANOTHER_INCARNATION and position.token is not None:
            yield Finding(
                severity=Severity.WARNING,
                kind="position-of-older-topic",
                where=entry.path,
                detail=f"{position.explain()} (by transaction {position.token.mark}, the topic by "
                f"{position.incarnation})",
                advice="consumerd begins at the earliest offset; a Java member takes the position as it is",
            )


def _check_rights(facts: RegistryFacts) -> Iterator[Finding]:
    for topic, denial in sorted(facts.denied.items()):
        yield Finding(
            severity=Severity.CRITICAL,
            kind="topic-denied",
            where=denial.path,
            detail=f"topic {topic} cannot be consumed with the credentials given here: {denial}",
            advice=denial.advise(),
        )
    if facts.open_folders:
        yield Finding(
            severity=Severity.NOTICE,
            kind="group-open",
            where=join_few(facts.open_folders),
            detail="everybody may take partitions and move positions here, and cluster.zookeeper_acl would protect such "
            "nodes: they are older than it, or a member without an identity has created them",
            advice="if every member authenticates as the same user, in zkCli.sh of ZooKeeper 3.5 or later: "
            + "; ".join(f"setAcl -R {folder} {facts.protecting_acl}" for folder in facts.open_folders),
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
                severity=Severity.CRITICAL,
                kind="request-malformed",
                where=node.path,
                detail=f"{error}: no member carries it out",
                advice="delete the node, and ask again: consumerd offsets set",
            )
            continue
        wish = f"{request.author} wants {node.partition} to go on at {request.position}"
        if misplaced is None and node.topic not in subscribed:
            yield Finding(
                severity=Severity.WARNING,
                kind="request-without-subscriber",
                where=node.path,
                detail=f"{wish}, and no member subscribes to {node.topic}",
                advice="start a member that does, or delete the node",
            )
        elif misplaced is None and (age_ms := facts.wall_ms - node.stat.mtime_ms) > _PENDING_MS:
            holder = facts.holders().get(node.partition)
            held = _holder(facts, holder.session_id) if holder is not None else "nobody"
            foreign = holder is not None and holder.session_id not in facts.our_sessions
            yield Finding(
                severity=Severity.WARNING,
                kind="request-pending",
                where=node.path,
                detail=f"{wish}; it waits for {age_ms // 1000} s, and the partition is held by {held}",
                advice="a Java member carries no request out: stop it, or let a member of ours own the partition"
                if foreign
                else "the owner carries it out as soon as the partition delivers: see its status page",
            )


def _check_roots(facts: RegistryFacts) -> Iterator[Finding]:
    for path, root in sorted(facts.roots.items()):
        if not _ROOT.fullmatch(root):
            yield Finding(
                severity=Severity.CRITICAL,
                kind="root-malformed",
                where=path,
                detail=f"{root[:80]!r} is no root that a sink has recorded: the sink refuses its path",
                advice=f"write the root that stands in {ROOT_RECORD} at the sink's path, or delete the node",
            )


def _check_place(facts: RegistryFacts, node: PartitionNode | StoredEntry, kind: str) -> Finding | None:
    """Return a finding if a node's name is not an existing partition, else None."""
    if node.partition is None:
        return Finding(
            severity=Severity.WARNING,
            kind=f"{kind.replace(' ', '-')}-misnamed",
            where=node.path,
            detail=f"its name is no partition's; held by {_holder(facts, node.session_id)}",
            advice="delete the node unless some tool of yours needs it; members pass over it",
        )
    view = facts.topics.get(node.topic)
    if view is not None and (view.problem is not None or facts.has(node.partition)):
        return None  # an unreadable topic's partitions are unknown; _check_topics yields it
    if facts.generation is Generation.LEGACY:
        if (strange := check_legacy_place(facts, node, kind)) is not None or facts.is_away(node.partition):
            return strange
    elif node.partition.is_legacy:
        return Finding(
            severity=Severity.NOTICE,
            kind=f"{kind.replace(' ', '-')}-of-older-kafka",
            where=node.path,
            detail=f"a {kind} under a name with a broker, as Kafka 0.7 (and, for owners, pykafka) makes them; members "
            "of 0.8 and later pass over it",
            advice="nothing: it does no harm. Keep it while any client of 0.7 may still use this ZooKeeper",
        )
    lacking = (
        f"topic {node.topic}" if view is None else f"partition {node.partition} ({len(view.partitions)} there are)"
    )
    return Finding(
        severity=Severity.WARNING,
        kind=f"{kind.replace(' ', '-')}-without-partition",
        where=node.path,
        detail=f"a {kind}, and there is no {lacking}",
        advice="delete the node if the topic was deleted permanently" + (
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
    """Return the member that an owner node names.

    The node holds a thread of the member, or the member's id, as clients in Go write it.
    """
    text = node.data.decode(errors="replace")
    return ConsumerId(text) if text in known else consumer_of(ThreadId(text))


def _text(node: Node) -> str:
    return repr(node.data.decode(errors="replace")[:200])
