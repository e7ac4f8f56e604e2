# SPDX-License-Identifier: Apache-2.0
"""Refuses to start if the store of positions that is not read holds larger ones.

The two stores are ZooKeeper and Kafka, and members of a group may commit to different ones. A daemon that reads one
store alone would deliver again the records that other members have consumed, or begin without positions:

=======================  ==============================  ========================================================
positions are read in    refused where                   because
=======================  ==============================  ========================================================
ZooKeeper                Kafka's are larger              Java members commit to Kafka (``offsets.storage=kafka``)
Kafka alone              ZooKeeper's are larger, or the  members committed to ZooKeeper alone until now: the step
                         only ones                       with ``dual_commit`` was left out
both                     never                           the larger one counts
=======================  ==============================  ========================================================

Example: ZooKeeper holds 200 for ``orders/0``, Kafka 300. Started with ``offsets.storage: zookeeper``, the daemon would
deliver 200 to 299 again.

Members that commit to both stores write one after the other, so one position is larger for a moment. Both are therefore
read again a few times before the start is refused. A partition with an operator's request is passed over: the request
sets the position at which the partition continues.

Brokers that do not answer in time, or that refuse, do not prevent a start from positions in ZooKeeper: this is logged
once. A start from positions in Kafka waits for the coordinator; nothing could be delivered without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from consumerd.access.opening import ClusterConnections
from consumerd.config.member_settings import MemberSettings
from consumerd.errors import ConfigError, CoordinationError
from consumerd.group.java_regex import UnsupportedPattern
from consumerd.group.subscription import Subscription, plan_streams
from consumerd.model import TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.opening import open_positions
from consumerd.offsets.positions import KeptPositions, Position, describe_ahead, find_outrun
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import Place
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import BROKER_TOPICS
from consumerd.zk.port import list_names

_PATIENCE_S: Final = 10.0
"""Time limit for the group's coordinator, in seconds; a start is not delayed longer."""
_RETRY_S: Final = 1.0
"""Backoff after a failed read of ZooKeeper, in seconds; the group cannot be joined without ZooKeeper either."""
_LOOKS: Final = 4
_LOOK_INTERVAL_S: Final = 0.5
"""Interval of further reads of ZooKeeper, in seconds; a member that commits to both takes milliseconds."""
_SHOWN: Final = 5
"""Partitions that a message names; there may be thousands."""

_log = structlog.get_logger(__name__)


async def check_other_place(
    cluster: ClusterConnections, settings: MemberSettings, subscription: Subscription, *, hooks: Hooks
) -> None:
    """Refuse to start if the store that is not read holds larger positions.

    The two stores are ZooKeeper and Kafka; the positions are those of the subscribed topics. Returns at once if the
    settings read both, or have ``ignore_other_place``. In a cluster without the topic ``__consumer_offsets``, a start
    from positions in ZooKeeper needs no request to Kafka.

    Retries without a timeout while ZooKeeper cannot be read, and for a start from positions in Kafka while its
    coordinator does not answer. Can be cancelled at any time. Raises ConfigError, which names the partitions and what
    to do.
    """
    places = settings.offsets.places
    if settings.offsets.ignore_other_place or len(places) > 1 or cluster.session is None:
        return  # without ZooKeeper, Kafka is the only place
    reported = False
    while True:
        # a new one for each attempt: it asks a coordinator that did not answer only once
        positions = open_positions(cluster, settings.group.id, patience_s=_PATIENCE_S)
        try:
            found = await _compare(cluster, settings, subscription, positions, hooks)
        except CoordinationError as error:
            _log.debug("positions_lookup_failed", reason=str(error))
            await asyncio.sleep(_RETRY_S)
            continue
        if found.unknown and not reported:
            reported = True
            _log.warning("kafka_positions_unknown", reason=found.unknown)
            hooks.trouble(Trouble.KAFKA_POSITIONS_UNKNOWN, found.unknown)
        if found.complete or Place.KAFKA not in places:
            break
        await asyncio.sleep(_RETRY_S)
    if found.larger:
        raise refuse(found.larger, group=settings.group.id, zookeeper=settings.cluster.place, places=places)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """Positions that stay larger in the place that is not read.

    Attributes:
        larger: The position that would be read, and the larger one, by partition.
        unknown: Why some positions in Kafka are unknown.
        complete: False if the coordinator has not answered.
    """

    larger: Mapping[TopicPartition, tuple[Position, Position]] = field(default_factory=dict)
    unknown: str = ""
    complete: bool = True


