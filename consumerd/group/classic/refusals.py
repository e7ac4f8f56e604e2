# SPDX-License-Identifier: Apache-2.0
"""Table of a coordinator's error codes, and the meaning of each for the membership.

Pure. Sources: Kafka protocol guide; ``GroupCoordinator.scala`` of 0.9 to 3.9; ``AbstractCoordinator.java``.

Codes that are not in the table, and lost connections, count as
:attr:`~consumerd.group.classic.events.Refusal.UNAVAILABLE`: the request is tried again, and the reason is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumerd.access.principal import Principal, Resource
from consumerd.errors import BrokerError, ConsumerdError, UnsupportedVersion
from consumerd.group.classic.events import Refusal
from consumerd.wire.errorcodes import ErrorCode

_GROUP_MAX_SIZE_REACHED: Final = 81

REFUSALS: Final[Mapping[int, tuple[Refusal, str]]] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (Refusal.UNAVAILABLE, "the coordinator reads its log"),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (
        Refusal.UNAVAILABLE,
        "the group has no coordinator: __consumer_offsets does not exist yet, or its partition has no leader",
    ),
    ErrorCode.NOT_COORDINATOR: (Refusal.UNAVAILABLE, "the coordinator has moved to another broker"),
    ErrorCode.REQUEST_TIMED_OUT: (Refusal.UNAVAILABLE, ""),
    ErrorCode.REBALANCE_IN_PROGRESS: (Refusal.REBALANCE, "the group rebalances"),
    ErrorCode.ILLEGAL_GENERATION: (Refusal.FENCED, "the group has begun a newer generation without this member"),
    ErrorCode.UNKNOWN_MEMBER_ID: (
        Refusal.UNKNOWN_MEMBER,
        "the coordinator has removed this member, which was silent for the session timeout, or late to join again",
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        Refusal.REFUSED,
        "the group's members have neither range nor roundrobin (partition.assignment.strategy), or are no consumers",
    ),
    ErrorCode.INVALID_GROUP_ID: (Refusal.REFUSED, "the coordinator does not accept group.id"),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        Refusal.REFUSED,
        "group.session_timeout_ms is not between the brokers' group.min.session.timeout.ms and the max of that name",
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (Refusal.REFUSED, ""),
    _GROUP_MAX_SIZE_REACHED: (Refusal.REFUSED, "the group has as many members as the brokers' group.max.size allows"),
}
"""Meaning and explanation of each error code. Requests with other errors are retried."""


def find_refusal(error: ConsumerdError) -> Refusal:
    """Return the meaning of a request's error for the membership, such as ``Refusal.FENCED``."""
    if isinstance(error, UnsupportedVersion):
        return Refusal.REFUSED
    found = REFUSALS.get(error.code) if isinstance(error, BrokerError) else None
    return Refusal.UNAVAILABLE if found is None else found[0]


def explain(error: ConsumerdError, group: str, principal: Principal) -> str:
    """Return the error's text with its explanation.

    Args:
        group: Id of the group.
        principal: Our identity at brokers.
    """
    found = REFUSALS.get(error.code) if isinstance(error, BrokerError) else None
    explanation = "" if found is None else found[1]
    if isinstance(error, BrokerError) and error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        explanation = principal.advise("Read", Resource.GROUP, group)
    if isinstance(error, UnsupportedVersion):
        explanation = "brokers coordinate groups from 0.9 on; for older ones set group.membership: zookeeper"
    return f"{error}: {explanation}" if explanation else str(error)
