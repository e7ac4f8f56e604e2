# SPDX-License-Identifier: Apache-2.0
"""Error codes in broker responses: those that a module names, and all others.

Codes -1 to 31, without 13, are in the protocol guide of 0.8 and 0.9; the others were added by brokers up to 2.8. The
names are those of Kafka 2.8. The guide has other names for a few: 2 was InvalidMessage, 6 NotLeaderForPartition, 14
GroupLoadInProgress (before that OffsetsLoadInProgress), 15 GroupCoordinatorNotAvailable, 16 NotCoordinatorForGroup.
``docs/protocol.md`` has all of them.

``retriable`` and ``refresh`` follow the classes RetriableException and InvalidMetadataException of each code in Kafka's
``org.apache.kafka.common.protocol.Errors``. A test compares them. The guide differs in code 9
(REPLICA_NOT_AVAILABLE), which it does not call retriable.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Self

from consumerd.errors import BrokerError

NO_REMEDY: Final = 0
"""Class of error codes after which the same request fails again."""

RETRY: Final = 1
"""Class of error codes after which the same request may succeed later."""

REFRESH: Final = 2
"""Class of error codes after which the request may succeed once metadata are refreshed.

Our view of the cluster is out of date.
"""

_OTHERS: Final[Mapping[int, tuple[str, int]]] = {
    4: ("INVALID_FETCH_SIZE", NO_REMEDY),
    8: ("BROKER_NOT_AVAILABLE", NO_REMEDY),
    11: ("STALE_CONTROLLER_EPOCH", NO_REMEDY),
    13: ("NETWORK_EXCEPTION", REFRESH),
    39: ("INVALID_REPLICA_ASSIGNMENT", NO_REMEDY),
    44: ("POLICY_VIOLATION", NO_REMEDY),
    54: ("SECURITY_DISABLED", NO_REMEDY),
    57: ("LOG_DIR_NOT_FOUND", NO_REMEDY),
    60: ("REASSIGNMENT_IN_PROGRESS", NO_REMEDY),
    61: ("DELEGATION_TOKEN_AUTH_DISABLED", NO_REMEDY),
    62: ("DELEGATION_TOKEN_NOT_FOUND", NO_REMEDY),
    63: ("DELEGATION_TOKEN_OWNER_MISMATCH", NO_REMEDY),
    64: ("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", NO_REMEDY),
    65: ("DELEGATION_TOKEN_AUTHORIZATION_FAILED", NO_REMEDY),
    66: ("DELEGATION_TOKEN_EXPIRED", NO_REMEDY),
    67: ("INVALID_PRINCIPAL_TYPE", NO_REMEDY),
    68: ("NON_EMPTY_GROUP", NO_REMEDY),
    69: ("GROUP_ID_NOT_FOUND", NO_REMEDY),
    72: ("LISTENER_NOT_FOUND", REFRESH),
    73: ("TOPIC_DELETION_DISABLED", NO_REMEDY),
    77: ("STALE_BROKER_EPOCH", NO_REMEDY),
    78: ("OFFSET_NOT_AVAILABLE", RETRY),
    79: ("MEMBER_ID_REQUIRED", NO_REMEDY),
    80: ("PREFERRED_LEADER_NOT_AVAILABLE", REFRESH),
    81: ("GROUP_MAX_SIZE_REACHED", NO_REMEDY),
    83: ("ELIGIBLE_LEADERS_NOT_AVAILABLE", REFRESH),
    84: ("ELECTION_NOT_NEEDED", REFRESH),
    85: ("NO_REASSIGNMENT_IN_PROGRESS", NO_REMEDY),
    86: ("GROUP_SUBSCRIBED_TO_TOPIC", NO_REMEDY),
    88: ("UNSTABLE_OFFSET_COMMIT", RETRY),
    89: ("THROTTLING_QUOTA_EXCEEDED", RETRY),
    91: ("RESOURCE_NOT_FOUND", NO_REMEDY),
    92: ("DUPLICATE_RESOURCE", NO_REMEDY),
    93: ("UNACCEPTABLE_CREDENTIAL", NO_REMEDY),
    94: ("INCONSISTENT_VOTER_SET", NO_REMEDY),
    95: ("INVALID_UPDATE_VERSION", NO_REMEDY),
    96: ("FEATURE_UPDATE_FAILED", NO_REMEDY),
    97: ("PRINCIPAL_DESERIALIZATION_FAILURE", NO_REMEDY),
    98: ("SNAPSHOT_NOT_FOUND", NO_REMEDY),
    99: ("POSITION_OUT_OF_RANGE", NO_REMEDY),
    100: ("UNKNOWN_TOPIC_ID", REFRESH),
    101: ("DUPLICATE_BROKER_REGISTRATION", NO_REMEDY),
    102: ("BROKER_ID_NOT_REGISTERED", NO_REMEDY),
    103: ("INCONSISTENT_TOPIC_ID", REFRESH),
    104: ("INCONSISTENT_CLUSTER_ID", NO_REMEDY),
}
"""Name and class of the codes that no module asks for by name."""


class ErrorCode(enum.IntEnum):
    """Error code in a broker's response; equal to its number.

    Members are the codes that a module names. ``ErrorCode(code)`` returns an object for any other code, too. A code
    that is not in Kafka 2.8, as a newer broker may send, is named ``UNKNOWN_<code>``, and is neither retriable nor a
    reason to refresh metadata.
    """

    retriable: bool
    refresh: bool

    def __new__(cls, code: int, remedy: int = NO_REMEDY) -> Self:
        """Create an error code from its number and its class, such as :data:`RETRY`."""
        row = int.__new__(cls, code)
        row._value_ = code
        row.retriable, row.refresh = remedy in (RETRY, REFRESH), remedy == REFRESH
        return row

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        if not isinstance(value, int):
            return None
        name, remedy = _OTHERS.get(value, (f"UNKNOWN_{value}", NO_REMEDY))
        row = int.__new__(cls, value)  # the enum's own __new__ looks members up, and would come back here
        row._name_, row._value_ = name, value
        row.retriable, row.refresh = remedy in (RETRY, REFRESH), remedy == REFRESH
        return row

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, RETRY
    UNKNOWN_TOPIC_OR_PARTITION = 3, REFRESH
    LEADER_NOT_AVAILABLE = 5, REFRESH
    NOT_LEADER_OR_FOLLOWER = 6, REFRESH
    REQUEST_TIMED_OUT = 7, RETRY
    REPLICA_NOT_AVAILABLE = 9, REFRESH
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
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
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41, RETRY
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, REFRESH
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    FETCH_SESSION_ID_NOT_FOUND = 70, RETRY
    INVALID_FETCH_SESSION_EPOCH = 71, RETRY
    FENCED_LEADER_EPOCH = 74, REFRESH
    UNKNOWN_LEADER_EPOCH = 75, RETRY
    UNSUPPORTED_COMPRESSION_TYPE = 76
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90


def broker_error(code: int, context: str, advice: str = "") -> BrokerError:
    """Return the exception for an error code, other than 0, in a broker's response.

    Args:
        context: The request and the broker, for the exception's message.
        advice: Advice to the operator, for the message; empty for none.
    """
    row = ErrorCode(code)
    return BrokerError(row.value, row.name, context, retriable=row.retriable, refresh=row.refresh, advice=advice)
