# SPDX-License-Identifier: Apache-2.0
"""The numbers of the protocol's requests (Kafka protocol guide, "Api Keys")."""

from __future__ import annotations

import enum


class ApiKey(enum.IntEnum):
    """Which request a frame holds. 4 to 7 are spoken between brokers only."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    """GroupCoordinator in the guide of 0.8 and 0.9."""
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
