"""How often a partition's log has lost its end, in state that all members of the group share.

After an unclean leader election the same offsets are other records, so that what is landed from there on is of the
incarnation's next truncation (``model.Incarnation``). The number stands in a JSON object at
``/consumers/G/consumerd/truncations/T/P``::

    {"format": 1, "incarnation": "7", "truncation": 1, "position": 30, "voids": 4242}

``incarnation`` is the topic's ``czxid``: a note about a deleted topic of the same name says nothing. ``position`` is where
delivery goes on, ``voids`` the ZooKeeper transaction (``mzxid``) that wrote the committed position which the truncation made
void, 0 where there was none.

It is written before anything is done about the truncation (a chain begun, a position committed), in the claim's session or
not at all. So whoever finds the partition next, after a crash at any point and with whatever folder of its own, knows
that an older chain's end counts no more; and while the offset node is still the one that is void, where to go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from consumerd.aio.sharing import SharedReads
from consumerd.errors import CoordinationError
from consumerd.model import Claim, TopicPartition
from consumerd.offsets.store import LogTruncation
from consumerd.zk.layout import truncation_path, truncations_path
from consumerd.zk.listing import list_names
from consumerd.zk.port import ZkClient

_FORMAT: Final = 1


class ZooKeeperLogTruncations:
    """The truncations that members of one group have met."""

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._group = group
        self._list_names = SharedReads[str, Sequence[str]](lambda topic: list_names(zk, truncations_path(group, topic)))

    async def find(self, claim: Claim) -> LogTruncation | None:
        """Return the last truncation of the claimed topic's partition; None where there was none.

        Raises CoordinationError, also for a node that cannot be read: to take it for none would give records that differ
        the same identity.
        """
        # hardly ever is there one: partitions that look at the same time share a read of their topic's folder
        if str(claim.partition.partition) not in await self._list_names(claim.partition.topic):
            return None
        found = await self._zk.find(self._path(claim.partition))
        if found is None:
            return None
        return self._parse(claim, found[0])

    async def note(self, claim: Claim, truncation: LogTruncation) -> None:
        """Note a truncation, in the session of the claim.

        Raises CoordinationError: what is there is higher, or nobody can tell whether it was written. Then look again: what
        was noted is found.
        """
        path = self._path(claim.partition)
        data = _encode(claim, truncation)
        found = await self._zk.find(path)
        if found is None:
            await self._zk.ensure_path(truncations_path(self._group, claim.partition.topic))
            await self._zk.create(path, data, epoch=claim.epoch)
            return
        known = self._parse(claim, found[0])
        if known is not None and known.number > truncation.number:
            raise CoordinationError(f"{path}: truncation {known.number} was noted meanwhile; looking again")
        await self._zk.set(path, data, version=found[1].version, epoch=claim.epoch)

    def _path(self, partition: TopicPartition) -> str:
        return truncation_path(self._group, partition)

    def _parse(self, claim: Claim, data: bytes) -> LogTruncation | None:
        try:
            payload: object = json.loads(data.decode())
            if not isinstance(payload, dict) or payload.get("format") != _FORMAT:
                raise ValueError(f"no object of format {_FORMAT}")  # noqa: TRY301 - one text for all that is wrong
            incarnation = payload.get("incarnation")
            if not isinstance(incarnation, str):
                raise ValueError(f"incarnation {incarnation!r}")  # noqa: TRY301, TRY004 - as above
            truncation = LogTruncation(
                number=_count(payload, "truncation"),
                position=_count(payload, "position"),
                voids=_count(payload, "voids"),
            )
        except (ValueError, RecursionError) as error:
            raise CoordinationError(
                f"{self._path(claim.partition)} says how often the log has lost its end, and cannot be read ({error}); restore "
                'it, or put there {"format": 1, "incarnation": "'
                f'{claim.incarnation.czxid}", "truncation": N, "position": 0, "voids": 0}} with N higher than that of any '
                "chain landed of the partition"
            ) from error
        return truncation if incarnation == str(claim.incarnation.czxid) else None


def _encode(claim: Claim, truncation: LogTruncation) -> bytes:
    fields = {
        "format": _FORMAT,
        "incarnation": str(claim.incarnation.czxid),
        "truncation": truncation.number,
        "position": truncation.position,
        "voids": truncation.voids,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _count(payload: Mapping[str, object], key: str) -> int:
    value = payload.get(key)
    # a bool is an int to Python, not to whoever reads the node
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} {value!r}, expected a number from 0 on")
    return value
