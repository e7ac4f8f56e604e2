# SPDX-License-Identifier: Apache-2.0
"""Errors of a group's coordinator, in words that say what to do. Pure."""

from __future__ import annotations

from typing import Final

from consumerd.access.principal import Principal, Resource
from consumerd.errors import BrokerError, ConsumerdError
from consumerd.wire.errorcodes import ErrorCode

OF_ANOTHER_GROUP: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
)
"""Error codes of a commit whose member or generation the coordinator does not know."""


def explain_kafka_error(error: ConsumerdError, group: str, principal: Principal, topic: str = "") -> str:
    """Return the text of a coordinator's error, with advice to the operator of ``group``.

    An error for which there is no advice keeps its own text.

    Args:
        principal: Our identity at brokers.
        topic: Topic that the error is about; empty if it is about the whole request.
    """
    code = error.code if isinstance(error, BrokerError) else None
    if code in OF_ANOTHER_GROUP:
        return (
            f"{error}: brokers coordinate members of a group of this name, so they refuse commits of members that "
            f"ZooKeeper coordinates; stop those members, or choose another group.id"
        )
    if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return f"{error}: {principal.advise('Read', Resource.GROUP, group)}"
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and topic:
        return f"{error}: {principal.advise('Read', Resource.TOPIC, topic)}"
    return str(error)
