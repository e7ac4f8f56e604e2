# SPDX-License-Identifier: Apache-2.0
"""What comes before joining the group in a new session: is this still our cluster; and the sign that we are one of ours.

A session is lost with whatever ZooKeeper answered it. The next one may be with an ensemble that was set up anew, or with
another cluster behind the same name: positions, and the owners that others see, would be of another world.
What tells is ``/brokers/topics`` (the transaction that made it, and when).

The sign is an ephemeral node below ``/consumers/G/consumerd/members``, named after the session. A partition is one of
ours if the session that holds its owner node has one: such a member carries operators' requests out, a Java member
does not. Names of members say nothing, since ours are made as Java's.
"""

from __future__ import annotations

import json
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.errors import ClusterChanged, CoordinationError
from consumerd.model import SessionEpoch
from consumerd.zk.layout import BROKER_TOPICS, ids_path, member_path, members_root
from consumerd.zk.listing import list_names
from consumerd.zk.port import NodeExists, NoNode, OutcomeUnknown, Stat, ZkClient

_ATTEMPTS: Final = 4


def describe_cluster(topics: Stat) -> str:
    """Return what tells a cluster from another one, of the node under which its topics are."""
    return f"{topics.czxid}-{topics.ctime_ms}"


class Admission:
    """Lets a session of ours into its group; ``cluster_id`` is that of the start, ``about`` is shown to operators."""

    def __init__(self, zk: ZkClient, group: str, *, cluster_id: str, about: dict[str, str]) -> None:
        self._zk = zk
        self._group = group
        self._cluster_id = cluster_id
        self._about = json.dumps({"version": 1, **about}, separators=(",", ":")).encode()

    async def admit(self, epoch: SessionEpoch) -> None:
        """Check the cluster and leave our sign, in the session of ``epoch``.

        Raises ClusterChanged, for good; SessionLost, CoordinationError.
        """
        topics = await self._zk.exists(BROKER_TOPICS)
        found = None if topics is None else describe_cluster(topics)
        if found != self._cluster_id:
            raise ClusterChanged(
                f"{BROKER_TOPICS} was made by {self._cluster_id} (transaction and time) when this process started, and is "
                f"{f'of {found}' if found else 'not there'} now: ZooKeeper has lost its data, or this is another cluster. "
                "Nothing more is delivered or committed. Make sure that cluster.zookeeper names the right one, then "
                "start again; positions of the other cluster mean nothing here"
            )
        await self._sign(epoch)

    async def _sign(self, epoch: SessionEpoch) -> None:
        for _ in range(_ATTEMPTS):
            session_id = self._zk.state.session_id
            path = member_path(self._group, session_id)
            try:
                await self._zk.create(path, self._about, ephemeral=True, epoch=epoch)
            except NoNode:
                # a new group: what registering needs is made along with it
                await map_bounded((members_root(self._group), ids_path(self._group)), self._zk.ensure_path)
            except NodeExists:
                return  # by an earlier try: nobody else has this session
            except OutcomeUnknown:
                continue
            else:
                return
        raise CoordinationError(f"{members_root(self._group)}: no node of ours after {_ATTEMPTS} tries")


async def find_our_sessions(zk: ZkClient, group: str) -> frozenset[int]:
    """Return the sessions of a group's members that are ours. Raises CoordinationError."""
    found = set()
    for name in await list_names(zk, members_root(group)):
        try:
            found.add(int(name, 16))
        except ValueError:
            continue  # whatever it is, no member of ours made it
    return frozenset(found)
