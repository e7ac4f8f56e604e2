# SPDX-License-Identifier: Apache-2.0
"""Admission of a member to its group, after checks of cluster and other members.

Cluster check
    A new session may reach an ensemble that was set up anew, or another cluster behind the same name. Stored positions
    and owners would then belong to a different cluster. The node ``/brokers/topics`` identifies the cluster, by the
    transaction that created it and its creation time.

Member sign
    An ephemeral node below ``/consumers/G/consumerd/members``, named after the ZooKeeper session. It tells consumerd
    members from Java members, whose ids have the same form: only consumerd members carry out operators' requests. A
    partition belongs to a consumerd member if the session of its owner node has a sign.

One kind of members
    A group is coordinated by ZooKeeper or by a broker, and neither knows the other's members: each partition would have
    an owner of each kind. So a member that a broker coordinates waits until no member is registered in ZooKeeper.
"""

from __future__ import annotations

import json
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.cluster.view import ClusterSource
from consumerd.errors import ClusterChanged, ConnectionLost, CoordinationError
from consumerd.model import SessionEpoch
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import BROKER_TOPICS, ids_path, member_path, members_root
from consumerd.zk.port import NodeExists, NoNode, OutcomeUnknown, Stat, ZkClient, list_names

_ATTEMPTS: Final = 4
_SHOWN: Final = 3


def describe_cluster(topics: Stat) -> str:
    """Return ``<czxid>-<ctime in ms>`` of the node ``/brokers/topics``: it identifies a cluster.

    Args:
        topics: The stat of ``/brokers/topics``.
    """
    return f"{topics.czxid}-{topics.ctime_ms}"


async def check_cluster(zk: ZkClient, cluster_id: str) -> None:
    """Check that ZooKeeper still belongs to the cluster of ``cluster_id``. Raises ClusterChanged, CoordinationError.

    ``cluster_id`` is a text that :func:`describe_cluster` has returned.
    """
    topics = await zk.exists(BROKER_TOPICS)
    found = None if topics is None else describe_cluster(topics)
    if found != cluster_id:
        raise ClusterChanged(
            f"{BROKER_TOPICS} was made by {cluster_id} (transaction and time) when this process started, and "
            f"is {f'of {found}' if found else 'not there'} now: ZooKeeper has lost its data, or this is another "
            "cluster. Nothing more is delivered or committed. Make sure that cluster.zookeeper names the right "
            "one, then start again; positions of the other cluster mean nothing here"
        )


async def admit_by_brokers(source: ClusterSource, *, cluster_id: str) -> None:
    """Admit a member in a cluster without ZooKeeper, before each join.

    Raises ClusterChanged, which is final; CoordinationError.
    """
    try:
        found = (await source.read(())).cluster_id
    except ConnectionLost as error:
        raise CoordinationError(str(error)) from error
    if found != cluster_id:
        raise ClusterChanged(
            f"the brokers were of cluster {cluster_id} when this process started, and are of {found or 'no cluster'} "
            "now. Nothing more is delivered or committed. Make sure that cluster.bootstrap names the right brokers, "
            "then start again; positions of the other cluster mean nothing here"
        )


async def admit_coordinated(zk: ZkClient, group: str, *, cluster_id: str) -> None:
    """Check that a member that a broker coordinates may join its group.

    Called before each join. Raises ClusterChanged if ZooKeeper belongs to another cluster, which ends the member;
    CoordinationError if ZooKeeper does not answer, or members of the group are still registered in ZooKeeper: try
    later.
    """
    await check_cluster(zk, cluster_id)
    if names := await list_names(zk, ids_path(group)):
        raise CoordinationError(
            f"group {group!r} has members that ZooKeeper coordinates ({join_shown(names, _SHOWN)}), so partitions "
            "would be read twice: stop them, or set group.membership: zookeeper; this member joins when they have gone"
        )


class Admission:
    """Admits this process to its group, once in each ZooKeeper session.

    Args:
        cluster_id: The cluster of which this process was when it started, as :func:`describe_cluster` returned it.
        about: Keys and values for operators, such as the host. They are the content of the ephemeral node that marks
            this member as one of consumerd.
    """

    def __init__(self, zk: ZkClient, group: str, *, cluster_id: str, about: dict[str, str]) -> None:
        self._zk = zk
        self._group = group
        self._cluster_id = cluster_id
        self._about = json.dumps({"version": 1, **about}, separators=(",", ":")).encode()

    async def admit(self, epoch: SessionEpoch) -> None:
        """Check the cluster, and create the ephemeral node that marks this consumerd member.

        Args:
            epoch: The ZooKeeper session (1 for the process's first) in which the node is created.

        Raises ClusterChanged, which ends the member; SessionLost if the session of ``epoch`` is over; CoordinationError
        if ZooKeeper does not answer.
        """
        await check_cluster(self._zk, self._cluster_id)
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
    """Return the ids of the ZooKeeper sessions of a group's consumerd members. Raises CoordinationError.

    Java members are not included.
    """
    found = set()
    for name in await list_names(zk, members_root(group)):
        try:
            found.add(int(name, 16))
        except ValueError:
            continue  # not created by a consumerd member
    return frozenset(found)
