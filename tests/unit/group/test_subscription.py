# SPDX-License-Identifier: Apache-2.0
"""Expressions as Java means them, and what members subscribe to."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from consumerd.errors import ConfigError
from consumerd.group.java_regex import UnsupportedPattern, compile_java
from consumerd.group.plan import MemberView, resolve_members
from consumerd.group.subscription import Subscription, find_unsupported, find_whole, needs_topic_names, plan_streams
from consumerd.model import ConsumerId
from consumerd.zk.layout_legacy import LEGACY
from consumerd.zk.znodes import MemberRegistration, Pattern, encode_registration, parse_registration

VECTORS = Path(__file__).parents[2] / "vectors"
JAVA = json.loads((VECTORS / "java-regex" / "matches.json").read_text())
TOPICS = ["orders", "orders.eu", "web", "web.debug", "web.debug.x", "__consumer_offsets", "__transaction_state"]


@pytest.mark.parametrize("expression", sorted(JAVA["matches"]))
def test_an_expression_means_what_it_means_in_java_or_is_refused(expression: str) -> None:
    """A member that matches other topics than its peers claims what is theirs; what Java refuses is refused."""
    expected = JAVA["matches"][expression]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compiled = compile_java(expression)
        except UnsupportedPattern:
            return
    assert expected is not None
    assert expected == [topic for topic in JAVA["topics"] if compiled.match_names((topic,))]


@pytest.mark.parametrize(
    "expression",
    [
        ".*",
        "te-\\d+",
        "(?!(?:web[.]debug.*)$)(?:web.*)",
        "x*+y",
        "(?i)ORDERS",
        "(?<!x)a.*",
        "(?<n>ab)c",
        "\\Qa.b\\E",
        "a\\z",
    ],
)
def test_what_is_common_is_not_refused(expression: str) -> None:
    """Refusing everything would pass the test above."""
    assert JAVA["matches"][expression] is not None
    compile_java(expression)


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        (r"\p{Alpha}", r"\\p at character 0"),
        ("[a&&b]", "intersection"),
        ("[a[b]]", "class within a class"),
        ("a{2|3}", "rewrites"),
        (r"(a)\11", "back reference"),
        ("(?>a|ab)c", "atomic group"),
        ("(ab)*+c", "possessive"),
        ("(?<n>a)|(?<n>b)", "second group"),
        ("a" * 30_000, "too large"),
        ("(" * 200 + ")" * 200, "within each other"),
        (r"\x4", "2 hexadecimal digits"),
        ("[a--b]", "'--'"),
        ("(?P<n>a)", "kind of group"),
        (r"(?<=a*)b", "look-behind"),
        ("(?x:a)", "only i, m and s"),
    ],
)
def test_what_is_refused_says_why(expression: str, hint: str) -> None:
    """The person has to know what to write instead."""
    with pytest.raises(UnsupportedPattern, match=hint):
        compile_java(expression)


def test_topics_with_streams_are_registered_as_they_are() -> None:
    """Byte for byte what a Java member of the same topics writes (recorded from 1.1.1)."""
    subscription = Subscription.to_topics({"a": 2, "b.c": 1})
    expected = b'{"version":1,"subscription":{"a":2,"b.c":1},"pattern":"static","timestamp":"1795258226258"}'
    assert encode_registration(subscription.register(1795258226258)) == expected


def test_a_white_list_is_rewritten_as_java_rewrites_it() -> None:
    """Settings files bring quotes, spaces and commas; Java members register the rewritten text."""
    assert Subscription.to_white_list(['"te-[0-9]+, b[.]c"'], 1).streams == {"te-[0-9]+|b[.]c": 1}


def test_several_patterns_are_joined_and_flags_stay_where_they_were() -> None:
    """One payload a member; (?i) of one pattern must not reach the next."""
    subscription = Subscription.to_white_list(["(?i)WEB", "orders[.].*"], 2)
    assert subscription.streams == {"(?:(?i)WEB)|orders[.].*": 2}
    assert plan_streams(subscription.register(0), [*TOPICS, "ORDERS.eu"]) == {"web": 2, "orders.eu": 2}


def test_exclusion_is_a_negative_look_ahead_in_what_is_registered() -> None:
    """Java members, who know no exclusion, must compute the same topics."""
    subscription = Subscription.to_white_list(["web.*", "orders"], 1, exclude=["web[.]debug.*", "x"])
    assert subscription.streams == {"(?!(?:web[.]debug.*|x)$)(?:web.*|orders)": 1}
    assert set(plan_streams(subscription.register(0), TOPICS)) == {"web", "orders"}


def test_a_black_list_takes_what_does_not_match_but_no_internal_topics() -> None:
    """Consuming __consumer_offsets by accident would feed on its own commits."""
    registration = Subscription.to_black_list(["web.*"], 3).register(0)
    assert plan_streams(registration, TOPICS) == {"orders": 3, "orders.eu": 3}
    assert set(plan_streams(registration, TOPICS, exclude_internal=False)) == set(TOPICS) - {
        "web",
        "web.debug",
        "web.debug.x",
    }


def test_a_static_subscription_may_name_an_internal_topic_and_needs_no_names() -> None:
    """Java's exclude.internal.topics concerns lists only."""
    registration = Subscription.to_topics({"__consumer_offsets": 1}).register(0)
    assert plan_streams(registration, []) == {"__consumer_offsets": 1}
    assert not needs_topic_names(registration)
    assert needs_topic_names(Subscription.to_white_list(["a"], 1).register(0))


