# SPDX-License-Identifier: Apache-2.0
"""API keys: the numbers that tell requests apart (Kafka protocol guide, "Api Keys")."""

from __future__ import annotations

import enum


class ApiKey(enum.IntEnum):
    """Kind of a request: the number at the beginning of its header.

    Keys that are used only between brokers, and those of requests that consumerd has no use for, are left out.
    """

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    """Called ConsumerMetadata and GroupCoordinator in the guides of 0.8 and 0.9."""
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
