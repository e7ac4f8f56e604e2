# SPDX-License-Identifier: Apache-2.0
"""Kafka releases that a broker can imitate: API versions, formats and behaviour.

Version ranges are those of ``net.versions.RELEASES``, limited to the ones served here. On an unknown request, brokers
of 0.8 close the connection; 0.9 stops reading and leaves it open (an exception in the processor thread loses the
request); from 0.10 on, clients can ask by ApiVersions. On an unsupported version, all close the connection, except for
ApiVersions itself, where the response is error 35 in version 0 (KIP-35).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from consumerd.errors import ConfigError
from consumerd.net.versions import RELEASES, Release, VersionRange
from consumerd.wire.apikeys import ApiKey

SERVED: Final[Mapping[ApiKey, VersionRange]] = {
    ApiKey.PRODUCE: VersionRange(0, 3),
    ApiKey.FETCH: VersionRange(0, 5),
    ApiKey.LIST_OFFSETS: VersionRange(0, 2),
    ApiKey.METADATA: VersionRange(0, 5),
    ApiKey.OFFSET_COMMIT: VersionRange(0, 3),
    ApiKey.OFFSET_FETCH: VersionRange(0, 3),
    ApiKey.FIND_COORDINATOR: VersionRange(0, 1),
    ApiKey.JOIN_GROUP: VersionRange(0, 2),
    ApiKey.HEARTBEAT: VersionRange(0, 1),
    ApiKey.LEAVE_GROUP: VersionRange(0, 1),
    ApiKey.SYNC_GROUP: VersionRange(0, 1),
    ApiKey.DESCRIBE_GROUPS: VersionRange(0, 1),
    ApiKey.LIST_GROUPS: VersionRange(0, 1),
    ApiKey.API_VERSIONS: VersionRange(0, 0),
}
"""The largest version ranges of this broker.

Metadata goes further than needed: clients deduce the release from its versions, and 0.11's message format from it.
"""

MessageFormat = Literal[0, 1, 2]
"""The magic of stored messages."""


class OnUnknownRequest(enum.Enum):
    """A release's reaction to a request with an unknown API key."""

    CLOSE = "close"
    FALL_SILENT = "fall silent"
    """Sends no more responses on that connection, and leaves it open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """A release as its clients see it."""

    name: str
    release: Release
    ranges: Mapping[ApiKey, VersionRange]
    message_format: MessageFormat
    """The magic stored by its logs by default."""
    on_unknown_request: OnUnknownRequest


def _imitate(name: str, release: Release, message_format: MessageFormat, unknown: OnUnknownRequest) -> Imitation:
    ranges = {
        key: VersionRange(served.first, min(served.last, theirs.last))
        for key, served in SERVED.items()
        if (theirs := RELEASES[release].get(key)) is not None
    }
    return Imitation(
        name=name, release=release, ranges=ranges, message_format=message_format, on_unknown_request=unknown
    )


IMITATIONS: Final[Mapping[str, Imitation]] = {
    one.name: one
    for one in (
        _imitate("0.8.2", (0, 8, 2), 0, OnUnknownRequest.CLOSE),
        _imitate("0.9", (0, 9), 0, OnUnknownRequest.FALL_SILENT),
        _imitate("0.10", (0, 10, 2), 1, OnUnknownRequest.CLOSE),
        _imitate("1.1", (1, 1), 2, OnUnknownRequest.CLOSE),
    )
}
"""The values of ``--as-release``."""


def get_imitation(name: str) -> Imitation:
    """Return the imitation named by ``--as-release``. Raises ConfigError."""
    imitation = IMITATIONS.get(name)
    if imitation is None:
        raise ConfigError(f"as-release: expected one of {', '.join(IMITATIONS)}, got {name!r}")
    return imitation
