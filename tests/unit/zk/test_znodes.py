# SPDX-License-Identifier: Apache-2.0
"""Node contents against every registry recorded from real clusters, and against what never came from one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumerd.model import BrokerId, PartitionKey, ThreadId
from consumerd.zk import znodes
from consumerd.zk.znodes import (
    Endpoint,
    MalformedZnode,
    MemberRegistration,
    PartitionStateNode,
    Pattern,
    encode_registration,
    normalise_pattern,
    parse_broker,
    parse_cluster_id,
    parse_registration,
)
from consumerd.zk.znodes_legacy import find_generation

VECTORS = Path(__file__).parents[2] / "vectors" / "znodes"

_IDS = re.compile(r"/consumers/[^/]+/ids/[^/]+")
_BROKER = re.compile(r"/brokers/ids/([0-9]+)")
_TOPIC = re.compile(r"/brokers/topics/[^/]+")
_STATE = re.compile(r"/brokers/topics/[^/]+/partitions/[0-9]+/state")
_OFFSET = re.compile(r"/consumers/[^/]+/offsets/[^/]+/[0-9]+")
_OWNER = re.compile(r"/consumers/[^/]+/owners/[^/]+/[0-9]+")


def _walk(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key.startswith("/") and isinstance(inner, dict) and isinstance(inner.get("data"), str):
                yield key, inner["data"]
            yield from _walk(inner)


def recorded(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Every modern node whose path matches, from every recording."""
    found = {
        (path, data)
        for file in VECTORS.glob("*.json")
        for path, data in _walk(json.loads(file.read_text()))
        if pattern.fullmatch(path)
    }
    assert found, pattern
    return sorted(found)


@pytest.mark.parametrize(("path", "data"), recorded(_IDS))
def test_recorded_registrations_encode_back_byte_for_byte(path: str, data: str) -> None:
    """One payload that differs from the Java form can fail every Java member's rebalance."""
    parsed = parse_registration(data.encode())

    assert data.encode() == encode_registration(parsed)


@pytest.mark.parametrize(("path", "data"), recorded(_BROKER))
def test_recorded_brokers_are_read(path: str, data: str) -> None:
    """Brokers of every release tell where they are."""
    match = _BROKER.fullmatch(path)
    assert match is not None
    raw = json.loads(data)

    broker = parse_broker(BrokerId(int(match[1])), data.encode())

    assert raw["version"] == broker.version
    assert int(raw["timestamp"]) == broker.timestamp_ms
    endpoint = broker.find_endpoint("PLAINTEXT")
    assert endpoint is not None
    assert (raw["host"], raw["port"]) == (endpoint.host, endpoint.port)


def test_recorded_topics_are_read_in_numerical_order() -> None:
    """The Java consumer sorts partitions as numbers; the node lists them in hash order."""
    for path, data in recorded(_TOPIC):
        topic = znodes.parse_topic(data.encode())

        expected = {int(key): tuple(value) for key, value in json.loads(data)["partitions"].items()}
        assert sorted(expected.items()) == [(key.number, replicas) for key, replicas in topic.items()], path


def test_recorded_partition_states_are_read() -> None:
    """Leaders come from here where brokers cannot be asked."""
    for path, data in recorded(_STATE):
        raw = json.loads(data)

        expected = PartitionStateNode(
            leader=raw["leader"],
            leader_epoch=raw["leader_epoch"],
            isr=tuple(raw["isr"]),
            controller_epoch=raw["controller_epoch"],
        )
        assert expected == znodes.parse_partition_state(data.encode()), path


def test_recorded_offsets_and_owners_encode_back() -> None:
    """Positions are shared with Java members, and an owner node is the thread id and nothing else."""
    for path, data in recorded(_OFFSET):
        assert data.encode() == znodes.encode_offset(znodes.parse_offset(data.encode())), path
    for path, data in recorded(_OWNER):
        assert data.encode() == znodes.encode_owner(ThreadId(data)), path


def test_recorded_cluster_ids_and_controllers_are_read() -> None:
    """The cluster id tells one cluster from another behind the same address."""
    for _, data in recorded(re.compile("/cluster/id")):
        assert json.loads(data)["id"] == znodes.parse_cluster_id(data.encode())
    for _, data in recorded(re.compile("/controller")):
        assert json.loads(data)["brokerid"] == znodes.parse_controller(data.encode())


