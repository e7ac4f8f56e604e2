# SPDX-License-Identifier: Apache-2.0
"""Is each path ours and whole, and do its chains go on where the group does? Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from consumerd.admin.doctor.facts import HiddenLeftover, LandingFacts, RegistryFacts
from consumerd.admin.doctor.findings import Finding, Severity, join_few
from consumerd.landing.chain import ROOT_RECORD
from consumerd.landing.publish import Chain
from consumerd.model import Gap, Incarnation, TopicPartition
from consumerd.zk.znodes import MalformedZnode, parse_offset

PATH_REFUSED: Final = frozenset({"path-unreadable", "path-of-another", "path-not-the-recorded-one"})
"""Findings about a path that a sink refuses."""


def check_landing(facts: RegistryFacts, landing: LandingFacts) -> list[Finding]:
    """Return what is wrong with one path, and, if it is ours, with what lies below it."""
    found = list(_check_root(facts, landing))
    if any(one.severity is Severity.ERROR for one in found):
        return found
    found += [
        Finding(
            severity=Severity.ERROR,
            check="chain-damaged",
            where=str(landing.path),
            what=f"{partition}: {problem}",
            advice="until it is mended, the partition does not go on",
        )
        for partition, problem in sorted(landing.problems.items())
    ]
    missing = dict(_find_missing(facts, landing))
    for partition, gap in sorted(missing.items()):
        found.append(_describe_missing(landing, partition, gap))
    for partition, chain in sorted(landing.chains.items()):
        found += _check_chain(facts, partition, chain, missing.get(partition))
    return [*found, *_check_leftovers(facts, landing)]


def _find_missing(facts: RegistryFacts, landing: LandingFacts) -> Iterator[tuple[TopicPartition, Gap]]:
    """Yield what was landed here once and is not there any more, of topics as they are now.

    Ends were read before the chains, which only grow: an owner that is at work cannot make it look so.
    """
    for (root, partition), landed in facts.landed_ends.items():
        view = facts.topics.get(partition.topic)
        ours = landing.root is not None and landing.root.root == root and partition not in landing.problems
        if not ours or view is None or view.czxid != landed.incarnation.czxid:
            continue
        chain = landing.chains.get(partition)
        if chain is None or chain.record.incarnation.czxid != view.czxid:
            missing = landed.find_missing(chain=0, end=landed.origin)
        else:
            missing = landed.find_missing(chain=chain.number, end=chain.end)
        if missing is not None:
            yield partition, missing


def _describe_missing(landing: LandingFacts, partition: TopicPartition, missing: Gap) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        check="landed-file-missing",
        where=str(landing.path),
        what=f"{partition}: the file with offsets {missing.start} to {missing.end - 1} was published here and is not there "
        "any more: the newest file of a partition must stay",
        advice="restore it from a copy before a member starts; where that is too late, read the records again while brokers "
        f"retain them: consumerd offsets set {partition}={missing.start}",
    )


def _check_root(facts: RegistryFacts, landing: LandingFacts) -> Iterator[Finding]:
    where = f"{landing.setting}: {landing.path}"
    root = landing.root
    if landing.problem is not None:
        yield Finding(
            severity=Severity.ERROR,
            check="path-unreadable",
            where=where,
            what=landing.problem,
            advice="let the daemon's user read and write there",
        )
    elif root is not None and (root.cluster, root.group) != (facts.cluster_id, facts.group):
        yield Finding(
            severity=Severity.ERROR,
            check="path-of-another",
            where=where,
            what=f"it belongs to group {root.group!r} of cluster {root.cluster}, and this is group {facts.group!r} of "
            f"cluster {facts.cluster_id}: it is refused",
            advice="give the sink another path; or is cluster.zookeeper another cluster than before?",
        )
    elif landing.recorded_root is not None and (root is None or root.root != landing.recorded_root):
        found = f"has root {root.root}" if root else f"has no {ROOT_RECORD}" if landing.there else "is not there"
        yield Finding(
            severity=Severity.ERROR,
            check="path-not-the-recorded-one",
            where=where,
            what=f"it {found}, and {landing.recorded_at} records root {landing.recorded_root}: it is refused",
            advice="mount the volume that was there before; if this one takes its place for good, delete that node",
        )


def _check_chain(
    facts: RegistryFacts, partition: TopicPartition, chain: Chain, missing: Gap | None
) -> Iterator[Finding]:
    view = facts.topics.get(partition.topic)
    if view is None:
        return  # landed of a topic that is gone: that is what landing is for
    now = Incarnation(view.czxid)
    if chain.record.incarnation.czxid > now.czxid:
        yield Finding(
            severity=Severity.ERROR,
            check="chain-of-later-topic",
            where=str(chain.folder),
            what=f"it is of incarnation {chain.record.incarnation}, later than {now}, the topic's own: ZooKeeper has lost "
            "data, or the path is another cluster's",
            advice="give the sink a new path",
        )
        return
    if chain.record.incarnation.czxid < now.czxid:
        yield Finding(
            severity=Severity.NOTICE,
            check="chain-of-older-topic",
            where=str(chain.folder),
            what=f"it is of incarnation {chain.record.incarnation}, and topic {partition.topic} was made again ({now})",
            advice="nothing: whoever claims the partition begins the next chain at the earliest offset",
        )
        return
    yield from _check_end(facts, partition, chain, chain.end if missing is None else missing.end)


def _check_end(facts: RegistryFacts, partition: TopicPartition, chain: Chain, landed: int) -> Iterator[Finding]:
    """Compare what was landed with the committed position, unless its owner is at work and moves both."""
    node = next((node for node in facts.offsets if node.partition == partition), None)
    if node is None or partition in facts.holders():
        return
    try:
        committed = parse_offset(node.data)
    except MalformedZnode:
        return
    if committed > landed:
        yield Finding(
            severity=Severity.WARNING,
            check="committed-beyond-chain",
            where=str(chain.folder),
            what=f"what was landed ends at {landed}, and {committed} is committed: {committed - landed} offsets were consumed "
            "by a member that lands nothing here, or the path is an older copy",
            advice="if another member consumed them, nothing: a gap is recorded. Else restore the files from a copy before "
            "a member starts",
        )
    elif committed < chain.end:
        yield Finding(
            severity=Severity.NOTICE,
            check="committed-behind-chain",
            where=str(chain.folder),
            what=f"it ends at {chain.end}, and only {committed} is committed: a commit was lost, or somebody has moved the "
            "position back without a request",
            advice="nothing: the chain wins. To read records again ask for it: consumerd offsets set",
        )


def _check_leftovers(facts: RegistryFacts, landing: LandingFacts) -> Iterator[Finding]:
    claimed_ms = {node.partition: node.stat.ctime_ms for node in facts.owners if node.partition is not None}
    stale: list[HiddenLeftover] = []
    waiting: list[HiddenLeftover] = []
    for one in landing.leftovers:
        since_ms = claimed_ms.get(one.partition)
        if since_ms is None:
            waiting.append(one)
        elif one.modified_ms < since_ms:
            stale.append(one)
    if stale:
        yield Finding(
            severity=Severity.WARNING,
            check="leftovers-older-than-claim",
            where=str(landing.path),
            what=f"{len(stale)} unpublished files are older than the claims of their partitions, whose owners should have "
            f"removed them: {join_few(one.path.relative_to(landing.path) for one in stale)}",
            advice="the owners land elsewhere (a Java member, or another path). Delete them if no member lands here",
        )
    if waiting:
        yield Finding(
            severity=Severity.NOTICE,
            check="leftovers",
            where=str(landing.path),
            what=f"{len(waiting)} unpublished files of partitions that nobody owns, left by members that died: "
            f"{join_few(one.path.relative_to(landing.path) for one in waiting)}",
            advice="nothing: whoever claims the partition next removes them",
        )
