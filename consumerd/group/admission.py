# SPDX-License-Identifier: Apache-2.0
"""Admission of a new session to the group: the cluster check, and our member sign.

Cluster check
    A new session may reach an ensemble that was set up anew, or another cluster behind the same name. Stored positions
    and owners would then belong to a different cluster. The node ``/brokers/topics`` identifies the cluster, by the
    transaction that created it and its creation time.

Member sign
    An ephemeral node below ``/consumers/G/consumerd/members``, named after the session. A partition is delivered by a
    consumerd member if the session of its owner node has a sign: only such members carry out operators' requests.
    Member ids do not tell them from Java members, since both have the same form.
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
    """Return a string that identifies a cluster, made from the node ``/brokers/topics``."""
    return f"{topics.czxid}-{topics.ctime_ms}"


class Admission:
    """Admits a new session of ours to its group.

    Args:
        cluster_id: The cluster that the process was started with, by :func:`describe_cluster`.
        about: Content of the member sign, shown to operators.
    """

    def __init__(self, zk: ZkClient, group: str, *, cluster_id: str, about: dict[str, str]) -> None:
        self._zk = zk
        self._group = group
        self._cluster_id = cluster_id
        self._about = json.dumps({"version": 1, **about}, separators=(",", ":")).encode()

    async def admit(self, epoch: SessionEpoch) -> None:
        """Check the cluster and create our member sign, in the session of ``epoch``.

        Raises ClusterChanged, which is final; SessionLost, CoordinationError.
        """
        topics = await self._zk.exists(BROKER_TOPICS)
        found = None if topics is None else describe_cluster(topics)
        if found != self._cluster_id:
            raise ClusterChanged(
                f"{BROKER_TOPICS} was made by {self._cluster_id} (transaction and time) when this process started, and "
                f"is {f'of {found}' if found else 'not there'} now: ZooKeeper has lost its data, or this is another "
                "cluster. Nothing more is delivered or committed. Make sure that cluster.zookeeper names the right "
                "one, then start again; positions of the other cluster mean nothing here"
            )
        await self._sign(epoch)

    async def _sign(self, epoch: SessionEpoch) -> None:
        for _ in range(_ATTEMPTS):
            session_id = self._zk.state.session_id
            path = member_path(self._group, session_id)
            try:
                await self._zk.create(path, self._about, ephemeral=True, epoch=epoch)
            except NoNode:
                # a new group: create the parents, along with those that registering will need
                await map_bounded((members_root(self._group), ids_path(self._group)), self._zk.ensure_path)
            except NodeExists:
                return  # created by an earlier try: only we have this session
            except OutcomeUnknown:
                continue
            else:
                return
        raise CoordinationError(f"{members_root(self._group)}: no node of ours after {_ATTEMPTS} tries")


async def find_our_sessions(zk: ZkClient, group: str) -> frozenset[int]:
    """Return the sessions of a group's consumerd members. Raises CoordinationError."""
    found = set()
    for name in await list_names(zk, members_root(group)):
        try:
            found.add(int(name, 16))
        except ValueError:
            continue  # not created by a consumerd member
    return frozenset(found)