def test_pattern_escaped_twice_is_kept_as_java_members_read_it() -> None:
    """Clients of 1.0 and 1.1 register an expression that matches nothing, and all members must agree that it does."""
    by_client = json.loads((VECTORS / "whitelist-escaping-by-client.json").read_text())["by_client"]
    found = {}
    for release, nodes in by_client.items():
        for path, node in nodes.items():
            if _IDS.fullmatch(path):
                found[release] = parse_registration(node["data"].encode())

    assert found
    for release, registration in found.items():
        twice = release.startswith("1.")
        assert {"te-\\\\d+" if twice else "te-\\d+": 1} == registration.subscription
        assert twice == registration.escaped_twice


def test_our_pattern_is_escaped_once() -> None:
    """A backslash must survive the round through a Java member's JSON parser."""
    registration = MemberRegistration(
        pattern=Pattern.WHITE_LIST, subscription={r"te-\d+": 1}, timestamp_ms=1795258297218
    )

    expected = rb'{"version":1,"subscription":{"te-\\d+":1},"pattern":"white_list","timestamp":"1795258297218"}'
    assert expected == encode_registration(registration)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('{"pattern":"static","subscription":{"a":"2"}}', ({"a": 2}, Pattern.STATIC, None)),
        (
            '{ "timestamp":17, "extra":[1], "subscription" : {"a":1}, "pattern":"static", "version":"1"}',
            ({"a": 1}, Pattern.STATIC, 17),
        ),
        ('{"pattern":"somethingelse","subscription":{"a":1}}', ({"a": 1}, Pattern.STATIC, None)),
        ('{"pattern":"white_list","subscription":{}}', ({}, Pattern.STATIC, None)),
        ('{"pattern":"black_list","subscription":{"b.*":1,"c":2}}', ({"b.*": 1}, Pattern.BLACK_LIST, None)),
        ('{"pattern":"static","subscription":{"a":1},"timestamp":"yesterday"}', ({"a": 1}, Pattern.STATIC, None)),
    ],
)
def test_odd_registrations_are_read_as_java_members_read_them(
    data: str, expected: tuple[dict[str, int], Pattern, int | None]
) -> None:
    """What other clients write must give the same plan here and in Java."""
    subscription, pattern, timestamp_ms = expected

    assert MemberRegistration(
        pattern=pattern, subscription=subscription, timestamp_ms=timestamp_ms
    ) == parse_registration(data.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff",
        b'{ "cons": 1 }',
        b"*1*cons",
        b'{"pattern":"static"}',
        b'{"pattern":7,"subscription":{"a":1}}',
        b'{"subscription":{"a":1}}',
        b'{"pattern":"static","subscription":["a"]}',
        b'{"pattern":"static","subscription":{"a":0}}',
        b'{"pattern":"static","subscription":{"a":true}}',
        b'{"pattern":"static","subscription":{"a":1.5}}',
        b'{"pattern":"static","subscription":{"a":' + b"9" * 5000 + b"}}",
        b"[" * 100_000,
    ],
)
def test_unreadable_registration_is_malformed(data: bytes) -> None:
    """A caller that tolerates one bad member needs one exception to catch."""
    with pytest.raises(MalformedZnode):
        parse_registration(data)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("web.*", "web.*"),
        ("a,b", "a|b"),
        (' "a, b" ', "a|b"),
        ("'te-\\d+,b\\.c'", "te-\\d+|b\\.c"),
        ("\"'a'\"", "a"),
        ('a"b', 'a"b'),
    ],
)
def test_pattern_text_is_rewritten_as_java_does(text: str, expected: str) -> None:
    """The registered text, not the configured one, is what other members compile."""
    assert expected == normalise_pattern(text)
    assert expected == normalise_pattern(expected)


def test_broker_with_tls_only_is_found_by_its_endpoints() -> None:
    """Such a broker registers host null and port -1."""
    data = (
        b'{"listener_security_protocol_map":{"INTERNAL":"SASL_SSL","EDGE":"SSL"},'
        b'"endpoints":["INTERNAL://[fe80::1%eth0]:9093","EDGE://kafka.example:9094","junk",7,"EDGE://:9","EDGE://x:-1"],'
        b'"rack":"r1","jmx_port":-1,"host":null,"timestamp":"1","port":-1,"version":4}'
    )

    broker = parse_broker(BrokerId(3), data)

    internal = Endpoint(listener="INTERNAL", protocol="SASL_SSL", host="fe80::1%eth0", port=9093)
    edge = Endpoint(listener="EDGE", protocol="SSL", host="kafka.example", port=9094)
    assert (internal, edge) == broker.endpoints
    assert edge == broker.find_endpoint("SSL")
    assert broker.find_endpoint("PLAINTEXT") is None
    assert (BrokerId(3), 4, "r1") == (broker.id, broker.version, broker.rack)


