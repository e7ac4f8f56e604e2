# SPDX-License-Identifier: Apache-2.0
"""Which sink a partition's records go to, and what the process registers for that."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from consumerd.config import settings as config
from consumerd.config.settings import Settings
from consumerd.delivery.ports import SinkRoute, charge_nobody
from consumerd.errors import ConfigError, PermanentSinkError
from consumerd.group.subscription import Subscription, plan_streams
from consumerd.model import Claim, TopicPartition
from consumerd.sinks.base import PartitionWriter, Sink
from consumerd.zk.znodes import Pattern, normalise_pattern

_LITERAL: Final = re.compile(r"(?:[A-Za-z0-9_-]|\\[.]|\[[.]\])+")
"""A run of an expression that stands for itself; a bare full stop does not."""
_CLASS: Final = re.compile(r"\[(?![.]\])[^]]*\]")


def make_subscription(settings: Settings) -> Subscription:
    """Return the one subscription that the process registers. Raises ConfigError."""
    streams = settings.group.streams
    if settings.subscriptions[0].topics:
        topics = {topic: streams for subscription in settings.subscriptions for topic in subscription.topics}
        return Subscription.to_topics(topics)
    # what one subscription excludes, another may include: each carries its own look-ahead
    lists = [_make_list(one, streams) for one in settings.subscriptions]
    if lists[0].pattern is Pattern.BLACK_LIST:
        return lists[0]  # the settings allow no other beside it
    return Subscription.to_white_list([expression for one in lists for expression in one.streams], streams)


def _make_list(one: config.SubscriptionSection, streams: int) -> Subscription:
    """Return the white or black list of one subscription. Raises ConfigError."""
    if one.black_list is not None:
        return Subscription.to_black_list([one.black_list], streams)
    assert one.pattern is not None  # else it names topics
    return Subscription.to_white_list([one.pattern], streams, exclude=(one.exclude,) if one.exclude is not None else ())


class _Ambiguous:
    """Stands in for the sink of a topic that matches the patterns of two: nothing is delivered to either."""

    def __init__(self, topic: str, names: list[str]) -> None:
        self._message = (
            f"topic {topic!r} matches the patterns of sinks {' and '.join(names)}; exclude it from all but one "
            "(subscriptions.exclude)"
        )

    async def open(self, claim: Claim) -> PartitionWriter:  # noqa: ARG002 - the port's
        """Refuse. Raises PermanentSinkError."""
        raise PermanentSinkError(self._message)

    async def close(self) -> None:
        """Nothing is held."""


class SinkRoutes:
    """Finds the sink of each partition, and whom a sink's units in quarantine are charged to (nobody by default)."""

    def __init__(
        self,
        settings: Settings,
        sinks: Mapping[str, Sink],
        charges: Mapping[str, Callable[[int], None]] | None = None,
    ) -> None:
        self._sinks = sinks
        self._charges = charges or {}
        self._on_rejected = {name: one.on_rejected for name, one in settings.sinks.items()}
        self._by_topic = {topic: one.sink for one in settings.subscriptions for topic in one.topics}
        self._patterns = [one.pattern for one in settings.subscriptions if one.pattern is not None]
        self._by_list = [(one.sink, _make_list(one, 1)) for one in settings.subscriptions if not one.topics]

    def find(self, partition: TopicPartition) -> SinkRoute:
        """Return where the partition's records go; for a topic that matches two sinks, one that refuses all."""
        names = sorted(self._names(partition.topic))
        if len(names) == 1:
            name = names[0]
            return SinkRoute(
                name=name,
                sink=self._sinks[name],
                on_rejected=self._on_rejected.get(name, "stop"),
                charge=self._charges.get(name, charge_nobody),
            )
        if not names:
            raise ConfigError(f"no subscription names topic {partition.topic!r}")
        return SinkRoute(name="+".join(names), sink=_Ambiguous(partition.topic, names))

    def find_shared(self) -> tuple[str, list[str]] | None:
        """Return a topic that two sinks would get, with their names, if one is easily found.

        Topics are tried that the expressions' own words suggest: what is found is certain, what is not may still be.
        """
        words = [word for pattern in self._patterns for word in _find_words(pattern)]
        pairs = ("".join(pair) for pair in itertools.permutations(words, 2))
        for topic in itertools.chain(words, pairs, ["topic"]):
            if len(names := sorted(self._names(topic))) > 1:
                return topic, names
        return None

    def _names(self, topic: str) -> set[str]:
        if topic in self._by_topic:
            return {self._by_topic[topic]}
        return {name for name, one in self._by_list if plan_streams(one.register(0), [topic])}


def _find_words(expression: str) -> Iterator[str]:
    """Yield topic names that an expression may be about: the literal runs of each alternative, one after the other."""
    for alternative in _CLASS.sub("", normalise_pattern(expression)).split("|"):
        runs = [re.sub(r"[\\\[\]]", "", run) for run in _LITERAL.findall(alternative)]
        if runs:
            yield "".join(runs)
