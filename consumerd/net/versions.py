# SPDX-License-Identifier: Apache-2.0
"""Versions of requests that a broker speaks: negotiated, assumed of an old release, or pinned.

Pure. A broker of 0.10 or later lists its ranges when asked (ApiVersions, KIP-35). Older brokers do not know that
request: 0.8 closes the connection, 0.9 never answers and leaves the connection dead. A second connection tells them
from a broker that is down or slow (``net.dialer``). Their versions are then taken from :data:`RELEASES`: the ranges
that brokers of each release list, and for releases that list none, those of the protocol guide and of the Java clients'
recorded requests. All these ranges begin at 0, until brokers of 4.0 dropped old versions (KIP-896).

Brokers of 4.x list Produce from version 0 on, as a courtesy to a client that compares only the first version, and close
the connection without an answer on versions 0 to 2 (KAFKA-18659). The rows of the table have the version that works.

:class:`VersionMemory` keeps assumed versions, so that not every connection waits for a broker that stays silent. They
are kept for some minutes only, since a broker may be upgraded in place.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from consumerd.errors import ConfigError, RemoteProtocolError, UnsupportedVersion
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionsResponse
from consumerd.wire.schema import Request

Release = tuple[int, ...]
"""Kafka release, as many numbers as matter: ``(0, 10, 2)``."""

AUTO: Final = "auto"
"""Value of the setting ``cluster.broker_version`` for which each broker is asked."""

RELEASE_0_8: Final[Release] = (0, 8, 2)
RELEASE_0_9: Final[Release] = (0, 9)

_RELEASE: Final = re.compile(r"\d{1,3}(\.\d{1,3}){1,3}")

_FIRST_MUTING_FETCH: Final = 8


class Origin(enum.Enum):
    """Source of a broker's ranges of request versions."""

    NEGOTIATED = "negotiated"
    """The broker has listed its ranges."""
    ASSUMED = "assumed"
    """The ranges are those of an old release, because the broker does not support ApiVersions (``net.dialer``)."""
    PINNED = "pinned"
    """The setting ``cluster.broker_version`` names the release; the broker is not asked."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Range of versions of a request, ``first`` to ``last``, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"v{self.first}" if self.first == self.last else f"v{self.first} to v{self.last}"


def _ranges(fetch: int, list_offsets: int, metadata: int, **others: int) -> Mapping[ApiKey, VersionRange]:
    newest = {ApiKey.FETCH: fetch, ApiKey.LIST_OFFSETS: list_offsets, ApiKey.METADATA: metadata}
    newest |= {ApiKey[name.upper()]: last for name, last in others.items()}
    return {key: VersionRange(0, last) for key, last in newest.items()}


def _first(api_versions: int, handshake: int, authenticate: int | None = None) -> dict[str, int]:
    """Return the newest versions of ApiVersions and of the requests for SASL.

    They come first on a connection. Brokers before 1.0 do not have SaslAuthenticate.
    """
    later = {} if authenticate is None else {"sasl_authenticate": authenticate}
    return {"api_versions": api_versions, "sasl_handshake": handshake, **later}


def _groups(coordinator: int, join: int, others: int) -> dict[str, int]:
    """Return the group requests' newest versions; JoinGroup has its own, all others share one."""
    names = ("heartbeat", "leave_group", "sync_group", "describe_groups", "list_groups")
    return {"find_coordinator": coordinator, "join_group": join, **dict.fromkeys(names, others)}


def _transactions(others: int, txn_offset_commit: int) -> dict[str, int]:
    """Return the newest versions of transactional requests; TxnOffsetCommit has its own, all others share one."""
    names = ("init_producer_id", "add_partitions_to_txn", "add_offsets_to_txn", "end_txn")
    return {"txn_offset_commit": txn_offset_commit, **dict.fromkeys(names, others)}


