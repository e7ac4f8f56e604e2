# SPDX-License-Identifier: Apache-2.0
"""FindCoordinator: the broker that manages a group (Kafka protocol guide, v0 and v1).

Called ConsumerMetadata in 0.8.2, and GroupCoordinator in 0.9 and 0.10. Version 1 adds coordinators of transactions
(KIP-98), an error message, and the throttle time.
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT8, INT16, INT32, STRING, field, message
from consumerd.wire.schema import Request, request

GROUP: Final = 0
"""Value of ``key_type`` that asks for the coordinator of a group."""
TRANSACTION: Final = 1
"""Value of ``key_type`` that asks for the coordinator of a transactional id."""
FIRST_WITH_KEY_TYPE: Final = 1


@message
class FindCoordinatorResponse:
    """FindCoordinator response: the coordinator's address.

    With an error code ``node_id`` and ``port`` are -1, and ``host`` is empty.
    """

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, "1+", default=None, nullable="1+")
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)


@request(ApiKey.FIND_COORDINATOR, versions=range(2), response=FindCoordinatorResponse)
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    """Request for the coordinator of the group or transactional id ``key``; any broker can answer."""

    key: str = field(STRING)
    key_type: int = field(INT8, "1+", default=GROUP)
