"""Which sink a partition's records go to, and what the process registers for that."""

from __future__ import annotations

from collections.abc import Mapping

from consumerd.config.settings import Settings
from consumerd.delivery.ports import SinkRoute
from consumerd.errors import ConfigError, PermanentSinkError
from consumerd.group.subscription import Subscription, plan_streams
from consumerd.model import Claim, TopicPartition
from consumerd.sinks.base import PartitionWriter, Sink


def make_subscription(settings: Settings) -> Subscription:
    """Return the one subscription that the process registers. Raises ConfigError."""
    streams = settings.group.streams
    if settings.subscriptions[0].topics:
        topics = {topic: streams for subscription in settings.subscriptions for topic in subscription.topics}
        return Subscription.to_topics(topics)
    # what one subscription excludes, another may include: each carries its own look-ahead
    patterns = []
    for one in settings.subscriptions:
        assert one.pattern is not None
        exclude = (one.exclude,) if one.exclude is not None else ()
        (expression,) = Subscription.to_white_list([one.pattern], streams, exclude=exclude).streams
        patterns.append(expression)
    return Subscription.to_white_list(patterns, streams)


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
    """Finds the sink of each partition."""

    def __init__(self, settings: Settings, sinks: Mapping[str, Sink]) -> None:
        self._sinks = sinks
        self._on_rejected = {name: one.on_rejected for name, one in settings.sinks.items()}
        self._by_topic = {topic: one.sink for one in settings.subscriptions for topic in one.topics}
        self._by_pattern = [
            (one.sink, Subscription.to_white_list([one.pattern], 1, exclude=(one.exclude,) if one.exclude else ()))
            for one in settings.subscriptions
            if one.pattern is not None
        ]

    def find(self, partition: TopicPartition) -> SinkRoute:
        """Return where the partition's records go; for a topic that matches two sinks, one that refuses all."""
        names = sorted(self._names(partition.topic))
        if len(names) == 1:
            return SinkRoute(
                name=names[0], sink=self._sinks[names[0]], on_rejected=self._on_rejected.get(names[0], "stop")
            )
        if not names:
            raise ConfigError(f"no subscription names topic {partition.topic!r}")
        return SinkRoute(name="+".join(names), sink=_Ambiguous(partition.topic, names))

    def _names(self, topic: str) -> set[str]:
        if topic in self._by_topic:
            return {self._by_topic[topic]}
        return {name for name, white_list in self._by_pattern if plan_streams(white_list.register(0), [topic])}
