# SPDX-License-Identifier: Apache-2.0
"""Which release of Kafka a broker passes for: what it speaks, how it stores, and what it does on an ApiVersions request.

Ranges are those of ``net.versions.RELEASES``, cut by what is served here. Brokers of 0.8 close the connection on a request
that they do not know; 0.9 says nothing on it, reads nothing more and leaves it open (the processor thread loses the
request to an exception); from 0.10 on ApiVersions is answered. All of them close it on a version that they do not speak,
but for ApiVersions itself, where that is error 35 in the form of version 0 (KIP-35).
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
"""What this broker can speak at most.

Metadata goes further than it needs to: clients take its versions for the release, and 0.11's for the message format.
"""

MessageFormat = Literal[0, 1, 2]
"""The magic of what a log stores."""


class OnUnknownRequest(enum.Enum):
    """What a release does with a request whose key it does not know."""

    CLOSE = "close"
    FALL_SILENT = "fall silent"
    """Answers nothing more on that connection, and leaves it open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """A release, as its clients see it."""

    name: str
    release: Release
    ranges: Mapping[ApiKey, VersionRange]
    message_format: MessageFormat
    """What its logs store unless told otherwise."""
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
"""What ``--as-release`` may name."""


def get_imitation(name: str) -> Imitation:
    """Return what ``--as-release`` names. Raises ConfigError."""
    imitation = IMITATIONS.get(name)
    if imitation is None:
        raise ConfigError(f"as-release: expected one of {', '.join(IMITATIONS)}, got {name!r}")
    return imitation
