# SPDX-License-Identifier: Apache-2.0
"""Truncations of partitions' logs, recorded in ZooKeeper for all members of the group.

After an unclean leader election, offsets above the truncation are other records. Truncations of a topic's incarnation
are numbered, and records landed after one have its number (:class:`consumerd.model.Incarnation`). The number is part of
a JSON object at ``/consumers/G/consumerd/truncations/T/P``::

    {"format": 1, "incarnation": "7", "truncation": 1, "position": 30, "voids": 4242}

``incarnation`` is the topic's ``czxid``; a record of a deleted topic with the same name is ignored. ``position`` is the
position at which delivery resumes. ``voids`` identifies the committed position that the truncation invalidated, by the
transaction (``mzxid``) that wrote its node in ZooKeeper; it is 0 if no position was committed.

A truncation is recorded before a chain is begun or a position is committed because of it, in the claim's session or not
at all. So after a crash at any point the next owner knows that the end of an older chain does not count. While the
invalidated position is still stored, the next owner also knows at which position to resume.

If ``offsets.on_above`` is ``stop``, an operator decides. ``/consumers/G/consumerd/truncations/T/P.lost`` then keeps the
evidence, which the log does not show any more once it has grown beyond the position again::

    {"format": 1, "incarnation": "7", "truncation": 1, "position": 80, "earliest": 0, "latest": 60, "voids": 4242}

``earliest`` and ``latest`` are the log's start offset and end offset when the log was found to end below the position:
here it was ``[0, 60)``, with position 80. The node stops the partition until a truncation with its number, or a higher
one, is recorded or landed; the node need not be removed. It is separate from ``T/P`` because older releases read
``T/P``, and would resume at its position under every policy.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from consumerd.aio.parallel import map_bounded
from consumerd.aio.sharing import SharedReads
from consumerd.errors import CoordinationError
from consumerd.model import Claim, Incarnation, PartitionKey, TopicPartition
from consumerd.offsets.store import KnownTruncations, LogTruncation, LostEnd, PositionToken
from consumerd.zk.layout import (
    LOST_END_SUFFIX,
    lost_end_path,
    topic_path,
    truncation_path,
    truncations_path,
    truncations_root,
)
from consumerd.zk.port import ZkClient, list_names

N = TypeVar("N")

_FORMAT: Final = 1


class ZooKeeperLogTruncations:
    """Recorded truncations of the logs of one group's partitions, in ZooKeeper.

    Args:
        in_session: True if each record is written in the ZooKeeper session of its claim or not at all. False for
            members that brokers coordinate: the claim is checked right before the write instead.
    """

    def __init__(self, zk: ZkClient, group: str, *, in_session: bool = True) -> None:
        self._zk = zk
        self._in_session = in_session
        self._group = group
        self._list_names = SharedReads[str, Sequence[str]](lambda topic: list_names(zk, truncations_path(group, topic)))

    async def find(self, claim: Claim) -> KnownTruncations:
        """Return the recorded truncations of the claimed partition's log.

        Raises CoordinationError, also for a node that cannot be parsed: without its number, records before and after
        the truncation could not be told apart.
        """
        # truncations are rare: partitions that look at the same time share one read of their topic's folder
        names = frozenset(await self._list_names(claim.partition.topic))
        last = await self._read(self._path(claim.partition), names)
        lost = await self._read(self._lost_path(claim.partition), names)
        return KnownTruncations(
            last=None if last is None else self._parse(claim, last),
            lost_end=None if lost is None else self._parse_lost(claim, lost),
        )

    async def note(self, claim: Claim, truncation: LogTruncation) -> None:
        """Record a truncation in the session of the claim.

        Raises CoordinationError if a higher number is recorded, or if the result of the write is unknown. Then read the
        record again.
        """
        path = self._path(claim.partition)
        found = await self._zk.find(path)
        known = None if found is None else self._parse(claim, found[0])
        if known is not None and known.number > truncation.number:
            raise CoordinationError(f"{path}: truncation {known.number} was noted meanwhile; looking again")
        await self._write(claim, path, _encode(claim, truncation), None if found is None else found[1].version)

    async def note_lost_end(self, claim: Claim, lost: LostEnd) -> None:
        """Record a truncation that stops the partition until an operator decides.

        Idempotent. Raises CoordinationError.
        """
        path = self._lost_path(claim.partition)
        found = await self._zk.find(path)
        data = _encode_lost(claim, lost)
        if found is None or found[0] != data:
            await self._write(claim, path, data, None if found is None else found[1].version)

    async def _read(self, path: str, names: Collection[str]) -> bytes | None:
        if path.rpartition("/")[2] not in names:
            return None
        found = await self._zk.find(path)
        return None if found is None else found[0]

    async def _write(self, claim: Claim, path: str, data: bytes, version: int | None) -> None:
        if version is None:
            await self._zk.ensure_path(truncations_path(self._group, claim.partition.topic))
        if not self._in_session:
            claim.check()
        epoch = claim.epoch if self._in_session else None
        if version is None:
            await self._zk.create(path, data, epoch=epoch)
        else:
            await self._zk.set(path, data, version=version, epoch=epoch)

    def _path(self, partition: TopicPartition) -> str:
        return truncation_path(self._group, partition)

    def _lost_path(self, partition: TopicPartition) -> str:
        return lost_end_path(self._group, partition)

    def _parse(self, claim: Claim, data: bytes) -> LogTruncation | None:
        incarnation, truncation = _parse_truncation(self._path(claim.partition), data, claim.incarnation)
        return truncation if incarnation == str(claim.incarnation.czxid) else None

    def _parse_lost(self, claim: Claim, data: bytes) -> LostEnd | None:
        incarnation, lost = _parse_lost_end(self._lost_path(claim.partition), data)
        return lost if incarnation == str(claim.incarnation.czxid) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedStop:
    """A partition that is stopped because its log ended below the position.

    The record of that stops the partition for every owner, until an operator decides.

    Args:
        path: The ZooKeeper node that records the stop; empty if it is recorded with the position in Kafka.
        since_ms: When the node was written, in ms since the epoch; None if it is recorded in Kafka.
        lost: The position, and the log's start and end, when the log was found to end below the position. None if the
            node cannot be read; the partition is stopped even so.
        problem: Why the node cannot be read, and what to do; empty if it can.
    """

    path: str
    since_ms: int | None
    lost: LostEnd | None = None
    problem: str = ""

    def describe(self) -> str:
        """Return one sentence for operators about the position and the log's end."""
        if self.lost is None:
            return self.problem
        return (
            f"stopped: the log ended below the position. It was [{self.lost.earliest}, {self.lost.latest}) and the "
            f"position "
            f"{self.lost.position}; records that the log has got there since are others"
        )


