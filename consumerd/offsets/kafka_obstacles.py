# SPDX-License-Identifier: Apache-2.0
"""Reasons for which Kafka cannot keep the positions of a group that ZooKeeper coordinates.

- A broker of 0.8.1 or older has OffsetCommit v0 alone, which writes to ZooKeeper. Every broker may become the group's
  coordinator, so one of them is enough.
- A group of the same name has members that brokers coordinate (new consumers). While one of them is alive, commits
  without a generation are refused (``GroupCoordinator``, 0.9 and later).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.client.coordinator import CoordinatorFinder
from consumerd.client.group_coordinators import describe_group
from consumerd.client.leaders import Connections
from consumerd.cluster.view import Broker
from consumerd.errors import BrokerError, ConnectionLost, ProtocolError, UnsupportedVersion
from consumerd.net.pool import Purpose
from consumerd.telemetry.wording import counted, join_shown
from consumerd.wire.modern.offset_commit import OffsetCommitRequest

_FIRST_TO_KAFKA: Final = 1
_SHOWN: Final = 3


async def find_old_brokers(connections: Connections, brokers: Collection[Broker]) -> str:
    """Return a text that names a broker too old to keep positions in Kafka.

    Empty if there is none. A broker that cannot be reached is ignored: if it is too old, a later commit to it fails and
    reports that.
    """

    async def is_old(broker: Broker) -> bool:
        try:
            connection = await connections.get(broker, Purpose.CONTROL)
            return connection.version_of(OffsetCommitRequest) < _FIRST_TO_KAFKA
        except UnsupportedVersion:
            return True
        except (ConnectionLost, ProtocolError):
            return False

    found = await map_bounded(sorted(brokers, key=lambda broker: broker.id), is_old)
    if not any(found.values()):
        return ""
    old = join_shown([f"broker {broker}" for broker, told in found.items() if told], _SHOWN)
    return f"{old}: of 0.8.1 or older, which keeps positions in ZooKeeper only; offsets.storage: kafka needs 0.8.2"


async def find_coordinated_members(coordinator: CoordinatorFinder, group: str, *, timeout_s: float) -> str:
    """Return a text if a group of this name has members that brokers coordinate.

    Empty if it has no such members, or if no broker answers. The request makes a broker create the topic
    ``__consumer_offsets`` if it does not exist. Raises CoordinationError.

    Args:
        timeout_s: Time limit of each request, in seconds.
    """

    try:
        found = await coordinator.ask(lambda one: describe_group(one, group, timeout_s=timeout_s))
    except (BrokerError, ConnectionLost, ProtocolError):
        return ""  # 0.8.2 coordinates no members; otherwise the commit itself says what is wrong
    if not found.members:
        return ""
    return (
        f"brokers coordinate {counted(len(found.members), 'member')} of a group of this name ({found.state}), so "
        "they refuse commits of members that ZooKeeper coordinates; stop those members, or choose another group.id"
    )
