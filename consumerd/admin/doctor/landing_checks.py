# SPDX-License-Identifier: Apache-2.0
"""Checks of landing folders: their owner, gaps in the written files, their end offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from consumerd.admin.doctor.facts import HiddenLeftover, LandingFacts, RegistryFacts
from consumerd.admin.doctor.findings import join_few
from consumerd.landing.chain import ROOT_RECORD
from consumerd.landing.findings import Finding, Severity
from consumerd.landing.publish import Chain
from consumerd.landing.resuming import LandedComparison
from consumerd.model import Gap, TopicPartition

PATH_REFUSED: Final = frozenset({"path-unreadable", "path-of-another", "path-not-the-recorded-one"})
"""Kinds of problems with a landing folder for which its sink refuses to start."""


def check_landing(facts: RegistryFacts, landing: LandingFacts) -> list[Finding]:
    """Return problems with a landing folder, and with the files of each partition in it.

    The landing folder is where a file sink writes its files. If the folder itself has a critical problem, its files are
    not checked.

    Args:
        facts: State of the group, with its committed positions.
        landing: State of the folder and of its files.
    """
    found = list(_check_root(facts, landing))
    if any(one.severity is Severity.CRITICAL for one in found):
        return found
    found += [
        Finding(
            severity=Severity.CRITICAL,
            kind="chain-damaged",
            where=str(landing.path),
            detail=f"{partition}: {problem}",
            advice="until it is repaired, the partition is not delivered",
        )
        for partition, problem in sorted(landing.problems.items())
    ]
    missing = dict(_find_missing(facts, landing))
    for partition, gap in sorted(missing.items()):
        committed = _find_committed(facts, partition)
        if committed is not None and committed <= gap.start:
            found.append(_describe_uncommitted(landing, partition, gap, committed))
        else:
            found.append(_describe_missing(landing, partition, gap))
    for partition, chain in sorted(landing.chains.items()):
        found += _check_chain(facts, partition, chain, missing.get(partition))
    return [*found, *_check_leftovers(facts, landing)]


def _find_missing(facts: RegistryFacts, landing: LandingFacts) -> Iterator[tuple[TopicPartition, Gap]]:
    """Yield offsets that were landed in this path, and whose files are missing now.

    Recorded ends were read before the chains. Chains only grow, so records that an owner lands in between cannot cause
    a finding.
    """
    for (root, partition), landed in facts.landed_ends.items():
        now = facts.find_incarnation(partition.topic)
        ours = landing.root is not None and landing.root.root == root and partition not in landing.problems
        if not ours or now is None or not now.is_same_topic(landed.incarnation):
            continue
        chain = landing.chains.get(partition)
        if chain is None or not chain.record.incarnation.is_same_topic(now):
            missing = landed.find_missing(chain=0, end=landed.origin)
        else:
            missing = landed.find_missing(chain=chain.number, end=chain.end)
        if missing is not None:
            yield partition, missing


def _describe_missing(landing: LandingFacts, partition: TopicPartition, missing: Gap) -> Finding:
    return Finding(
        severity=Severity.CRITICAL,
        kind="landed-file-missing",
        where=str(landing.path),
        detail=f"{partition}: the file with offsets {missing.start} to {missing.end - 1} was published here and is not "
        "there any more: the newest file of a partition must stay",
        advice="restore it from a copy before a member starts; where that is too late, read the records again while "
        f"brokers retain them: consumerd offsets set {partition}={missing.start}",
    )


def _describe_uncommitted(landing: LandingFacts, partition: TopicPartition, missing: Gap, committed: int) -> Finding:
    return Finding(
        severity=Severity.NOTICE,
        kind="landed-file-missing",
        where=str(landing.path),
        detail=f"{partition}: the file with offsets {missing.start} to {missing.end - 1} was published here and is not "
        f"there any more; position {committed} is committed, so that the next owner reads them again",
        advice="nothing, as long as the brokers retain them",
    )


def _check_root(facts: RegistryFacts, landing: LandingFacts) -> Iterator[Finding]:
    where = f"{landing.setting}: {landing.path}"
    root = landing.root
    if landing.problem is not None:
        yield Finding(
            severity=Severity.CRITICAL,
            kind="path-unreadable",
            where=where,
            detail=landing.problem,
            advice="let the daemon's user read and write there",
        )
    elif root is not None and (root.cluster, root.group) != (facts.cluster_id, facts.group):
        yield Finding(
            severity=Severity.CRITICAL,
            kind="path-of-another",
            where=where,
            detail=f"it belongs to group {root.group!r} of cluster {root.cluster}, and this is group {facts.group!r} "
            f"of cluster {facts.cluster_id}: it is refused",
            advice="give the sink another path; or is cluster.zookeeper another cluster than before?",
        )
    elif landing.recorded_root is not None and (root is None or root.root != landing.recorded_root):
        found = f"has root {root.root}" if root else f"has no {ROOT_RECORD}" if landing.there else "is not there"
        yield Finding(
            severity=Severity.CRITICAL,
            kind="path-not-the-recorded-one",
            where=where,
            detail=f"it {found}, and {landing.recorded_at} records root {landing.recorded_root}: it is refused",
            advice="mount the volume that was there before; if this one takes its place permanently, delete that node",
        )


def _check_chain(
    facts: RegistryFacts, partition: TopicPartition, chain: Chain, missing: Gap | None
) -> Iterator[Finding]:
    now = facts.find_incarnation(partition.topic)
    if now is None:
        return  # the topic is gone, and its landed files stay
    if chain.record.incarnation.is_later_topic(now):
        yield Finding(
            severity=Severity.CRITICAL,
            kind="chain-of-later-topic",
            where=str(chain.folder),
            detail=f"it is of incarnation {chain.record.incarnation}, later than {now}, the topic's own: ZooKeeper has "
            "lost data, or the path is another cluster's",
            advice="give the sink a new path",
        )
        return
    if not chain.record.incarnation.is_same_topic(now):
        yield Finding(
            severity=Severity.NOTICE,
            kind="chain-of-older-topic",
            where=str(chain.folder),
            detail=f"it is of incarnation {chain.record.incarnation}, and topic {partition.topic} was re-created "
            f"({now})",
            advice="nothing: the next owner of the partition begins the next chain at the earliest offset",
        )
        return
    yield from _check_end(facts, partition, chain, chain.end if missing is None else missing.end)


def _check_end(facts: RegistryFacts, partition: TopicPartition, chain: Chain, landed: int) -> Iterator[Finding]:
    """Compare the landed end with the committed position.

    Args:
        landed: The end of what was landed here once; files may be missing since.
    """
    committed = _find_committed(facts, partition)
    if committed is None:
        return
    not_landed = LandedComparison(committed, landed).not_landed
    if not_landed is not None:
        yield Finding(
            severity=Severity.WARNING,
            kind="committed-beyond-chain",
            where=str(chain.folder),
            detail=f"what was landed ends at {landed}, and {committed} is committed: {not_landed.size} offsets were "
            "consumed by a member that lands nothing here, or the path is an older copy",
            advice="if another member consumed them, nothing: a gap is recorded. Else restore the files from a copy "
            "before a member starts",
        )
    elif LandedComparison(committed, chain.end).not_committed is not None:
        yield Finding(
            severity=Severity.NOTICE,
            kind="committed-behind-chain",
            where=str(chain.folder),
            detail=f"it ends at {chain.end}, and only {committed} is committed: a process ended before it could "
            "commit, or the position was moved back without a request",
            advice="nothing: the chain wins. To read records again ask for it: consumerd offsets set",
        )


def _find_committed(facts: RegistryFacts, partition: TopicPartition) -> int | None:
    """Return the valid committed position of a partition without an owner.

    Returns None for a partition with an owner, since the owner may commit at any time.
    """
    found = facts.list_counting().get(partition)
    if found is None or partition in facts.holders() or partition in facts.coordinated:
        return None
    return found[1].believed


def _check_leftovers(facts: RegistryFacts, landing: LandingFacts) -> Iterator[Finding]:
    claimed_ms = {node.partition: node.stat.ctime_ms for node in facts.owners if node.partition is not None}
    stale: list[HiddenLeftover] = []
    waiting: list[HiddenLeftover] = []
    for one in landing.leftovers:
        if one.partition in facts.coordinated:
            continue  # when its owner has claimed it, the coordinator does not tell
        since_ms = claimed_ms.get(one.partition)
        if since_ms is None:
            waiting.append(one)
        elif one.modified_ms < since_ms:
            stale.append(one)
    if stale:
        yield Finding(
            severity=Severity.WARNING,
            kind="leftovers-older-than-claim",
            where=str(landing.path),
            detail=f"{len(stale)} unpublished files are older than the claims of their partitions, whose owners should "
            f"have removed them: {join_few(one.path.relative_to(landing.path) for one in stale)}",
            advice="the owners land elsewhere (a Java member, or another path). Delete them if no member lands here",
        )
    if waiting:
        yield Finding(
            severity=Severity.NOTICE,
            kind="leftovers",
            where=str(landing.path),
            detail=f"{len(waiting)} unpublished files of partitions without an owner, left by members that died: "
            f"{join_few(one.path.relative_to(landing.path) for one in waiting)}",
            advice="nothing: the next owner of the partition removes them",
        )
