# SPDX-License-Identifier: Apache-2.0
"""Which version of a request is spoken."""

from __future__ import annotations

import pytest

from consumerd.errors import ConfigError, RemoteProtocolError, UnsupportedVersion
from consumerd.net.versions import (
    RELEASES,
    BrokerVersions,
    Origin,
    VersionMemory,
    VersionRange,
    assume_release,
    parse_broker_version,
    read_api_versions,
)
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionRange, ApiVersionsResponse
from consumerd.wire.modern.fetch import FetchRequest
from consumerd.wire.modern.list_offsets import ListOffsetsRequest
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.schema import compile_codec
from tests.support.frames import REQUESTS, load_frames
from tests.support.scripted_broker import listing


def negotiated(key: ApiKey, first: int, last: int) -> BrokerVersions:
    return read_api_versions(listing({key: (first, last)}))


@pytest.mark.parametrize(("theirs", "spoken"), [((0, 3), 3), ((0, 11), 11), ((4, 17), 11), ((11, 12), 11), ((0, 0), 0)])
def test_newest_common_version_is_chosen(theirs: tuple[int, int], spoken: int) -> None:
    """Anything older makes the broker convert."""
    assert spoken == negotiated(ApiKey.FETCH, *theirs).choose(FetchRequest)


def test_no_common_version_names_both_ranges() -> None:
    """The reader of the log must see which side is too old."""
    with pytest.raises(
        UnsupportedVersion, match=r"LIST_OFFSETS: the broker \(negotiated\) speaks v7 to v9, we speak v0 to"
    ):
        negotiated(ApiKey.LIST_OFFSETS, 7, 9).choose(ListOffsetsRequest)


def test_request_that_the_broker_lacks_is_an_error() -> None:
    """It would close the connection."""
    with pytest.raises(UnsupportedVersion, match="does not know it"):
        negotiated(ApiKey.FETCH, 0, 1).choose(MetadataRequest)


@pytest.mark.parametrize(("first", "last"), [(3, 2), (-1, 2)])
def test_flipped_range_is_refused(first: int, last: int) -> None:
    """A range that ends before it begins would be negotiated into nonsense."""
    with pytest.raises(RemoteProtocolError, match="flipped"):
        negotiated(ApiKey.FETCH, first, last)


def test_error_code_and_empty_list_are_refused() -> None:
    """Neither says what the broker speaks."""
    with pytest.raises(RemoteProtocolError, match="35"):
        read_api_versions(ApiVersionsResponse(error_code=35, api_versions=()))
    with pytest.raises(RemoteProtocolError, match="got none"):
        read_api_versions(ApiVersionsResponse(api_versions=()))


def test_unknown_requests_are_left_out() -> None:
    """Newer brokers know more than we do."""
    entries = (
        ApiVersionRange(api_key=999, min_version=0, max_version=1),
        ApiVersionRange(api_key=1, min_version=0, max_version=4),
    )

    versions = read_api_versions(ApiVersionsResponse(api_versions=entries))

    assert {ApiKey.FETCH: VersionRange(0, 4)} == versions.ranges


def recorded_list(release: str) -> BrokerVersions:
    frames = (one for one in load_frames() if one.release == release and one.api is ApiKey.API_VERSIONS)
    response = next(one.response for one in frames if one.version == 0 and one.response is not None)
    return read_api_versions(compile_codec(ApiVersionsResponse, 0).decode(memoryview(response)[8:]))


def test_table_agrees_with_what_a_real_broker_lists() -> None:
    """The table is for brokers that cannot be asked; those that can are its oracle (others: tests/interop)."""
    listed = recorded_list("0.10.2.2").ranges
    assumed = assume_release((0, 10, 2)).ranges

    assert dict(assumed) == {key: spoken for key, spoken in listed.items() if key in assumed}


