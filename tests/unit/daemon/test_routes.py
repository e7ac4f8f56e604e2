"""Topics that two sinks would get are found before the daemon stops them."""

import pytest

from consumerd.config.settings import Settings
from consumerd.daemon.routes import SinkRoutes


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
        (("web.*", "web.*"), "web"),
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