def _listed(**spoken: int | tuple[int, int]) -> Mapping[ApiKey, VersionRange]:
    """Return ranges; a single number is the last version of a range from 0."""
    return {
        ApiKey[name.upper()]: VersionRange(*versions) if isinstance(versions, tuple) else VersionRange(0, versions)
        for name, versions in spoken.items()
    }


RELEASES: Final[Mapping[Release, Mapping[ApiKey, VersionRange]]] = {
    (0, 8, 0): _ranges(0, 0, 0, produce=0),
    (0, 8, 1): _ranges(0, 0, 0, produce=0, offset_commit=0, offset_fetch=0),
    (0, 8, 2): _ranges(0, 0, 0, produce=0, offset_commit=1, offset_fetch=1, find_coordinator=0),
    (0, 9): _ranges(1, 0, 0, produce=1, offset_commit=2, offset_fetch=1, **_groups(0, 0, 0)),
    (0, 10, 0): _ranges(2, 0, 1, produce=2, offset_commit=2, offset_fetch=1, **_first(0, 0), **_groups(0, 0, 0)),
    (0, 10, 1): _ranges(
        3, 1, 2, produce=2, offset_commit=2, offset_fetch=1, create_topics=0, **_first(0, 0), **_groups(0, 1, 0)
    ),
    (0, 10, 2): _ranges(
        3, 1, 2, produce=2, offset_commit=2, offset_fetch=2, create_topics=1, **_first(0, 0), **_groups(0, 1, 0)
    ),
    (0, 11): _ranges(
        5,
        2,
        4,
        produce=3,
        offset_commit=3,
        offset_fetch=3,
        create_topics=2,
        describe_configs=0,
        **_first(1, 0),
        **_groups(1, 2, 1),
        **_transactions(0, 0),
    ),
    (1, 0): _ranges(
        6,
        2,
        5,
        produce=5,
        offset_commit=3,
        offset_fetch=3,
        create_topics=2,
        describe_configs=0,
        create_partitions=0,
        **_first(1, 1, 0),
        **_groups(1, 2, 1),
        **_transactions(0, 0),
    ),
    (1, 1): _ranges(
        7,
        2,
        5,
        produce=5,
        offset_commit=3,
        offset_fetch=3,
        create_topics=2,
        describe_configs=1,
        create_partitions=0,
        **_first(1, 1, 0),
        **_groups(1, 2, 1),
        **_transactions(0, 0),
    ),
    (2, 0): _ranges(
        8,
        3,
        6,
        produce=6,
        offset_commit=4,
        offset_fetch=4,
        create_topics=3,
        describe_configs=2,
        create_partitions=1,
        **_first(2, 1, 0),
        **_groups(2, 3, 2),
        **_transactions(1, 1),
    ),
    (2, 1): _ranges(
        10,
        4,
        7,
        produce=7,
        offset_commit=6,
        offset_fetch=5,
        create_topics=3,
        describe_configs=2,
        create_partitions=1,
        **_first(2, 1, 0),
        **_groups(2, 3, 2),
        **_transactions(1, 2),
    ),
    (2, 3): _ranges(
        11,
        5,
        8,
        produce=7,
        offset_commit=7,
        offset_fetch=5,
        create_topics=3,
        describe_configs=2,
        create_partitions=1,
        **_first(2, 1, 1),
        **_groups(2, 5, 2),
        **_transactions(1, 2),
    ),
    (2, 8): _listed(
        produce=9,
        fetch=12,
        list_offsets=6,
        metadata=11,
        offset_commit=8,
        offset_fetch=7,
        find_coordinator=3,
        join_group=7,
        heartbeat=4,
        leave_group=4,
        sync_group=5,
        describe_groups=5,
        list_groups=4,
        api_versions=3,
        sasl_handshake=1,
        sasl_authenticate=2,
        create_topics=7,
        describe_configs=4,
        create_partitions=3,
        init_producer_id=4,
        add_partitions_to_txn=3,
        add_offsets_to_txn=3,
        end_txn=3,
        txn_offset_commit=3,
    ),
    (3, 9): _listed(
        produce=11,
        fetch=17,
        list_offsets=9,
        metadata=12,
        offset_commit=9,
        offset_fetch=9,
        find_coordinator=6,
        join_group=9,
        heartbeat=4,
        leave_group=5,
        sync_group=5,
        describe_groups=5,
        list_groups=5,
        api_versions=4,
        sasl_handshake=1,
        sasl_authenticate=2,
        create_topics=7,
        describe_configs=4,
        create_partitions=3,
        init_producer_id=5,
        add_partitions_to_txn=5,
        add_offsets_to_txn=4,
        end_txn=4,
        txn_offset_commit=4,
    ),
    (4, 0): _listed(
        produce=(3, 12),
        fetch=(4, 17),
        list_offsets=(1, 10),
        metadata=13,
        offset_commit=(2, 9),
        offset_fetch=(1, 9),
        find_coordinator=6,
        join_group=9,
        heartbeat=4,
        leave_group=5,
        sync_group=5,
        describe_groups=6,
        list_groups=5,
        api_versions=4,
        sasl_handshake=1,
        sasl_authenticate=2,
        create_topics=(2, 7),
        describe_configs=(1, 4),
        create_partitions=3,
        init_producer_id=5,
        add_partitions_to_txn=5,
        add_offsets_to_txn=4,
        end_txn=5,
        txn_offset_commit=5,
    ),
    (4, 3): _listed(
        produce=(3, 13),
        fetch=(4, 18),
        list_offsets=(1, 11),
        metadata=13,
        offset_commit=(2, 10),
        offset_fetch=(1, 10),
        find_coordinator=6,
        join_group=9,
        heartbeat=4,
        leave_group=5,
        sync_group=5,
        describe_groups=6,
        list_groups=5,
        api_versions=4,
        sasl_handshake=1,
        sasl_authenticate=2,
        create_topics=(2, 7),
        describe_configs=(1, 4),
        create_partitions=3,
        init_producer_id=5,
        add_partitions_to_txn=5,
        add_offsets_to_txn=4,
        end_txn=5,
        txn_offset_commit=5,
    ),
}
"""Versions of each request by Kafka release; a release that is not listed is like the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerVersions:
    """Request versions that one broker supports.

    Attributes:
        origin: source of the versions: the broker's list, an assumed release, or the settings.
        ranges: first and last version of each kind of request.
        release: the Kafka release whose versions are assumed or set; None if the broker has listed them.
    """

    origin: Origin
    ranges: Mapping[ApiKey, VersionRange]
    release: Release | None = None

    def choose(self, request: type[Request[Any]], *, at_most: int | None = None) -> int:
        """Return the newest version of a request that both sides support, up to ``at_most``.

        None for ``at_most`` sets no limit. Raises UnsupportedVersion if there is no such version.
        """
        theirs = self.ranges.get(request.api)
        newest_of_ours = request.versions.stop - 1
        ours = VersionRange(request.versions.start, newest_of_ours if at_most is None else min(newest_of_ours, at_most))
        if theirs is None:
            raise UnsupportedVersion(f"{request.api.name}: the broker ({self}) does not know it; we speak {ours}")
        newest = min(theirs.last, ours.last)
        if newest < max(theirs.first, ours.first):
            raise UnsupportedVersion(f"{request.api.name}: the broker ({self}) speaks {theirs}, we speak {ours}")
        return newest

    @property
    def mutes_after_answer(self) -> bool:
        """True if a throttling broker responds at once, then reads nothing for the throttle time.

        Up to 1.x a throttling broker delays the response, so the throttle time has passed when the response arrives.
        From 2.0 on (KIP-219) it responds at once and then reads nothing from the connection for that time, in all
        versions of the request. A request sent meanwhile would only time out. Brokers that support Fetch v8 are of 2.0
        or later.
        """
        fetch = self.ranges.get(ApiKey.FETCH)
        return fetch is not None and fetch.last >= _FIRST_MUTING_FETCH

    def __str__(self) -> str:
        release = ".".join(map(str, self.release)) if self.release else ""
        return f"{self.origin.value} {release}".rstrip()


def read_api_versions(response: ApiVersionsResponse) -> BrokerVersions:
    """Return the request versions in a broker's ApiVersions response.

    Requests that consumerd does not know are left out. Raises RemoteProtocolError for an error code, for an empty list,
    and for a range whose last version is below its first.
    """
    if response.error_code:
        raise RemoteProtocolError(f"ApiVersions v0: expected no error, got code {response.error_code}")
    ranges = {}
    for entry in response.api_versions:
        if entry.max_version < entry.min_version or entry.min_version < 0:
            raise RemoteProtocolError(
                f"ApiVersions: request {entry.api_key} has versions {entry.min_version} to {entry.max_version}, "
                "expected a range that is not flipped"
            )
        if entry.api_key in _KNOWN_KEYS:
            ranges[ApiKey(entry.api_key)] = VersionRange(entry.min_version, entry.max_version)
    if not ranges:
        raise RemoteProtocolError("ApiVersions: expected the requests that the broker knows, got none")
    return BrokerVersions(origin=Origin.NEGOTIATED, ranges=ranges)


def assume_release(release: Release, origin: Origin = Origin.ASSUMED) -> BrokerVersions:
    """Return the request versions that brokers of a Kafka release support.

    Raises ValueError for a release before 0.8, which has another protocol.
    """
    known = max((candidate for candidate in RELEASES if candidate <= release), default=None)
    if known is None:
        raise ValueError(f"release {release}: expected 0.8 or later")
    return BrokerVersions(origin=origin, ranges=RELEASES[known], release=release)


def parse_broker_version(text: str) -> BrokerVersions | None:
    """Return the request versions of the release in ``cluster.broker_version``; None for ``auto``.

    Raises ConfigError.
    """
    if text == AUTO:
        return None
    release = tuple(map(int, text.split("."))) if _RELEASE.fullmatch(text) else ()
    # "0.8" and "0.10" mean the newest release of their line
    release = RELEASE_0_8 if release == (0, 8) else (0, 10, 2) if release == (0, 10) else release
    try:
        return assume_release(release, Origin.PINNED)
    except ValueError:
        raise ConfigError(
            f"cluster.broker_version: expected auto or a release from 0.8 on, such as 0.8.2 or 0.10.2, got {text!r}"
        ) from None


class VersionMemory:
    """Assumed request versions of brokers that do not list theirs, kept for ``keep_s`` seconds.

    The memory has no clock: callers pass the present time, ``now``, in seconds of a monotonic clock. Versions that a
    broker has listed are not kept. Each connection asks for them, at the price of a round trip, so that an upgrade of
    the broker shows at once.
    """

    def __init__(self, keep_s: float = 300.0) -> None:
        self._keep_s = keep_s
        self._assumed: dict[Hashable, tuple[float, BrokerVersions]] = {}

    def remember(self, address: Hashable, versions: BrokerVersions, now: float) -> None:
        """Keep the request versions that were assumed just now for a broker."""
        self._assumed[address] = (now + self._keep_s, versions)

    def find(self, address: Hashable, now: float) -> BrokerVersions | None:
        """Return the request versions that are still assumed for a broker; None if none are."""
        expiry, versions = self._assumed.get(address, (now, None))
        return versions if now < expiry else None

    def forget(self, address: Hashable) -> None:
        """Drop the assumed versions of a broker, so that it is asked again next time.

        To be called when the broker seems to be of another release than was assumed.
        """
        self._assumed.pop(address, None)


_KNOWN_KEYS: Final = frozenset(int(key) for key in ApiKey)
