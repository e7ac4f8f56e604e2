# SPDX-License-Identifier: Apache-2.0
"""Topics that two sinks would get are found before the daemon stops them."""

import pytest

from consumerd.config.settings import Settings
from consumerd.daemon.routes import SinkRoutes, make_subscription
from consumerd.errors import ConfigError
from consumerd.model import TopicPartition
from consumerd.zk.znodes import encode_registration


def find_shared(*patterns):
    """Ask of subscriptions, each of a pattern (and what it excludes) with a sink of its own."""
    subscriptions = []
    for number, pattern in enumerate(patterns):
        text, exclude = pattern if isinstance(pattern, tuple) else (pattern, None)
        subscriptions.append({"pattern": text, "sink": f"s{number}", **({"exclude": exclude} if exclude else {})})
    settings = Settings.model_validate(
        {
            "cluster": {"zookeeper": "zk:2181"},
            "group": {"id": "g"},
            "subscriptions": subscriptions,
            "sinks": {one["sink"]: {"type": "null"} for one in subscriptions},
        }
    )
    return SinkRoutes(settings, {}).find_shared()


@pytest.mark.parametrize(
    ("patterns", "topic"),
    [
        (("web.*", "web"), "web"),
        (("web.*", ".*clicks"), "webclicks"),
        ((".*", "orders"), "orders"),
        (("a|b", "b|c"), "b"),
        ((r"web[.]eu.*", r"web\.eu\.clicks"), "web.eu.clicks"),
        ((".*", ".+"), "topic"),
        ((("web.*", "web[.]debug"), "web-[a-z]*clicks"), "web-clicks"),
    ],
)
def test_a_topic_that_two_patterns_match_is_named(patterns, topic):
    """A name says more than "may overlap": it can be tried."""
    found = find_shared(*patterns)
    assert found is not None
    assert (found[0], found[1]) == (topic, ["s0", "s1"])


@pytest.mark.parametrize(
    "patterns",
    [("web.*", "app.*"), (("web.*", "web[.]debug.*"), "web[.]debug.*"), ("[a-m].*", "[n-z].*"), ("orders",)],
)
def test_patterns_that_share_nothing_are_not_accused(patterns):
    """A warning that is wrong is not read the next time."""
    assert find_shared(*patterns) is None


def black_list_settings(**subscription: object) -> Settings:
    return Settings.model_validate(
        {
            "cluster": {"zookeeper": "zk:2181"},
            "group": {"id": "g", "streams": 1},
            "subscriptions": [{"sink": "out", **subscription}],
            "sinks": {"out": {"type": "null"}},
        }
    )


def test_a_black_list_is_registered_byte_for_byte_as_javas() -> None:
    """Recorded from 1.1.1: a member that registers another form is no black list to Java members."""
    recorded = b'{"version":1,"subscription":{"b.*":1},"pattern":"black_list","timestamp":"1795258231779"}'
    subscription = make_subscription(black_list_settings(black_list="b.*"))
    assert encode_registration(subscription.register(1795258231779)) == recorded


def test_a_black_list_routes_what_it_does_not_name() -> None:
    """The route follows the subscription: a topic that is assigned always has its sink."""
    sink = object()
    routes = SinkRoutes(black_list_settings(black_list="b.*, c"), {"out": sink})  # type: ignore[dict-item]  # only passed on
    assert routes.find(TopicPartition.modern("a", 0)).sink is sink
    for topic in ("b", "bx", "c"):
        with pytest.raises(ConfigError, match="no subscription names"):
            routes.find(TopicPartition.modern(topic, 0))


@pytest.mark.parametrize(
    ("subscriptions", "hint"),
    [
        ([{"black_list": "a", "sink": "out"}, {"pattern": "b", "sink": "out"}], "second process"),
        ([{"black_list": "a", "pattern": "b", "sink": "out"}], "one of topics, pattern and black_list"),
        ([{"black_list": "a", "exclude": "b", "sink": "out"}], "exclude goes with a pattern"),
        ([{"sink": "out"}], "one of topics, pattern and black_list"),
    ],
)
def test_a_black_list_stands_alone(subscriptions: list[dict[str, str]], hint: str) -> None:
    """One registration says either which topics are taken or which are not."""
    with pytest.raises(ValueError, match=hint):
        Settings.model_validate(
            {
                "cluster": {"zookeeper": "zk:2181"},
                "group": {"id": "g"},
                "subscriptions": subscriptions,
                "sinks": {"out": {"type": "null"}},
            }
        )