@pytest.mark.parametrize(("recorded", "release"), [("2.8.2", (2, 8)), ("4.0.2", (4, 0)), ("4.3.1", (4, 3))], ids=str)
def test_rows_since_2_8_are_what_brokers_list(recorded: str, release: tuple[int, ...]) -> None:
    """But for Produce on 4.x, whose versions 0 to 2 are listed and close the connection (KAFKA-18659)."""
    listed = dict(recorded_list(recorded).ranges)
    if release >= (4, 0):
        assert VersionRange(0, RELEASES[release][ApiKey.PRODUCE].last) == listed[ApiKey.PRODUCE]
        listed[ApiKey.PRODUCE] = VersionRange(3, listed[ApiKey.PRODUCE].last)

    assert listed.keys() - RELEASES[release].keys() <= {ApiKey.SASL_HANDSHAKE}
    assert RELEASES[release] == {key: listed[key] for key in RELEASES[release]}


@pytest.mark.parametrize("release", [(3, 9), (4, 0), (4, 3)])
def test_every_request_can_be_sent_to_later_brokers(release: tuple[int, ...]) -> None:
    """Versions that they dropped must not be the newest that we have."""
    pinned = assume_release(release)

    for request in REQUESTS.values():
        assert pinned.choose(request) in request.versions


def test_newer_broker_speaks_all_that_the_table_has() -> None:
    """A release pinned too low still works."""
    listed = recorded_list("2.8.2").ranges

    for assumed in (RELEASES[release] for release in RELEASES if release <= (2, 8)):
        for key, spoken in assumed.items():
            assert listed[key].first <= spoken.first <= spoken.last <= listed[key].last


@pytest.mark.parametrize("release", ["0.8.2.2", "0.9.0.1"])
def test_table_covers_what_java_clients_spoke_to_old_brokers(release: str) -> None:
    """Brokers that list nothing did answer these."""
    assumed = assume_release(tuple(map(int, release.split("."))))
    spoken: dict[ApiKey, int] = {}
    for frame in load_frames():
        if frame.release == release and frame.response is not None and frame.api is not ApiKey.API_VERSIONS:
            spoken[frame.api] = max(frame.version, spoken.get(frame.api, 0))

    assert spoken
    for key, version in spoken.items():
        assert assumed.ranges[key].first <= version <= assumed.ranges[key].last


@pytest.mark.parametrize(
    ("text", "release", "fetch"),
    [
        ("0.8", (0, 8, 2), 0),
        ("0.8.1", (0, 8, 1), 0),
        ("0.8.2.2", (0, 8, 2, 2), 0),
        ("0.9", (0, 9), 1),
        ("0.9.0.1", (0, 9, 0, 1), 1),
        ("0.10", (0, 10, 2), 3),
        ("0.10.2", (0, 10, 2), 3),
        ("0.11.0.3", (0, 11, 0, 3), 5),
        ("1.1.1", (1, 1, 1), 7),
        ("2.2", (2, 2), 10),
        ("3.9.1", (3, 9, 1), 17),
    ],
)
def test_release_can_be_pinned(text: str, release: tuple[int, ...], fetch: int) -> None:
    """For networks in which asking does harm."""
    pinned = parse_broker_version(text)

    assert pinned is not None
    assert (Origin.PINNED, release) == (pinned.origin, pinned.release)
    assert VersionRange(0, fetch) == pinned.ranges[ApiKey.FETCH]


def test_auto_pins_nothing() -> None:
    """The default asks."""
    assert parse_broker_version("auto") is None


@pytest.mark.parametrize("text", ["", "0.7", "0.7.2", "1", "x", "0.10-", "1.1.1.1.1", "latest"])
def test_nonsense_is_a_configuration_error(text: str) -> None:
    """One clear message with the key."""
    with pytest.raises(ConfigError, match=r"cluster\.broker_version"):
        parse_broker_version(text)


@pytest.mark.parametrize(("release", "after"), [(release, release >= (2, 0)) for release in RELEASES])
def test_only_brokers_since_2_0_throttle_after_they_answered(release: tuple[int, ...], after: bool) -> None:
    """KIP-219."""
    assert after is assume_release(release).mutes_after_answer


def test_assumptions_are_forgotten_in_time() -> None:
    """A broker may be upgraded in place."""
    memory = VersionMemory(keep_s=300)
    versions = assume_release((0, 9))

    memory.remember("a", versions, 1000)

    assert versions is memory.find("a", 1299)
    assert memory.find("a", 1300) is None
    assert memory.find("b", 1000) is None
    memory.forget("a")
    assert memory.find("a", 1001) is None