async def _compare(
    cluster: ClusterConnections,
    settings: MemberSettings,
    subscription: Subscription,
    positions: GroupPositions,
    hooks: Hooks,
) -> _Comparison:
    """Compare both places. Raises CoordinationError."""
    places = settings.offsets.places
    topics = await _find_topics(cluster, subscription)
    if Place.KAFKA in places:
        kept = await positions.read_kept(topics)
    elif await positions.may_be_in_kafka():
        kept = await positions.read_in_kafka(topics)
    else:
        return _Comparison()
    complete = not kept.unknown or bool(kept.refused)
    larger, unknown = find_outrun(kept, places), kept.unknown
    for _ in range(_LOOKS):
        if not larger:
            break
        await asyncio.sleep(_LOOK_INTERVAL_S)
        again = await positions.find_kept(larger)
        # a position that Kafka does not tell this time is as it was before
        kept = KeptPositions(zookeeper=again.zookeeper, kafka={**kept.kafka, **again.kafka})
        larger = {one: position for one, position in find_outrun(kept, places).items() if one in larger}
    if larger:
        requests = ZooKeeperOffsetRequests(cluster.zk, settings.group.id, hooks=hooks)
        requested = set(await requests.list_partitions())
        larger = {one: position for one, position in larger.items() if one not in requested}
    pairs = {one: (kept.find_counting(one, places), position) for one, position in larger.items()}
    return _Comparison(larger=pairs, unknown=unknown, complete=complete)


async def _find_topics(cluster: ClusterConnections, subscription: Subscription) -> Collection[str]:
    names = await list_names(cluster.zk, BROKER_TOPICS)
    try:
        return plan_streams(subscription.register(0), names).keys()
    except UnsupportedPattern:
        return ()  # the member then owns nothing, as the group's disagreements say


def refuse(
    larger: Mapping[TopicPartition, tuple[Position, Position]],
    *,
    group: str,
    zookeeper: str,
    places: Collection[Place],
) -> ConfigError:
    """Return the error for a start from smaller positions than the other store holds.

    The other store is the one of ZooKeeper and Kafka that members would not read. The error names the partitions, the
    possible causes, and how to go on with either store.

    Args:
        larger: By partition, the position that would be read, and the larger one in the other store.
        zookeeper: Connect string, for the advice.
        places: Stores that would be read.
    """
    listed = join_shown([describe_ahead(one, *both) for one, both in sorted(larger.items())], _SHOWN)
    if Place.KAFKA in places:
        return ConfigError(
            f"group {group!r} has larger positions in ZooKeeper than in Kafka, where delivery would begin "
            f"(offsets.storage: kafka, offsets.dual_commit: false): {listed}. Either members have committed to "
            f"ZooKeeper "
            "alone until now, or positions in Kafka were moved back; it cannot be told which. To go on at those in "
            "ZooKeeper, set offsets.dual_commit: true in all members (dual.commit.enabled=true in Java), and false "
            "once "
            "all have run with it for offsets.commit_interval_ms. To go on at those in Kafka, or at offsets.on_missing "
            "without one, set offsets.ignore_other_place: true. All of them: consumerd offsets show"
        )
    targets = " ".join(f"{one}={theirs.value}" for one, (_, theirs) in sorted(larger.items())[:_SHOWN])
    return ConfigError(
        f"group {group!r} has larger positions in Kafka than in ZooKeeper, where delivery would begin "
        f"(offsets.storage: zookeeper): {listed}. Either members commit to Kafka (offsets.storage=kafka), or "
        "positions in ZooKeeper were moved back; it cannot be told which. To go on at the larger ones, set "
        "offsets.storage: kafka, which commits to both places, or write them to ZooKeeper: consumerd offsets set "
        f"-z {zookeeper} -g {group} {targets}. To go on at those in ZooKeeper, set offsets.ignore_other_place: true. "
        "All of them: consumerd offsets show"
    )