async def list_noted_stops(
    zk: ZkClient,
    group: str,
    find_stored: Callable[[TopicPartition], PositionToken | None],
    topics: Collection[str] | None = None,
) -> dict[TopicPartition, NotedStop]:
    """Return the group's partitions that are stopped because their log ended below the position.

    A partition is not listed any more once delivery was allowed to resume (a truncation with the recorded number is
    recorded), another position is stored, or the topic is deleted. Raises CoordinationError.

    Args:
        find_stored: Returns the identity of the stored position from which members go on; None if there is none.
        topics: The topics whose partitions are examined; None for all.
    """
    named = await list_names(zk, truncations_root(group)) if topics is None else sorted(topics)
    partitions: set[TopicPartition] = set()
    for topic, names in (
        await map_bounded(named, lambda topic: list_names(zk, truncations_path(group, topic)))
    ).items():
        for name in names:
            with contextlib.suppress(ValueError):  # the name is no partition's
                partitions.add(TopicPartition(topic, PartitionKey.parse(name.removesuffix(LOST_END_SUFFIX))))
    found = await map_bounded(sorted(partitions), lambda one: _find_stop(zk, group, one, find_stored(one)))
    return {partition: stop for partition, stop in found.items() if stop is not None}


async def _find_stop(
    zk: ZkClient, group: str, partition: TopicPartition, stored: PositionToken | None
) -> NotedStop | None:
    last_path, lost_path = truncation_path(group, partition), lost_end_path(group, partition)
    topic = await zk.exists(topic_path(partition.topic))
    if topic is None:
        return None
    incarnation = Incarnation(topic.czxid)
    last, lost = await zk.find(last_path), await zk.find(lost_path)
    try:
        of, truncation = ("", None) if last is None else _parse_truncation(last_path, last[0], incarnation)
    except CoordinationError as error:
        assert last is not None
        return NotedStop(path=last_path, since_ms=last[1].mtime_ms, problem=str(error))
    if lost is None:
        return None
    stop = NotedStop(path=lost_path, since_ms=lost[1].mtime_ms)
    try:
        lost_of, end = _parse_lost_end(lost_path, lost[0])
    except CoordinationError as error:
        return replace(stop, problem=str(error))
    decided = truncation is not None and of == lost_of and truncation.number >= end.number
    counts = lost_of == str(incarnation.czxid) and not decided
    return replace(stop, lost=end) if counts and end.is_about(stored) else None


