# SPDX-License-Identifier: Apache-2.0
"""Which version of each request a broker and we speak: negotiated, assumed of an old release, or pinned.

Pure. A broker of 0.10 or later lists its ranges when asked (ApiVersions, KIP-35). Older ones do not know the question:
0.8 closes the connection on it, 0.9 never answers and leaves the connection dead. They are told apart from a broker
that is down or slow by a second connection (see ``net.dialer``), and what they speak is then taken from
:data:`RELEASES`: the ranges that brokers of each release answer, and for those that answer none, what the protocol guide
of the release and the Java clients' recorded requests have. All ranges begin at 0 up to the releases of ZooKeeper's time.

:class:`VersionMemory` keeps what was assumed, so that not every connection waits for a silence; only for some minutes,
since a broker may be upgraded in place.
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
"""``(0, 10, 2)``: a Kafka release, as many numbers as matter."""

AUTO: Final = "auto"
"""The setting that asks the broker."""

RELEASE_0_8: Final[Release] = (0, 8, 2)
RELEASE_0_9: Final[Release] = (0, 9)

_RELEASE: Final = re.compile(r"\d{1,3}(\.\d{1,3}){1,3}")

_FIRST_MUTING_FETCH: Final = 8


class Origin(enum.Enum):
    """How a broker's ranges are known."""

    NEGOTIATED = "negotiated"
    """The broker listed them."""
    ASSUMED = "assumed"
    """It does not know ApiVersions, which gives its release away."""
    PINNED = "pinned"
    """``cluster.broker_version`` says so; the broker is not asked."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions ``first`` to ``last``, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"v{self.first}" if self.first == self.last else f"v{self.first} to v{self.last}"


def _ranges(fetch: int, list_offsets: int, metadata: int, **others: int) -> Mapping[ApiKey, VersionRange]:
    newest = {ApiKey.FETCH: fetch, ApiKey.LIST_OFFSETS: list_offsets, ApiKey.METADATA: metadata}
    newest |= {ApiKey[name.upper()]: last for name, last in others.items()}
    return {key: VersionRange(0, last) for key, last in newest.items()}


def _groups(coordinator: int, join: int, others: int) -> dict[str, int]:
    """Return the group requests' newest versions; all but JoinGroup's moved together."""
    names = ("heartbeat", "leave_group", "sync_group", "describe_groups", "list_groups")
    return {"find_coordinator": coordinator, "join_group": join, **dict.fromkeys(names, others)}


RELEASES: Final[Mapping[Release, Mapping[ApiKey, VersionRange]]] = {
    (0, 8, 0): _ranges(0, 0, 0, produce=0),
    (0, 8, 1): _ranges(0, 0, 0, produce=0, offset_commit=0, offset_fetch=0),
    (0, 8, 2): _ranges(0, 0, 0, produce=0, offset_commit=1, offset_fetch=1, find_coordinator=0),
    (0, 9): _ranges(1, 0, 0, produce=1, offset_commit=2, offset_fetch=1, **_groups(0, 0, 0)),
    (0, 10, 0): _ranges(2, 0, 1, produce=2, offset_commit=2, offset_fetch=1, api_versions=0, **_groups(0, 0, 0)),
    (0, 10, 1): _ranges(3, 1, 2, produce=2, offset_commit=2, offset_fetch=1, api_versions=0, **_groups(0, 1, 0)),
    (0, 10, 2): _ranges(3, 1, 2, produce=2, offset_commit=2, offset_fetch=2, api_versions=0, **_groups(0, 1, 0)),
    (0, 11): _ranges(5, 2, 4, produce=3, offset_commit=3, offset_fetch=3, api_versions=1, **_groups(1, 2, 1)),
    (1, 0): _ranges(6, 2, 5, produce=5, offset_commit=3, offset_fetch=3, api_versions=1, **_groups(1, 2, 1)),
    (1, 1): _ranges(7, 2, 5, produce=5, offset_commit=3, offset_fetch=3, api_versions=1, **_groups(1, 2, 1)),
    (2, 0): _ranges(8, 3, 6, produce=6, offset_commit=4, offset_fetch=4, api_versions=2, **_groups(2, 3, 2)),
    (2, 1): _ranges(10, 4, 7, produce=7, offset_commit=6, offset_fetch=5, api_versions=2, **_groups(2, 3, 2)),
    (2, 3): _ranges(11, 5, 8, produce=7, offset_commit=7, offset_fetch=5, api_versions=2, **_groups(2, 5, 2)),
}
"""What a release's brokers speak of the requests that consumerd knows; one not listed is like the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerVersions:
    """What one broker speaks. ``release`` is set unless it was negotiated."""

    origin: Origin
    ranges: Mapping[ApiKey, VersionRange]
    release: Release | None = None

    def choose(self, request: type[Request[Any]]) -> int:
        """Return the newest version of a request that both sides speak. Raises UnsupportedVersion."""
        theirs = self.ranges.get(request.api)
        ours = VersionRange(request.versions.start, request.versions.stop - 1)
        if theirs is None:
            raise UnsupportedVersion(f"{request.api.name}: the broker ({self}) does not know it; we speak {ours}")
        newest = min(theirs.last, ours.last)
        if newest < max(theirs.first, ours.first):
            raise UnsupportedVersion(f"{request.api.name}: the broker ({self}) speaks {theirs}, we speak {ours}")
        return newest

    @property
    def mutes_after_answer(self) -> bool:
        """Whether a throttle time that it reports is still to come.

        Up to 1.x a broker delays a throttled answer, and the time in it is over when it arrives. From 2.0 on (KIP-219)
        it answers at once and reads nothing from the connection for that time, whatever the version of the request; a
        request sent meanwhile would only run into its deadline. Fetch v8 came with that change.
        """
        fetch = self.ranges.get(ApiKey.FETCH)
        return fetch is not None and fetch.last >= _FIRST_MUTING_FETCH

    def __str__(self) -> str:
        release = ".".join(map(str, self.release)) if self.release else ""
        return f"{self.origin.value} {release}".rstrip()