def test_broker_of_0_9_names_its_protocol_in_the_endpoint() -> None:
    """There is no map before 0.10.2: the listener's name is its protocol."""
    data = b'{"jmx_port":-1,"timestamp":"1","endpoints":["SSL://h:9093"],"host":null,"version":2,"port":-1}'

    endpoint = Endpoint(listener="SSL", protocol="SSL", host="h", port=9093)
    assert (endpoint,) == parse_broker(BrokerId(0), data).endpoints


@pytest.mark.parametrize(
    "data",
    [b"127.0.0.1-1:127.0.0.1:9092", b"{}", b'{"host":null,"port":-1}', b'{"endpoints":[],"host":"h","port":0}'],
)
def test_broker_without_an_address_is_malformed(data: bytes) -> None:
    """A broker that cannot be reached is better named than guessed."""
    with pytest.raises(MalformedZnode):
        parse_broker(BrokerId(0), data)


def test_partition_without_a_leader_has_none() -> None:
    """-1 is no broker id."""
    data = b'{"controller_epoch":3,"leader":-1,"version":1,"leader_epoch":7,"isr":[]}'

    expected = PartitionStateNode(leader=None, leader_epoch=7, isr=(), controller_epoch=3)
    assert expected == znodes.parse_partition_state(data)


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (znodes.parse_topic, b'{"partitions":{"x":[0]}}'),
        (znodes.parse_topic, b'{"partitions":{"0-1":[0]}}'),
        (znodes.parse_topic, b'{"partitions":{"0":"0"}}'),
        (znodes.parse_topic, b'{"version":1}'),
        (znodes.parse_partition_state, b'{"leader":0}'),
        (znodes.parse_partition_state, b""),
        (znodes.parse_offset, b""),
        (znodes.parse_offset, b"1_0"),
        (znodes.parse_offset, b"99999999999999999999"),
        (znodes.parse_offset, b"9999999999999999999"),
        (znodes.parse_offset, "\u0661".encode()),
        (znodes.parse_cluster_id, b'{"id":1}'),
        (znodes.parse_controller, b'{"brokerid":null}'),
    ],
)
def test_nonsense_is_malformed(parse: Callable[[bytes], object], data: bytes) -> None:
    """Whatever the bytes, one exception."""
    with pytest.raises(MalformedZnode):
        parse(data)


def test_offsets_may_carry_spaces_and_signs() -> None:
    """Operators write offsets by hand."""
    assert znodes.parse_offset(b" 42\n") == 42
    assert znodes.parse_offset(b"-1") == -1
    assert znodes.parse_topic(b'{"partitions":{"10":[1],"2":["0"]}}') == {
        PartitionKey(2): (0,),
        PartitionKey(10): (1,),
    }


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_keys = st.sampled_from(
    [
        "version",
        "subscription",
        "pattern",
        "timestamp",
        "endpoints",
        "host",
        "port",
        "partitions",
        "leader",
        "isr",
        "id",
    ]
)
_payloads = st.dictionaries(_keys, _json, max_size=5).map(lambda value: json.dumps(value).encode())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=64) | _payloads)
def test_parsers_raise_nothing_but_malformed(data: bytes) -> None:
    """A surprise in one node must not become a surprise in a task."""
    for parse in (
        parse_registration,
        lambda raw: parse_broker(BrokerId(1), raw),
        znodes.parse_topic,
        znodes.parse_partition_state,
        znodes.parse_offset,
        find_generation,
        znodes.parse_cluster_id,
        znodes.parse_controller,
    ):
        try:
            parse(data)
        except MalformedZnode:
            continue


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pattern=st.sampled_from(Pattern),
    subscription=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 64), min_size=1, max_size=1
    ),
    timestamp_ms=st.integers(1, 2**62),
)
def test_registrations_survive_the_round(pattern: Pattern, subscription: dict[str, int], timestamp_ms: int) -> None:
    """Any expression, whatever its quoting, comes back as it went."""
    registration = MemberRegistration(pattern=pattern, subscription=subscription, timestamp_ms=timestamp_ms)

    assert registration == parse_registration(encode_registration(registration))


@pytest.mark.parametrize(
    "data", [rb'{"version":1,"host":"\ud800","port":9092}', rb'{"host":"a","port":1,"rack":"\uDFFF"}']
)
def test_a_string_that_is_no_text_makes_its_node_unreadable(data: bytes) -> None:
    """Half a character can be escaped in JSON; no page, log or request could be written with it."""
    with pytest.raises(MalformedZnode, match="expected a JSON object"):
        parse_broker(BrokerId(0), data)


def test_escaped_text_is_text() -> None:
    """A character of two halves is one."""
    assert "\U0001f600" == parse_cluster_id(rb'{"id":"\ud83d\ude00"}')
