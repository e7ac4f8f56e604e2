# SPDX-License-Identifier: Apache-2.0
"""Leader elections and in-sync replicas: the next state of a partition. Pure.

A partition's ``state`` node has two writers in Kafka. The controller elects leaders, and removes the replicas of
brokers that die or shut down from the ISR. The leader removes replicas that lag, and adds those that have caught up.
:func:`next_state` returns the next write of either, and None when nothing is left to be written. The controller's
writes take the next leader epoch; the leader's keep it.

Example: replicas 0 and 1, leader 0, leader epoch 4, ISR 0 and 1.

1. Broker 0 dies: leader 1, leader epoch 5, ISR 1.
2. Broker 0 is back, and follows: leader 1, leader epoch 5, ISR 1 and 0.
3. A preferred replica election: leader 0, leader epoch 6, ISR 1 and 0.

Replicas on brokers that are not ``known`` (an admin tool named a broker that was never there) hold no records here.
They neither lead nor keep others from leading. There is no unclean election: if only known replicas outside of the ISR
are alive, the partition has no leader.

Sources: ``PartitionLeaderSelector.scala``, ``KafkaController.removeReplicaFromIsr`` and ``Partition.scala`` (0.8.2 to
1.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from consumerd.embedded.znodes import next_epoch
from consumerd.model import BrokerId
from consumerd.zk.znodes import PartitionStateNode


def next_state(
    state: PartitionStateNode | None,
    replicas: Sequence[BrokerId],
    *,
    live: AbstractSet[BrokerId],
    known: AbstractSet[BrokerId],
    failed_over: bool = False,
) -> PartitionStateNode | None:
    """Return the next leader and in-sync replicas of a partition, or None for no change.

    The result has the same controller epoch as ``state``: a controller that writes the result sets its own.

    Args:
        state: The present state; None for a new partition.
        replicas: The assigned replicas, the preferred leader first.
        live: Brokers that are registered and not shutting down.
        known: All brokers of the cluster, dead ones too.
        failed_over: True if the controller is a newly elected one. A new controller does not remove dead followers of
            live leaders from the ISR; the leader removes them, when they have lagged for too long.
    """
    alive = tuple(one for one in replicas if one in live)
    if state is None:
        if not alive:
            return None
        return PartitionStateNode(leader=alive[0], leader_epoch=0, isr=alive, controller_epoch=0)
    if state.leader is None or state.leader not in live:
        return _elect(state, replicas, alive, known)
    kept = tuple(one for one in state.isr if one in live or one not in known)
    if kept != state.isr:
        if failed_over:
            return replace(state, isr=kept)
        return _by_controller(state, state.leader, kept)
    joined = tuple(one for one in alive if one not in kept)
    return replace(state, isr=kept + joined) if joined else None


def prefer_first(
    state: PartitionStateNode, replicas: Sequence[BrokerId], *, live: AbstractSet[BrokerId]
) -> PartitionStateNode | None:
    """Return a partition's state after its first replica is elected as leader.

    None if that replica is not alive or not in sync. As in Kafka 1.1, the leader epoch also rises if that replica is
    the leader already.
    """
    preferred = replicas[0] if replicas else None
    if preferred is None or preferred not in live or preferred not in state.isr:
        return None
    return _by_controller(state, preferred, state.isr)


def assign_replicas(
    partitions: Sequence[int], brokers: Sequence[BrokerId], factor: int
) -> dict[int, tuple[BrokerId, ...]]:
    """Return the replicas of each partition of a new topic, spread over the brokers.

    As AdminUtils.assignReplicasToBrokers does, beginning at the first broker: leaders go round; the followers of each
    round of partitions are shifted by one.
    """
    count = len(brokers)
    assigned: dict[int, tuple[BrokerId, ...]] = {}
    for number in partitions:
        first, shift = number % count, number // count
        followers = [(first + 1 + (shift + one) % (count - 1)) % count for one in range(factor - 1)]
        assigned[number] = tuple(brokers[at] for at in (first, *followers))
    return assigned


def _elect(
    state: PartitionStateNode,
    replicas: Sequence[BrokerId],
    alive: tuple[BrokerId, ...],
    known: AbstractSet[BrokerId],
) -> PartitionStateNode | None:
    """Return the state after the loss of the leader."""
    candidates = tuple(one for one in alive if one in state.isr)
    if candidates:
        isr = tuple(one for one in state.isr if one in candidates)
        return _by_controller(state, candidates[0], isr)
    if alive and not any(one in known and one in replicas for one in state.isr):
        # no known broker has records that others lack
        return _by_controller(state, alive[0], alive[:1])
    if state.leader is None or state.leader not in known:
        return None
    # the last replica stays in the ISR: it alone may lead again
    kept = tuple(one for one in state.isr if one != state.leader) or state.isr
    return _by_controller(state, None, kept)


def _by_controller(state: PartitionStateNode, leader: BrokerId | None, isr: tuple[BrokerId, ...]) -> PartitionStateNode:
    return replace(state, leader=leader, leader_epoch=next_epoch(state.leader_epoch), isr=isr)
