# SPDX-License-Identifier: Apache-2.0
"""ApiVersions: requests and versions that a broker supports (since 0.10; KIP-35).

0.8 closes the connection on this request, 0.9 does not respond. A broker that does not support the version asked for
responds with error 35 (UNSUPPORTED_VERSION) in the format of version 0. The list in it is empty up to 2.3, and has the
broker's range for ApiVersions since 2.4 (KIP-511). Version 0, the only one here, can decode both.
"""

from __future__ import annotations

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, ArrayOf, field, message
from consumerd.wire.schema import Request, request


@message
class ApiVersionRange:
    """Versions of one kind of request that a broker supports; both numbers are included.

    ``api_key`` may be of a kind that is not in :class:`ApiKey`.
    """

    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


@message
class ApiVersionsResponse:
    """Response to ApiVersions: all requests that the broker supports, with their versions."""

    error_code: int = field(INT16, default=0)
    api_versions: tuple[ApiVersionRange, ...] = field(ArrayOf(ApiVersionRange))


@request(ApiKey.API_VERSIONS, versions=range(1), response=ApiVersionsResponse)
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """Request for the requests and versions that a broker supports; it has no fields."""
