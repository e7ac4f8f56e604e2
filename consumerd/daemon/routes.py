# SPDX-License-Identifier: Apache-2.0
"""The sink of each topic's partitions, and the subscription that the process registers."""

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
"""Literal part of a regular expression. A bare full stop is not literal."""
_CLASS: Final = re.compile(r"\[(?![.]\])[^]]*\]")
"""Character class, except ``[.]``."""


def make_subscription(settings: Settings) -> Subscription:
    """Return the subscription that this process registers in the group, for all sinks together.

    Raises ConfigError for a pattern or a topic name that is not valid.
    """
    streams = settings.group.streams
    if settings.subscriptions[0].topics:
        topics = {topic: streams for subscription in settings.subscriptions for topic in subscription.topics}
        return Subscription.to_topics(topics)
    # each expression has its own excluded topics, as a look-ahead, because another subscription may include them
    lists = [_make_list(one, streams) for one in settings.subscriptions]
    if lists[0].pattern is Pattern.BLACK_LIST:
        return lists[0]  # the settings allow no second one with a black list
    return Subscription.to_white_list([expression for one in lists for expression in one.streams], streams)


def _make_list(one: config.SubscriptionSection, streams: int) -> Subscription:
    """Return the white or black list of one subscription. Raises ConfigError."""
    if one.black_list is not None:
        return Subscription.to_black_list([one.black_list], streams)
    assert one.pattern is not None  # else it names topics
    return Subscription.to_white_list([one.pattern], streams, exclude=(one.exclude,) if one.exclude is not None else ())


class _Ambiguous:
    """Sink of a topic that two sinks' patterns match: refuses to open a partition.

    The error tells the operator to exclude the topic from one of the sinks.
    """

    def __init__(self, topic: str, names: list[str]) -> None:
        self._message = (
            f"topic {topic!r} matches the patterns of sinks {' and '.join(names)}; exclude it from all but one "
            "(subscriptions.exclude)"
        )

    async def open(self, claim: Claim) -> PartitionWriter:  # noqa: ARG002 - the port's
        """Raise PermanentSinkError: the settings do not say which sink gets the topic."""
        raise PermanentSinkError(self._message)

    async def close(self) -> None:
        """Do nothing: no resource is held."""


class SinkRoutes:
    """Finds the sink that gets the records of a partition.

    Args:
        charges: functions that add bytes to the memory accounts of the sinks, by sink; they are called for data on its
            way into quarantine. A sink that is not listed is not charged.
    """

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
        """Return the sink of a partition's topic, and the policy for refused records.

        If the patterns of two sinks match the topic, the result is a sink that refuses to open the partition. Raises
        ConfigError if no subscription names the topic.
        """
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
        """Return a topic name that the patterns of two sinks match, and the sinks' names.

        It serves to warn at the start. Only names made of the literal parts of the patterns are tried. Example: for
        ``orders.*`` and ``.*_eu`` it tries ``orders``, ``_eu``, ``orders_eu`` and ``_euorders``. None if no tried name
        matches; another name may still match both.
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
    """Yield likely topic names of an expression: the joined literal parts of each alternative."""
    for alternative in _CLASS.sub("", normalise_pattern(expression)).split("|"):
        runs = [re.sub(r"[\\\[\]]", "", run) for run in _LITERAL.findall(alternative)]
        if runs:
            yield "".join(runs)
