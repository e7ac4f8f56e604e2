# SPDX-License-Identifier: Apache-2.0
"""ApiVersions: the versions that the imitated release supports, as far as served here."""

from __future__ import annotations

from collections.abc import Mapping

from consumerd.embedded.handlers.context import RequestContext
from consumerd.net.versions import VersionRange
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse


class ApiVersionsHandler:
    """Returns ``ranges``."""

    def __init__(self, ranges: Mapping[ApiKey, VersionRange]) -> None:
        self._response = ApiVersionsResponse(
            api_versions=tuple(
                ApiVersionRange(api_key=api, min_version=versions.first, max_version=versions.last)
                for api, versions in sorted(ranges.items())
            )
        )

    async def __call__(self, _request: ApiVersionsRequest, _context: RequestContext) -> ApiVersionsResponse:
        """Respond."""
        return self._response
