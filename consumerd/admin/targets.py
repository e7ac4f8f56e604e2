# SPDX-License-Identifier: Apache-2.0
"""New positions for ``consumerd offsets set``, ``import``, ``reset`` and ``shift``, checked before they are written.

They come from the command line, from a file, from the brokers (``reset``), or from the present positions (``shift``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.admin.away import describe_away, read_group_away
from consumerd.admin.inspection import choose_places, find_coordinated, follow_topics, list_group_topics, require_group
from consumerd.admin.message_boundaries import check_boundaries, find_boundaries, list_legacy
from consumerd.admin.offsets_export import OffsetsExport, check_origin
from consumerd.admin.offsets_import import ImportedOffsets
from consumerd.admin.operations import Target, check_targets, resolve_reset
from consumerd.admin.positions import find_named
from consumerd.client.legacy_boundaries import Boundary
from consumerd.client.opening import ClusterAccess
from consumerd.errors import ConfigError, CoordinationError
from consumerd.model import LogRange, TopicPartition
from consumerd.offsets.opening import open_positions
from consumerd.offsets.store import ZOOKEEPER_ONLY, Place

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTargets:
    """New positions of the partitions that a command names.

    Args:
        targets: Each partition with its new position.
        gone: Topics of the group that do not exist any more; they are left out.
        away: Sentences about partitions of the named topics whose broker is away; they are left out.
    """

    targets: Sequence[Target]
    gone: Sequence[str]
    away: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTargets(NamedTargets):
    """New positions for ``consumerd offsets reset``.

    Args:
        is_coarse: True if positions found by time may be too early, because a broker (before 0.10.1) knows only the
            times of log segments.
    """

    is_coarse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftTargets(NamedTargets):
    """New positions for ``consumerd offsets shift``.

    Args:
        notes: Sentences about shifts that the log's range has cut short, and about partitions without a position, which
            are left out.
    """

    notes: Sequence[str]


def collect_targets(typed: Iterable[Target], imported: ImportedOffsets | None) -> Sequence[Target]:
    """Join new positions typed on the command line with those of a file.

    Args:
        typed: New positions from the command line.
        imported: Positions of the file; None without a file.

    Raises ConfigError if a partition is named twice.
    """
    targets = [*typed, *(imported.targets if imported is not None else ())]
    seen: set[TopicPartition] = set()
    for target in targets:
        if target.partition in seen:
            raise ConfigError(f"{target.partition} is named twice")
        seen.add(target.partition)
    return targets


async def check_settable(
    access: ClusterAccess, targets: Sequence[Target], export: OffsetsExport | None, *, source: str, force: bool
) -> None:
    """Refuse new positions that are probably mistakes.

    A partition must exist. Without ``force`` its log must hold the position, in Kafka 0.6 and 0.7 a message must begin
    there, and an exported position must be of this cluster, and of a topic that was not created again since.

    Args:
        export: Exported document that the positions come from; None for other sources.
        source: Name of the exported file, for errors.

    Raises ConfigError, ConnectionLost if the range of a log cannot be read; in Kafka 0.6 and 0.7 also BrokerError,
    ProtocolError, and CorruptMessageError for a damaged message before the position.
    """
    named = await find_named(access, {target.partition for target in targets})
    if force:
        return
    if export is not None:
        check_origin(export, source=source, cluster=named.cluster, incarnations=named.incarnations)
    check_targets(targets, await access.ranges.find([target.partition for target in targets]))
    legacy = list_legacy(target.partition for target in targets)
    positions = {target.partition: target.position for target in targets if target.partition in legacy}
    check_boundaries(positions, await _find_boundaries(access, positions))


async def find_reset_targets(
    access: ClusterAccess, group: str, named: Collection[str | TopicPartition], to: str | int
) -> ResetTargets:
    """Return the new positions for ``consumerd offsets reset``.

    Args:
        named: Topics and partitions; empty for every topic of the group.
        to: ``earliest`` or ``latest`` for an end of the log, or a time in ms since the epoch.

    Raises ConfigError, NotFound if there is no such group.
    """
    found, gone, away = await _find_partitions(access, group, named)
    targets, is_coarse = await resolve_reset(access, found, to)
    return ResetTargets(targets=targets, gone=gone, away=away, is_coarse=is_coarse)


async def find_shift_targets(
    access: ClusterAccess,
    group: str,
    named: Collection[str | TopicPartition],
    by: int,
    places: Collection[Place] = ZOOKEEPER_ONLY,
) -> ShiftTargets:
    """Return the new positions for ``consumerd offsets shift``, kept within the logs.

    The positions from which members continue are shifted.

    Args:
        named: Topics and partitions; empty for every topic of the group.
        by: Number of offsets; below 0 to read records again.
        places: Stores in which members read committed positions: ZooKeeper, Kafka, or both.

    Raises ConfigError if no partition has a position, NotFound if there is no such group, CoordinationError if
    positions in Kafka cannot be read.
    """
    positions = open_positions(access.cluster, group)
    members = await find_coordinated(access, group)
    places = choose_places(members, places)
    await require_group(access, positions, members)
    partitions, gone, away = await _find_partitions(access, group, named)
    kept = await positions.find_kept(partitions)
    if any(kept.is_unknown(one, places) for one in partitions):
        raise CoordinationError(f"positions in Kafka are unknown, so they cannot be shifted: {kept.unknown}")
    ranges = await access.ranges.read(partitions)
    targets, notes = [], list[str]()
    shifted: dict[TopicPartition, int] = {}
    for partition in partitions:
        position = kept.find_counting(partition, places)
        if position.believed is None:
            notes.append(f"{partition} left out: {position.explain()}")
            continue
        target, note = clamp_shift(partition, position.believed, by, ranges[partition])
        shifted[partition] = target
        notes += [note] if note else []
    boundaries = await _find_boundaries(access, {one: shifted[one] for one in list_legacy(shifted)})
    for partition, target in shifted.items():
        boundary = boundaries[partition].after if partition in boundaries else target
        if boundary != target:
            notes.append(f"{partition}: {target} is inside of a message; moved to the next one, at {boundary}")
        targets.append(Target(partition=partition, position=boundary))
    if not targets:
        raise ConfigError("\n".join(["nothing to shift: no partition has a position", *notes[:_SHOWN]]))
    return ShiftTargets(targets=targets, gone=gone, away=away, notes=notes)


def clamp_shift(partition: TopicPartition, position: int, by: int, log: LogRange) -> tuple[int, str]:
    """Return a position shifted by ``by`` offsets, kept within the log, and a text.

    The text says that the log's start or end has cut the shift short; else it is empty.

    Example: position 4200 in the log [120, 5000), shifted by -5000, becomes 120.
    """
    wanted = position + by
    target = min(max(wanted, log.earliest), log.latest)
    if target == wanted:
        return target, ""
    end = "beginning" if target == log.earliest else "end"
    return target, f"{partition}: {wanted} is outside the log [{log.earliest}, {log.latest}]; moved to its {end}"


async def _find_boundaries(
    access: ClusterAccess, positions: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, Boundary]:
    timeout_s = access.cluster.address.request_timeout_s
    return await find_boundaries(access.pool, access.directory, positions, request_timeout_s=timeout_s)


async def _find_partitions(
    access: ClusterAccess, group: str, named: Collection[str | TopicPartition]
) -> tuple[Sequence[TopicPartition], Sequence[str], Sequence[str]]:
    """Return the named partitions, or the group's, and what is left out.

    That are the group's topics that are gone, and sentences about partitions that are away.
    """
    gone: list[str] = []
    if not named:
        topics = await _list_topics(access, group)
        named = await follow_topics(access, topics, missing_ok=True)
        gone = sorted(topics.difference(named))
    found = (await find_named(access, named)).partitions
    topics = {one for one in named if isinstance(one, str)}
    away = await read_group_away(access, group, topics) if topics else ()
    return found, gone, describe_away(away)


async def _list_topics(access: ClusterAccess, group: str) -> set[str]:
    kept = open_positions(access.cluster, group)
    await require_group(access, kept, await find_coordinated(access, group))
    topics = await list_group_topics(access, kept) | await kept.list_kafka_topics()
    if not topics:
        raise ConfigError(f"--all-topics: group {group} has no offsets, owners or members yet; name the topics")
    return topics
