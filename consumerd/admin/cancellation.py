# SPDX-License-Identifier: Apache-2.0
"""Cancels requests to move a position (``offsets set``, ``reset``...) that no member has carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consumerd.admin.inspection import require_group
from consumerd.client.opening import ClusterAccess
from consumerd.errors import ConfigError, NotFound
from consumerd.model import PartitionKey, TopicPartition
from consumerd.offsets.opening import open_positions
from consumerd.offsets.requests import Cancelled, ZooKeeperOffsetRequests


async def cancel_requests(
    access: ClusterAccess, group: str, wanted: Sequence[str]
) -> Mapping[TopicPartition, Cancelled]:
    """Cancel pending requests to move a group's positions.

    Returns the outcome for each partition whose request was pending. Besides "cancelled", an outcome may be that the
    request was carried out, or replaced by a newer one, in the meantime.

    Args:
        wanted: ``TOPIC`` or ``TOPIC/PARTITION``; empty for all requests of the group.

    Raises NotFound if the group or one of the names has no request, ConfigError for a malformed name or a cluster
    without ZooKeeper, CoordinationError if ZooKeeper cannot be read or written.
    """
    if not access.has_zookeeper:
        raise ConfigError("requests wait in ZooKeeper, which is not given here: there is nothing to cancel")
    await require_group(access, open_positions(access.cluster, group))
    requests = ZooKeeperOffsetRequests(access.zk, group)
    chosen = choose(await requests.list_partitions(), wanted)
    return {partition: await requests.cancel(partition) for partition in chosen}


def choose(waiting: Sequence[TopicPartition], wanted: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions whose pending requests are to be cancelled.

    Args:
        waiting: Partitions that have a pending request.
        wanted: Names, ``TOPIC`` or ``TOPIC/PARTITION``; empty for all partitions of ``waiting``.

    Raises NotFound for a name without a request, ConfigError for a malformed name.
    """
    chosen: dict[TopicPartition, None] = {}
    for text in wanted:
        topic, separator, key = text.partition("/")
        try:
            partition = TopicPartition(topic, PartitionKey.parse(key)) if separator else None
        except ValueError as error:
            raise ConfigError(f"{text!r}: {error}") from error
        found = [one for one in waiting if one.topic == topic and partition in (None, one)]
        if not found:
            raise NotFound(f"{text}: there is no request; those that wait are on `consumerd offsets show`")
        chosen.update(dict.fromkeys(found))
    return list(chosen) if wanted else list(waiting)