def test_an_expression_escaped_twice_matches_nothing_as_for_every_java_member() -> None:
    """Clients of 1.0 and 1.1 write it so, and own nothing by it: we must not think that they do."""
    recorded = json.loads((VECTORS / "znodes" / "whitelist-escaping-by-client.json").read_text())["by_client"]
    owned_by: dict[str, set[str]] = {}
    for release, nodes in recorded.items():
        data = next(node["data"] for path, node in nodes.items() if "/ids/" in path)
        owned_by[release] = set(plan_streams(parse_registration(data.encode()), ["te-1", "te-2", "te-x"]))
        owners = {path.split("/")[4] for path in nodes if "/owners/" in path}
        assert owners <= owned_by[release]
    assert owned_by["0.8.2.2"] == owned_by["0.11.0.3"] == {"te-1", "te-2"}
    assert owned_by["1.0.2"] == owned_by["1.1.1"] == set()


def test_what_another_member_registers_may_be_impossible_to_evaluate() -> None:
    """It is reported by whoever asks, not guessed."""
    registration = MemberRegistration(pattern=Pattern.WHITE_LIST, subscription={r"\p{Alpha}+": 1}, timestamp_ms=None)
    with pytest.raises(UnsupportedPattern):
        plan_streams(registration, TOPICS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Subscription.to_topics({}),
        lambda: Subscription.to_topics({"web.*": 1}),
        lambda: Subscription.to_topics({"web": 0}),
        lambda: Subscription.to_white_list([], 1),
        lambda: Subscription.to_white_list(['" "'], 1),
        lambda: Subscription.to_white_list(["a{2,3}"], 1),
        lambda: Subscription.to_white_list(["a"], 1, exclude=["["]),
        lambda: Subscription.to_white_list(["(?<n>a)", "(?<n>b)"], 1),
        lambda: Subscription.to_black_list(["a"], 0),
    ],
)
def test_what_cannot_be_subscribed_to_is_a_configuration_error(make) -> None:  # type: ignore[no-untyped-def]
    """It has to fail before anything is registered: one bad payload stops every Java member."""
    with pytest.raises(ConfigError, match=r"^subscriptions[.]"):
        make()


@pytest.mark.parametrize(
    ("data", "unsupported"),
    [
        (b"*1*.*", {"t\u00e9", "a b"}),
        (b"*1*t.*", {"t\u00e9"}),
        (b"!1!t.*", {"a b"}),
        (b'{ "t\xc3\xa9": 1 }', set()),
    ],
    ids=["all", "white list", "black list", "by name"],
)
def test_topics_of_0_7_that_cannot_be_consumed_are_named(data: bytes, unsupported: set[str]) -> None:
    """Java members assign their partitions to us, and nobody would claim them."""
    topics = frozenset({"tea", "t\u00e9", "a b", "x" * 300 + " "})
    registration = LEGACY.parse_registration(data)
    assert find_unsupported(registration, topics) == unsupported
    member = MemberView(consumer=ConsumerId("g_a"), session_id=1, registration=registration)
    told = [one.detail for one in resolve_members([member], topics).disagreements]
    assert [name for name in unsupported if not told or name not in told[0]] == []
    assert bool(told) == bool(unsupported)


def test_strange_names_in_a_cluster_of_0_8_are_no_topics() -> None:
    """No broker of 0.8 or later makes such a topic."""
    registration = Subscription.to_white_list([".*"], 1).register(1)
    assert find_unsupported(registration, frozenset({"tea", "t\u00e9"})) == set()


@pytest.mark.parametrize(
    "subscription",
    [
        Subscription.to_white_list(["lake.*"], 2),
        Subscription.to_white_list(["(?i)LAKE.*", "x[0-9]+"], 2, exclude=["lake.q.*"]),
        Subscription.to_black_list(["(?i)Z.*"], 2),
    ],
    ids=["white list", "flags and exclude", "black list"],
)
def test_topics_that_are_left_out_of_an_expression_are_left_out_by_everybody(subscription: Subscription) -> None:
    """By name, not by expression: ``lake.a`` is not ``lakexa``, nor the beginning of another name."""
    names = frozenset({"lake.a", "lakexa", "lake.ab", "lake-1_b", "LAKE.b", "lake.q1", "x12", "z1", "other"})
    whole = plan_streams(subscription.register(0), names)

    reduced = subscription.without({"lake.a", "lake-1_b"})

    assert whole.keys() - {"lake.a", "lake-1_b"} == plan_streams(reduced.register(0), names).keys()
    assert {2} == set(plan_streams(reduced.register(0), names).values())
    assert {"lake.a"} == plan_streams(subscription.register(0), {"lake.a"}).keys()
    assert find_whole(subscription.register(0)) == find_whole(reduced.register(0))
    assert subscription == subscription.without(set())


def test_thousands_of_topics_cannot_be_left_out() -> None:
    """Members of ours would refuse the expression, and with it the group."""
    with pytest.raises(UnsupportedPattern, match="too large"):
        Subscription.to_white_list(["t.*"], 1).without({f"topic-number-{number}" for number in range(3000)})
