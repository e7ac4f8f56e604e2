# SPDX-License-Identifier: Apache-2.0
"""Node contents of Kafka 0.6 and 0.7 against recorded registries, and against what never came from one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumerd.model import BrokerId, Generation
from consumerd.zk import znodes
from consumerd.zk.znodes import Endpoint, LegacyRegistration, MalformedZnode, MemberRegistration, Pattern
from consumerd.zk.znodes_legacy import (
    encode_registration,
    find_generation,
    parse_broker,
    parse_partition_count,
    parse_registration,
)
from tests.support.znode_recordings import LEGACY, load_legacy


def recorded(parent: str) -> list[tuple[str, bytes]]:
    """Every ephemeral node below a parent of that name, from every recording."""
    found = {
        (path, node.data)
        for name in LEGACY
        for path, node in load_legacy(name).items()
        if node.ephemeral and f"/{parent}/" in path
    }
    assert found, parent
    return sorted(found)


def static(**streams: int) -> MemberRegistration:
    return MemberRegistration(pattern=Pattern.STATIC, subscription=streams, timestamp_ms=None)


def by_list(pattern: Pattern, expression: str, streams: int) -> MemberRegistration:
    return MemberRegistration(pattern=pattern, subscription={expression: streams}, timestamp_ms=None)


REGISTRATIONS = {
    b'{ "cons": 1 }': static(cons=1),
    b'{ "jprod0": 1,"cons": 2 }': static(jprod0=1, cons=2),
    b"*1*cons": by_list(Pattern.WHITE_LIST, "cons", 1),
    b"!12!tmp.*|a!b": by_list(Pattern.BLACK_LIST, "tmp.*|a!b", 12),
}


@pytest.mark.parametrize("data", REGISTRATIONS)
def test_registrations_are_written_as_kafka_0_7_writes_them(data: bytes) -> None:
    """One payload that differs from the Java form can fail every Java member's rebalance."""
    assert data == encode_registration(REGISTRATIONS[data])
    assert REGISTRATIONS[data] == parse_registration(data)


@pytest.mark.parametrize(("path", "data"), recorded("consumers"))
def test_recorded_members_are_read(path: str, data: bytes) -> None:
    """Those of Kafka come back byte for byte; Jafka writes no spaces."""
    if "/owners/" in path:
        return
    parsed = parse_registration(data)
    again = encode_registration(parsed)
    if "/jg/" in path:
        assert static(jt=2) == parsed
        again = again.replace(b" ", b"")
    assert data == again


def test_recorded_brokers_are_read() -> None:
    """Jafka's node has a fourth field."""
    found = {
        (name, *((one.host, one.port) for one in parse_broker(BrokerId(int(name)), data).endpoints))
        for path, data in recorded("brokers/ids")
        for name in [path.rpartition("/")[2]]
    }
    ports = {("0", 22110), ("1", 22111), ("6", 22121)}
    assert {(name, ("127.0.0.1", port)) for name, port in ports} == found


@pytest.mark.parametrize(
    ("data", "host", "port"),
    [
        (b"10.0.0.12-1324306324402:10.0.0.12:9092", "10.0.0.12", 9092),
        (b":kafka.example:1", "kafka.example", 1),
        (b'any {"text" 1, \n:h:65535:false', "h", 65535),
        ("é#1-1:fd00##1:9092:true".encode(), "fd00::1", 9092),
    ],
)
def test_address_of_a_broker_is_after_the_creator(data: bytes, host: str, port: int) -> None:
    """The creator is any text without a colon; Jafka writes the colons of IPv6 as #."""
    broker = parse_broker(BrokerId(3), data)
    assert (Endpoint(listener="PLAINTEXT", protocol="PLAINTEXT", host=host, port=port),) == broker.endpoints
    assert (3, 0) == (broker.id, broker.version)
    assert Generation.LEGACY is find_generation(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"c", b"c:h", b"c::9092", b"c:h:0", b"c:h:65536", b"c:h:9x", b"c:h:9092:maybe", b"c:h:9092:true:", b"\xff"],
)
def test_broker_without_an_address_is_malformed(data: bytes) -> None:
    """It names what was expected."""
    with pytest.raises(MalformedZnode, match="expected"):
        parse_broker(BrokerId(0), data)


def test_recorded_counts_are_read() -> None:
    """Every topic of the recordings has three partitions on each broker."""
    assert {3} == {parse_partition_count(data) for _, data in recorded("brokers/topics")}
    assert 0 == parse_partition_count(b"0")


@pytest.mark.parametrize("data", [b"", b"-1", b"3 ", b"3.0", b"100001", b"9" * 5000, "\u0663".encode(), b"\xff"])
def test_nonsense_as_a_count_is_malformed(data: bytes) -> None:
    """A huge number must not become as many partitions."""
    with pytest.raises(MalformedZnode, match="expected"):
        parse_partition_count(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "expected a JSON object"),
        (b"cons", "expected a JSON object"),
        (b"[]", "expected a JSON object"),
        (b'{ "cons": 0 }', "at least one stream"),
        (b'{ "cons": "1" }', "streams of topic 'cons': expected a number, got str"),
        (b'{ "cons": 1.0 }', "expected a number, got float"),
        (b'{ "cons": true }', "expected a number, got bool"),
        (b'{ "cons": 100001 }', "more than 100000 streams"),
        (b"*0*cons", "at least one stream"),
        (b"*9999999999*cons", "more than 100000 streams"),
        (b"*" + b"9" * 5000 + b"*cons", "expected a JSON object"),
        (b"*1!cons", "expected a JSON object"),
        (b"*1*\xff", "expected UTF-8"),
    ],
)
def test_unreadable_registration_is_malformed(data: bytes, reason: str) -> None:
    """No Java member of 0.7 can read these."""
    with pytest.raises(MalformedZnode, match=reason):
        parse_registration(data)


@pytest.mark.parametrize("pattern", Pattern)
def test_generations_do_not_read_each_others_members(pattern: Pattern) -> None:
    """One in a group of the other fails the rebalances of all, and the message says why."""
    registration = MemberRegistration(pattern=pattern, subscription={"t": 1}, timestamp_ms=None)
    with pytest.raises(MalformedZnode, match=r"0\.8 and later") as refused:
        parse_registration(znodes.encode_registration(registration))
    assert not isinstance(refused.value, LegacyRegistration)
    with pytest.raises(LegacyRegistration):
        znodes.parse_registration(encode_registration(registration))


@settings(deadline=None)
@given(
    pattern=st.sampled_from(Pattern),
    streams=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 64), min_size=1, max_size=3
    ),
)
def test_registrations_survive_the_round(pattern: Pattern, streams: dict[str, int]) -> None:
    """Topics may be called anything in 0.7, and an expression may contain the signs of lists."""
    if pattern is not Pattern.STATIC:
        streams = dict(list(streams.items())[:1])
    registration = MemberRegistration(pattern=pattern, subscription=streams, timestamp_ms=None)
    assert registration == parse_registration(encode_registration(registration))


_texts = st.binary(max_size=64) | st.text(alphabet='*!1:"{} ,t-#', max_size=24).map(str.encode)
_payloads = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3)).map(
    lambda one: json.dumps(one).encode()
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=_texts | _payloads)
@pytest.mark.parametrize(
    "parse", [parse_registration, lambda data: parse_broker(BrokerId(1), data), parse_partition_count, find_generation]
)
def test_parsers_raise_nothing_but_malformed(parse: Callable[[bytes], object], data: bytes) -> None:
    """A surprise in one node must not become a surprise in a task."""
    try:
        parse(data)
    except MalformedZnode:
        return
