# SPDX-License-Identifier: Apache-2.0
"""FindCoordinator: which broker manages a group (Kafka protocol guide, v0 and v1).

ConsumerMetadata in 0.8.2, GroupCoordinator in 0.9 and 0.10. Version 1 adds the coordinators of transactions (KIP-98), a
message beside the error code, and the throttle time.
"""

from __future__ import annotations

from typing import ClassVar, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT8, INT16, INT32, STRING, field, message
from consumerd.wire.schema import Request

GROUP: Final = 0
TRANSACTION: Final = 1
"""What ``key_type`` says of ``key``."""


@message
class FindCoordinatorResponse:
    """The coordinator; with an error code ``node_id`` is -1, ``host`` empty and ``port`` -1."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, "1+", default=None, nullable="1+")
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)


@message
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    """Find it; any broker may be asked. ``key`` is the group's id."""

    api: ClassVar[ApiKey] = ApiKey.FIND_COORDINATOR
    versions: ClassVar[range] = range(2)
    response: ClassVar[type] = FindCoordinatorResponse

    key: str = field(STRING)
    key_type: int = field(INT8, "1+", default=GROUP)