def read_api_versions(response: ApiVersionsResponse) -> BrokerVersions:
    """Make sense of a broker's list; requests that we do not know are left out.

    Raises RemoteProtocolError for an error code, for an empty list, and for a range that ends before it begins.
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
    """Return what brokers of a release speak. Raises ValueError for one before 0.8, which is another generation."""
    known = max((candidate for candidate in RELEASES if candidate <= release), default=None)
    if known is None:
        raise ValueError(f"release {release}: expected 0.8 or later")
    return BrokerVersions(origin=origin, ranges=RELEASES[known], release=release)


def parse_broker_version(text: str) -> BrokerVersions | None:
    """Read ``cluster.broker_version``: None for ``auto``, else what that release speaks. Raises ConfigError."""
    if text == AUTO:
        return None
    release = tuple(map(int, text.split("."))) if _RELEASE.fullmatch(text) else ()
    # "0.8" is the newest of its line, as for the others
    release = RELEASE_0_8 if release == (0, 8) else (0, 10, 2) if release == (0, 10) else release
    try:
        return assume_release(release, Origin.PINNED)
    except ValueError:
        raise ConfigError(
            f"cluster.broker_version: expected auto or a release from 0.8 on, such as 0.8.2 or 0.10.2, got {text!r}"
        ) from None


class VersionMemory:
    """What was assumed of brokers that do not list their versions, for ``keep_s`` seconds each.

    ``now`` is given to each call. What brokers list is not kept: they are asked on every connection, at the price of a
    round trip, so that an upgrade shows at once.
    """

    def __init__(self, keep_s: float = 300.0) -> None:
        self._keep_s = keep_s
        self._assumed: dict[Hashable, tuple[float, BrokerVersions]] = {}

    def remember(self, address: Hashable, versions: BrokerVersions, now: float) -> None:
        """Keep what was assumed just now."""
        self._assumed[address] = (now + self._keep_s, versions)

    def find(self, address: Hashable, now: float) -> BrokerVersions | None:
        """Return what is assumed still, or None: ask."""
        expiry, versions = self._assumed.get(address, (now, None))
        return versions if now < expiry else None

    def forget(self, address: Hashable) -> None:
        """Ask again next time, because the broker may be of another release than was assumed."""
        self._assumed.pop(address, None)


_KNOWN_KEYS: Final = frozenset(int(key) for key in ApiKey)
