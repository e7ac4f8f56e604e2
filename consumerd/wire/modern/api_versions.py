# SPDX-License-Identifier: Apache-2.0
"""ApiVersions: which requests a broker knows, and in which versions (since 0.10; Kafka protocol guide, KIP-35).

0.8 closes the connection on it and 0.9 does not answer. A broker that does not know the version asked for answers
error 35 (UNSUPPORTED_VERSION) in the form of version 0, with an empty list up to 2.3 and its own range for this
request since 2.4 (KIP-511): version 0, the only one here, reads either.
"""

from __future__ import annotations

from typing import ClassVar

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, ArrayOf, field, message
from consumerd.wire.schema import Request


@message
class ApiVersionRange:
    """One request that the broker knows; ``api_key`` may be one that :class:`ApiKey` does not list."""

    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


@message
class ApiVersionsResponse:
    """All requests that the broker knows."""

    error_code: int = field(INT16, default=0)
    api_versions: tuple[ApiVersionRange, ...] = field(ArrayOf(ApiVersionRange))


@message
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """Has no fields."""

    api: ClassVar[ApiKey] = ApiKey.API_VERSIONS
    versions: ClassVar[range] = range(1)
    response: ClassVar[type] = ApiVersionsResponse
