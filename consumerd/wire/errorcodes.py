# SPDX-License-Identifier: Apache-2.0
"""Every error code that a broker answers with, as one table.

The codes -1 to 33 are those of the protocol guide of 0.8 and 0.9; the rest are what brokers up to 2.8 add. Names are
Kafka's own of 2.8, which differ from the guide's for a few: 2 was InvalidMessage, 6 NotLeaderForPartition, 14
GroupLoadInProgress (and OffsetsLoadInProgress before), 15 GroupCoordinatorNotAvailable, 16 NotCoordinatorForGroup.
``retriable`` and ``refresh`` say what ``RetriableException`` and ``InvalidMetadataException`` say of the same code in
Kafka's ``org.apache.kafka.common.protocol.Errors``, and are compared with it by a test.
"""

from __future__ import annotations

import enum
from typing import Final, Self

from consumerd.errors import BrokerError

RETRY: Final = 1
"""The same request may succeed later."""

REFRESH: Final = 2
"""So it may, once metadata has been read again: what we believe of the cluster is out of date."""


class ErrorCode(enum.IntEnum):
    """A row of the table; equal to its number.

    A number that the table lacks makes a row of its own, named ``UNKNOWN_<code>``, neither retriable nor with a
    refresh: a newer broker may say more than we know.
    """

    retriable: bool
    refresh: bool

    def __new__(cls, code: int, remedy: int = 0) -> Self:
        """Make a row: a code, and RETRY or REFRESH if one of them helps."""
        row = int.__new__(cls, code)
        row._value_ = code
        row.retriable = remedy in (RETRY, REFRESH)
        row.refresh = remedy == REFRESH
        return row

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        if not isinstance(value, int):
            return None
        row = int.__new__(cls, value)  # the enum's own __new__ looks members up, and would come back here
        row._name_, row._value_ = f"UNKNOWN_{value}", value
        row.retriable = row.refresh = False
        return row

    @property
    def code(self) -> int:
        """The number itself."""
        return int(self)

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, RETRY
    UNKNOWN_TOPIC_OR_PARTITION = 3, REFRESH
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5, REFRESH
    NOT_LEADER_OR_FOLLOWER = 6, REFRESH
    REQUEST_TIMED_OUT = 7, RETRY
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9, REFRESH
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13, REFRESH
    COORDINATOR_LOAD_IN_PROGRESS = 14, RETRY
    COORDINATOR_NOT_AVAILABLE = 15, RETRY
    NOT_COORDINATOR = 16, RETRY
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19, RETRY
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, RETRY
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41, RETRY
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, REFRESH
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70, RETRY
    INVALID_FETCH_SESSION_EPOCH = 71, RETRY
    LISTENER_NOT_FOUND = 72, REFRESH
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74, REFRESH
    UNKNOWN_LEADER_EPOCH = 75, RETRY
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78, RETRY
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80, REFRESH
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, REFRESH
    ELECTION_NOT_NEEDED = 84, REFRESH
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88, RETRY
    THROTTLING_QUOTA_EXCEEDED = 89, RETRY
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100, REFRESH
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103, REFRESH
    INCONSISTENT_CLUSTER_ID = 104


def find_error(code: int) -> ErrorCode:
    """Return the row for a code; there is one for every number."""
    return ErrorCode(code)


def broker_error(code: int, context: str) -> BrokerError:
    """Return the exception for a code other than 0; ``context`` says what was asked, of whom."""
    row = find_error(code)
    return BrokerError(row.code, row.name, context, retriable=row.retriable, refresh=row.refresh)
