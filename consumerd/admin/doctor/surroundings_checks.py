# SPDX-License-Identifier: Apache-2.0
"""Checks of a daemon's landing folders, clock and HTTP port, for ``consumerd doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from consumerd.admin.doctor.findings import join_few
from consumerd.admin.doctor.surroundings import ClockFacts, DaemonFacts, FolderFacts, MetricsFacts, TroubledPartition
from consumerd.delivery.status import DeliveryState
from consumerd.landing.findings import Finding, Severity
from consumerd.zk.layout import group_path
from consumerd.zk.rights import Denial

LEAST_FREE_SHARE: Final = 0.05
"""Share of a file system's bytes, or of its inodes, below which the doctor warns."""
MOST_SKEW_MS: Final = 5_000
"""Difference between this machine's clock and ZooKeeper's, in ms, above which the doctor warns.

Lag in seconds, and positions found by time, are wrong by such a difference.
"""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_ABILITIES: Final[Mapping[str, str]] = {
    "write": "nothing can be landed there",
    "fsync": "nothing that is landed is durable, and so nothing is acknowledged",
    "link": "files are published by link(2), so that two writers never overlap: nothing can be landed there",
    "fsync of the folder": "names of landed files are not durable, and so nothing is acknowledged",
    "statvfs": "how much is free cannot be told",
}
HTTP_OFF: Final = Finding(
    severity=Severity.NOTICE,
    kind="http-off",
    where="http.listen",
    detail="it is off: there are no metrics, and which partitions are stopped or failing is not known",
    advice="listen on loopback at least; else look for partition_stopped, and for warnings, in the log",
)
"""Finding for settings without a status port."""


_GIVE_RIGHTS: Final = (
    "give the daemon's user the right, or the sink a path on a local file system, NFS 3 or 4, or the like. "
    "Run the doctor as the daemon's user"
)
_MAKE_ROOM: Final = "make room on the volume: partitions go on by themselves"


def check_folder(folder: FolderFacts, user: str) -> Iterator[Finding]:
    """Yield problems with a landing folder: file operations that failed, and low space.

    File sinks write their files there.

    Args:
        folder: Result of trying the operations.
        user: Name of the user that tried them.
    """
    where = f"{folder.setting}: {folder.path}"
    at = "" if folder.tried == folder.path else f" (the path is still to be made; its parent {folder.tried} was tried)"
    for ability, failure in folder.failures.items():
        if ability == "flock":
            yield Finding(
                severity=Severity.NOTICE,
                kind="folder-without-flock",
                where=where,
                detail=f"{failure}{at}: landing does without, and tables of consumerd-spark on this file system do not",
                advice="keep tables on another file system",
            )
            continue
        yield Finding(
            severity=Severity.WARNING if ability == "statvfs" else Severity.CRITICAL,
            kind="folder-not-usable",
            where=where,
            detail=f"{failure}{at}, as user {user}: {_ABILITIES[ability]}",
            advice=_MAKE_ROOM if _is_full(folder) else _GIVE_RIGHTS,
        )
    if folder.refused:
        yield Finding(
            severity=Severity.CRITICAL,
            kind="partition-folder-not-usable",
            where=where,
            detail=f"user {user} may not list and write {join_few(folder.refused)}: nothing can be landed there",
            advice="give the daemon's user both rights (chown or chmod), or mount the volume writable. Run the doctor "
            "as the daemon's user",
        )
    yield from _check_space(folder, where)


def _is_full(folder: FolderFacts) -> bool:
    return any(total and not free for free, total in folder.space.values())


def _check_space(folder: FolderFacts, where: str) -> Iterator[Finding]:
    for kind, (free, total) in folder.space.items():
        if total == 0 or free >= total * LEAST_FREE_SHARE:
            continue
        yield Finding(
            severity=Severity.WARNING if free else Severity.CRITICAL,
            kind=f"disk-short-of-{kind}",
            where=where,
            detail=f"{free} of {total} {kind} are free, less than {LEAST_FREE_SHARE:.0%}: when none is left, "
            "partitions stand still, and nothing is lost",
            advice="move or delete older landed files, never the newest of a partition's; or enlarge the volume"
            + ("" if kind == "bytes" else ". Larger roll_ms and roll_bytes make fewer files"),
        )