def _parse_truncation(path: str, data: bytes, incarnation: Incarnation) -> tuple[str, LogTruncation]:
    """Return a record's incarnation, and the truncation. Raises CoordinationError."""
    return _parse_note(
        path,
        data,
        lambda payload: LogTruncation(
            number=_count(payload, "truncation"),
            position=_count(payload, "position"),
            voids=_count(payload, "voids"),
        ),
        "how often the log was truncated",
        'restore it, or put there {"format": 1, "incarnation": "'
        f'{incarnation.czxid}", "truncation": N, "position": 0, "voids": '
        f"0}} with N higher than that of any chain landed of "
        "the partition",
    )


def _parse_lost_end(path: str, data: bytes) -> tuple[str, LostEnd]:
    """Return a record's incarnation, and the lost end. Raises CoordinationError."""
    return _parse_note(
        path,
        data,
        lambda payload: LostEnd(
            number=_count(payload, "truncation"),
            position=_count(payload, "position"),
            earliest=_count(payload, "earliest"),
            latest=_count(payload, "latest"),
            voids=_count(payload, "voids"),
        ),
        "that the log was truncated",
        "restore it, or say where to go on with `consumerd offsets set` and remove it then",
    )


def _parse_note(
    path: str, data: bytes, make: Callable[[Mapping[str, object]], N], says: str, advice: str
) -> tuple[str, N]:
    try:
        incarnation, payload = _read_payload(data)
        return incarnation, make(payload)
    except (ValueError, RecursionError) as error:
        raise CoordinationError(f"{path} says {says}, and cannot be read ({error}); {advice}") from error


def _read_payload(data: bytes) -> tuple[str, Mapping[str, object]]:
    """Return the incarnation and all fields. Raises ValueError, RecursionError."""
    payload: object = json.loads(data.decode())
    if not isinstance(payload, dict) or payload.get("format") != _FORMAT:
        raise ValueError(f"no object of format {_FORMAT}")
    incarnation = payload.get("incarnation")
    if not isinstance(incarnation, str):
        raise ValueError(f"incarnation {incarnation!r}")  # noqa: TRY004 - one type for all that is wrong
    return incarnation, payload


def _encode(claim: Claim, truncation: LogTruncation) -> bytes:
    fields = {
        "format": _FORMAT,
        "incarnation": str(claim.incarnation.czxid),
        "truncation": truncation.number,
        "position": truncation.position,
        "voids": truncation.voids,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _encode_lost(claim: Claim, lost: LostEnd) -> bytes:
    fields = {
        "format": _FORMAT,
        "incarnation": str(claim.incarnation.czxid),
        "truncation": lost.number,
        "position": lost.position,
        "earliest": lost.earliest,
        "latest": lost.latest,
        "voids": lost.voids,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _count(payload: Mapping[str, object], key: str) -> int:
    value = payload.get(key)
    # bool is a subclass of int, and `true` is no number in JSON
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} {value!r}, expected a number from 0 on")
    return value
