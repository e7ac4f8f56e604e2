# SPDX-License-Identifier: Apache-2.0
"""Kafka releases that a broker can imitate: API versions, formats and behaviour.

Version ranges are those of ``net.versions.RELEASES``, limited to the ones served here. On an unknown request, brokers
of 0.8 close the connection; 0.9 stops reading and leaves it open (an exception in the processor thread loses the
request); from 0.10 on, clients can ask by ApiVersions. On an unsupported version, all close the connection, except for
ApiVersions itself, where the response is error 35 in version 0 (KIP-35).

Brokers of 4.0 have no ZooKeeper, and no longer speak the oldest versions (KIP-896). They list Produce from version 0 on
and close the connection on versions 0 to 2 (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from consumerd.errors import ConfigError
from consumerd.net.versions import RELEASES, Release, VersionRange
from consumerd.wire.apikeys import ApiKey

SERVED: Final[Mapping[ApiKey, VersionRange]] = {
    ApiKey.PRODUCE: VersionRange(0, 3),
    ApiKey.FETCH: VersionRange(0, 5),
    ApiKey.LIST_OFFSETS: VersionRange(0, 2),
    ApiKey.METADATA: VersionRange(0, 12),
    ApiKey.OFFSET_COMMIT: VersionRange(0, 3),
    ApiKey.OFFSET_FETCH: VersionRange(0, 3),
    ApiKey.FIND_COORDINATOR: VersionRange(0, 1),
    ApiKey.JOIN_GROUP: VersionRange(0, 2),
    ApiKey.HEARTBEAT: VersionRange(0, 1),
    ApiKey.LEAVE_GROUP: VersionRange(0, 1),
    ApiKey.SYNC_GROUP: VersionRange(0, 1),
    ApiKey.DESCRIBE_GROUPS: VersionRange(0, 1),
    ApiKey.LIST_GROUPS: VersionRange(0, 1),
    ApiKey.SASL_HANDSHAKE: VersionRange(0, 1),
    ApiKey.API_VERSIONS: VersionRange(0, 0),
    ApiKey.CREATE_TOPICS: VersionRange(0, 4),
    ApiKey.INIT_PRODUCER_ID: VersionRange(0, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(0, 2),
    ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(0, 2),
    ApiKey.END_TXN: VersionRange(0, 2),
    ApiKey.TXN_OFFSET_COMMIT: VersionRange(0, 3),
    ApiKey.DESCRIBE_CONFIGS: VersionRange(0, 2),
    ApiKey.SASL_AUTHENTICATE: VersionRange(0, 1),
    ApiKey.CREATE_PARTITIONS: VersionRange(0, 1),
}
"""The versions of each API that this broker can serve; each imitated release has a part of them.

Metadata goes further than needed: clients deduce the release from its versions, and 0.11's message format from it.
"""

_FIRST_WITHOUT_ZOOKEEPER: Final = (4, 0)

MessageFormat = Literal[0, 1, 2]
"""The version of the message format (magic) in which a log stores records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """A Kafka release as clients see it: API versions, message format, reactions.

    ``name`` is the value of ``--as-release``, ``release`` its number; ``ranges`` are the versions of each API that
    work.
    """

    name: str
    release: Release
    ranges: Mapping[ApiKey, VersionRange]
    message_format: MessageFormat
    """The version of the message format (magic) that its logs store by default."""
    has_zookeeper: bool = True
    listed_from: Mapping[ApiKey, int] = field(default_factory=dict)
    """First version by API that ApiVersions lists although requests in it close the connection.

    APIs that are missing here list only versions that work.
    """
    falls_silent: bool
    """True if the release sends nothing more on a connection after an unknown API key.

    Other releases close the connection.
    """


def imitate(name: str, release: Release, message_format: MessageFormat, *, falls_silent: bool = False) -> Imitation:
    """Return how this broker imitates a release.

    It serves the versions of requests that both support.

    Args:
        message_format: Version of the message format that the release's logs store by default.
        falls_silent: As for :class:`Imitation`.
    """
    ranges = {
        key: VersionRange(max(served.first, theirs.first), min(served.last, theirs.last))
        for key, served in SERVED.items()
        if (theirs := RELEASES[release].get(key)) is not None
    }
    has_zookeeper = release < _FIRST_WITHOUT_ZOOKEEPER
    return Imitation(
        name=name,
        release=release,
        ranges=ranges,
        message_format=message_format,
        has_zookeeper=has_zookeeper,
        listed_from={} if has_zookeeper else {ApiKey.PRODUCE: 0},
        falls_silent=falls_silent,
    )


IMITATIONS: Final[Mapping[str, Imitation]] = {
    one.name: one
    for one in (
        imitate("0.8.2", (0, 8, 2), 0),
        imitate("0.9", (0, 9), 0, falls_silent=True),
        imitate("0.10", (0, 10, 2), 1),
        imitate("1.1", (1, 1), 2),
    )
}
"""The values of ``--as-release`` for brokers with ZooKeeper."""

WITHOUT_ZOOKEEPER: Final[Mapping[str, Imitation]] = {one.name: one for one in (imitate("4.0", (4, 0), 2),)}
"""The values of ``--as-release`` for brokers without ZooKeeper."""


def get_imitation(name: str) -> Imitation:
    """Return the Kafka release that ``--as-release`` names, as this broker imitates it.

    Raises ConfigError for an unknown name.
    """
    imitation = IMITATIONS.get(name) or WITHOUT_ZOOKEEPER.get(name)
    if imitation is None:
        known = ", ".join((*IMITATIONS, *WITHOUT_ZOOKEEPER))
        raise ConfigError(f"as-release: expected one of {known}, got {name!r}")
    return imitation