def check_clocks(group: str, clocks: ClockFacts) -> Iterator[Finding]:
    """Yield a problem if this machine's clock differs from ZooKeeper's, or was not compared.

    A difference is reported if it is more than 5 s, after subtracting the error of the comparison.

    Args:
        group: Consumer group; the problem is reported for the path of its znode.
    """
    if clocks.ahead_ms is None:
        yield Finding(
            severity=Severity.NOTICE,
            kind="clock-unknown",
            where=group_path(group),
            detail=f"this machine's clock could not be compared with ZooKeeper's: {clocks.problem}",
            advice="see that both are kept by NTP",
        )
    elif abs(clocks.ahead_ms) - clocks.within_ms > MOST_SKEW_MS:
        way = "ahead of" if clocks.ahead_ms > 0 else "behind"
        yield Finding(
            severity=Severity.WARNING,
            kind="clock-differs",
            where=group_path(group),
            detail=f"this machine's clock is {abs(clocks.ahead_ms) / 1000:.1f} s {way} that of ZooKeeper's leader "
            f"(within {clocks.within_ms} ms): lag in seconds, and positions by time, are wrong where clocks of "
            "machines differ",
            advice="see which of the two is wrong, and keep both by NTP",
        )


def check_metrics(metrics: MetricsFacts) -> Iterator[Finding]:
    """Yield problems with the address at which the daemon serves metrics (``http.listen``).

    The doctor cannot check if alerts reach an operator; the text of each problem says so.
    """
    where = f"http.listen: {metrics.address[0]}:{metrics.address[1]}"
    unseen = "Whether Prometheus scrapes it, and whether an alert reaches a person, cannot be seen from here"
    if metrics.foreign:
        yield Finding(
            severity=Severity.WARNING,
            kind="metrics-of-another",
            where=where,
            detail=f"{metrics.problem}: something else listens there, and the daemon cannot. {unseen}",
            advice="stop it, or give http.listen another port",
        )
    elif metrics.problem:
        yield Finding(
            severity=Severity.NOTICE,
            kind="metrics-silent",
            where=where,
            detail=f"{metrics.problem}: no daemon of these settings runs on this machine, or it does not answer. Which "
            f"partitions are stopped or failing is not known. {unseen}",
            advice="run the doctor on the machine of a daemon, in a pod by kubectl exec; then see Prometheus' page of "
            "targets",
        )
    elif metrics.address[0] in _LOOPBACK:
        yield Finding(
            severity=Severity.NOTICE,
            kind="metrics-on-loopback",
            where=where,
            detail=f"/metrics answers on this machine alone. {unseen}",
            advice="nothing if Prometheus runs here, or by a side-car; else listen on an address that it reaches",
        )


def check_daemon(daemon: DaemonFacts, group: str) -> Iterator[Finding]:
    """Yield problems for stopped or failing partitions of the running daemon.

    Partitions with the same reason share one problem.

    Args:
        daemon: Status that the daemon has answered.
        group: Consumer group that is examined.
    """
    where = f"http.listen: {daemon.address[0]}:{daemon.address[1]}"
    if daemon.problem:
        yield Finding(
            severity=Severity.WARNING,
            kind="status-unreadable",
            where=where,
            detail=f"{daemon.problem}: which partitions are stopped or failing is not known",
            advice="look at the daemon's status page; is it of the release that this doctor is of?",
        )
    elif daemon.group != group:
        yield Finding(
            severity=Severity.WARNING,
            kind="metrics-of-another",
            where=where,
            detail=f"a daemon of group {daemon.group!r} listens there, and one of group {group!r} cannot",
            advice="stop it, or give http.listen another port",
        )
    else:
        same: dict[tuple[str, str], list[TroubledPartition]] = {}
        for one in daemon.troubled:
            same.setdefault((one.state, one.reason), []).append(one)
        for (state, reason), some in same.items():
            stopped = state == DeliveryState.STOPPED
            yield Finding(
                severity=Severity.CRITICAL if stopped else Severity.WARNING,
                kind="partition-stopped" if stopped else "partition-failing",
                where=join_few(one.name for one in some),
                detail=f"{state} since {min(one.since for one in some)}: {reason}",
                advice="by what the reason says: docs/operations.md, "
                + ("A stopped partition" if stopped else "ConsumerdPartitionFailing; it is tried again"),
            )


def check_member_rights(denied: Mapping[str, Denial]) -> Iterator[Finding]:
    """Yield problems for znodes that every member creates, and that these credentials may not create.

    Args:
        denied: Refusal of ZooKeeper by the path of the parent znode, such as the group's ``ids``.
    """
    for path, denial in sorted(denied.items()):
        yield Finding(
            severity=Severity.CRITICAL,
            kind="member-denied",
            where=denial.path,
            detail=f"no member can join or work with the credentials given here, since it makes nodes below {path}: "
            f"{denial}",
            advice=denial.advise(),
        )
