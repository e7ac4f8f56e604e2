# SPDX-License-Identifier: Apache-2.0
"""Errors of the target's brokers, as texts that say what to do. Pure."""

from __future__ import annotations

import re
from typing import Final

from consumerd.access.principal import Principal, Resource
from consumerd.client.remedies import advise_right, advise_write
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    NotFound,
    ProduceError,
    ProtocolError,
    UnsupportedVersion,
)
from consumerd.wire.errorcodes import ErrorCode

TARGET_ERRORS: Final = (BrokerError, ConnectionLost, NotFound, ProduceError, ProtocolError)
"""Errors of requests to the target."""

OF_ONE_RECORD: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
    }
)
"""Error codes that a single record can cause for its whole batch."""

_ENLARGE: Final = "raise max.message.bytes of the target's topic, or message.max.bytes of its brokers"
_WITHOUT_TRANSACTIONS: Final = (
    "set the sink's delivery: at-least-once, which writes without transactions (not for topics of Kafka 0.6 and 0.7)"
)
_UNENDED: Final = (
    "the last transaction has not ended, since brokers of the target cannot write its end: see their logs, for a full "
    "disk, a log directory that is offline, or too few replicas in sync (of __transaction_state, too)"
)
NO_TRANSACTIONS: Final = f"the target has no transactions, which came with Kafka 0.11; {_WITHOUT_TRANSACTIONS}"
"""Reason why a target of an early release is refused."""
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)

_RIGHTS: Final = {"Fetch of": "Read", "ListOffsets": "Describe", "Metadata": "Describe"}
"""Requests that need another right than `Write`, as texts of errors name them."""


def find_code(error: BaseException | None) -> int | None:
    """Return the broker's error code at the bottom of an error; None without one."""
    answer = _find_answer(error)
    return None if answer is None else answer.code


def _find_answer(error: BaseException | None) -> BrokerError | None:
    while error is not None:
        if isinstance(error, BrokerError):
            return error
        error = error.__cause__
    return None


def explain_failure(
    error: ConsumerdError, topic: str, positions_topic: str, transactional_id: str, principal: Principal
) -> str:
    """Return an error as text, with advice for the operator.

    Args:
        topic: Topic of the target for the records.
        positions_topic: Topic of the target for the positions; empty without one.
        transactional_id: Transactional id of the writer; empty for one without transactions.
        principal: Our identity at the target's brokers.
    """
    text = str(error)
    named = positions_topic if positions_topic and _names(text, positions_topic) else topic
    advice = _advise(find_code(error), error, named, transactional_id, principal)
    if advice is None and transactional_id and _lacks_transactions(error):
        advice = NO_TRANSACTIONS
    return f"{text}{f': {advice}' if advice and advice not in text else ''}"


def _names(text: str, topic: str) -> bool:
    """Return True if the text of an error names the topic."""
    return re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.-]|:\d)", text) is not None


def _lacks_transactions(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, UnsupportedVersion):
            return True
        error = error.__cause__
    return False


def _advise(
    code: int | None, error: ConsumerdError, topic: str, transactional_id: str, principal: Principal
) -> str | None:
    match code:
        case ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return (
                f"allow `Write` and `Describe` on `TransactionalId:{transactional_id}` for {principal}; "
                f"or {_WITHOUT_TRANSACTIONS}"
            )
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return principal.advise("IdempotentWrite", Resource.CLUSTER)
        case ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return "lower transaction_timeout_ms to transaction.max.timeout.ms of the target's brokers"
        case ErrorCode.CONCURRENT_TRANSACTIONS:
            return _UNENDED
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return _ENLARGE
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return f"create {topic}, or the partition of it that is missing, in the target"
        case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            right = next((right for request, right in _RIGHTS.items() if request in str(error)), "Write")
            return advise_right(right, topic, principal)
    return advise_write(_find_answer(error), topic, principal)


def explain_refused(error: ConsumerdError, size: int) -> str:
    """Return why the target does not take a record, and what to do.

    Args:
        size: Size of the record in bytes.
    """
    if find_code(error) in _TOO_LARGE:
        return f"{error}: the record has about {size} bytes; {_ENLARGE}"
    return str(error)
