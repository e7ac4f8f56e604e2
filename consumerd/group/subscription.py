# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: topics with stream counts, or one expression over all topics.

Pure. A process registers one payload: static topics, a white list, or a black list. Several expressions are joined with
``|``. Excluded topics become a negative look-ahead in the registered expression, so that Java members, which do not
know of exclusions, compute the same topics. Topics that this member may not consume are left out in the same way.

Another member's topics are computed from its registration as a Java member computes them (``TopicCount.scala``,
``TopicFilter.scala``): the expression is rewritten once more, it must match the whole name, and internal topics are
left out of lists, though never out of static subscriptions. So an expression that a client of 1.0 or 1.1 escaped twice
matches nothing, for us as for every Java member.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.errors import ConfigError
from consumerd.group.identity import validate_topic
from consumerd.group.java_regex import JavaPattern, UnsupportedPattern, compile_java
from consumerd.zk.znodes import MemberRegistration, Pattern, normalise_pattern

_LONGEST_NAME: Final = 255
_LEGAL_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{_LONGEST_NAME}}}")
"""Names that some release accepts: up to 255 characters before 0.10, 249 from then on."""
_LEFT_OUT: Final = {
    Pattern.WHITE_LIST: re.compile(r"\(\?!\(\?:[\w|.\[\]-]+\)\$\)\(\?:(.*)\)", re.DOTALL),
    Pattern.BLACK_LIST: re.compile(r"\(\?:(.*)\)\|[\w|.\[\]-]+", re.DOTALL),
}
"""Expressions of :meth:`Subscription.without`, with the one that was reduced as their group."""
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The subscription of this process: static topics, or a white or black list.

    Attributes:
        pattern: kind of subscription.
        streams: number of streams (threads) by topic name, or by the one regular expression of a white or black list.
    """

    pattern: Pattern
    streams: Mapping[str, int]

    @classmethod
    def to_topics(cls, topics: Mapping[str, int], *, key: str = "subscriptions.topics") -> Subscription:
        """Return a subscription to topics by name, each with a number of streams (threads).

        Raises ConfigError, which names the setting ``key``, for an illegal name or number.
        """
        if not topics:
            raise ConfigError(f"{key}: no topic; name at least one, or use a pattern")
        for topic, count in topics.items():
            validate_topic(key, topic)
            _validate_streams(key, count)
        return cls(pattern=Pattern.STATIC, streams=dict(topics))

    @classmethod
    def to_white_list(
        cls, patterns: Sequence[str], streams: int, *, exclude: Sequence[str] = (), key: str = "subscriptions.pattern"
    ) -> Subscription:
        """Return a subscription to the topics that match any of ``patterns`` and none of ``exclude``.

        ``streams`` is the number of this member's threads for each topic. Raises ConfigError, which names the setting
        ``key``, for an expression that cannot be used.
        """
        wanted = _join(patterns, key)
        if exclude:
            wanted = f"(?!(?:{_join(exclude, 'subscriptions.exclude')})$)(?:{wanted})"
        _validate_streams(key, streams)
        return cls(pattern=Pattern.WHITE_LIST, streams={wanted: streams})

    @classmethod
    def to_black_list(
        cls, patterns: Sequence[str], streams: int, *, key: str = "subscriptions.black_list"
    ) -> Subscription:
        """Return a subscription to every topic that matches none of ``patterns``.

        ``streams`` is the number of this member's threads for each topic. Raises ConfigError, which names the setting
        ``key``, for an expression that cannot be used.
        """
        _validate_streams(key, streams)
        return cls(pattern=Pattern.BLACK_LIST, streams={_join(patterns, key): streams})

    def without(self, topics: Collection[str]) -> Subscription:
        """Return this subscription without some topics, which every member computes from the registration.

        Example: ``lake.*`` without ``lake.a`` is ``(?!(?:lake[.]a)$)(?:lake.*)``. Topics that are made later match as
        before. A subscription by name may be left without a topic.

        Raises UnsupportedPattern if the expression becomes one that members of ours cannot evaluate.
        """
        if self.pattern is Pattern.STATIC:
            return replace(self, streams={one: count for one, count in self.streams.items() if one not in topics})
        if not topics:
            return self
        # legal names have no other special character, and a class needs no backslash, which clients have escaped twice
        names = "|".join(sorted(topics)).replace(".", "[.]")
        ((expression, count),) = self.streams.items()
        if self.pattern is Pattern.WHITE_LIST:
            reduced = f"(?!(?:{names})$)(?:{expression})"
        else:
            reduced = f"(?:{expression})|{names}"
        _compile(reduced)
        return replace(self, streams={reduced: count})

    def register(self, timestamp_ms: int) -> MemberRegistration:
        """Return the registration with this subscription: the content of the member's node in ZooKeeper.

        ``timestamp_ms`` is the time of the registration, in ms since the epoch.
        """
        return MemberRegistration(pattern=self.pattern, subscription=self.streams, timestamp_ms=timestamp_ms)


def find_whole(registration: MemberRegistration) -> str:
    """Return the expression of a registration, before :meth:`Subscription.without` left topics out of it."""
    text = "|".join(registration.subscription)
    reduced = _LEFT_OUT.get(registration.pattern)
    found = None if reduced is None else reduced.fullmatch(text)
    return text if found is None else found[1]


def needs_topic_names(registration: MemberRegistration) -> bool:
    """Return True if a member subscribes by an expression over all topic names."""
    return registration.pattern is not Pattern.STATIC


def plan_streams(
    registration: MemberRegistration, topics: Iterable[str], *, exclude_internal: bool = True
) -> Mapping[str, int]:
    """Return the topics that a member's registration matches, each with its number of streams.

    Raises UnsupportedPattern for an expression that cannot be evaluated here.

    Args:
        topics: Names of all topics of the cluster, with which an expression is matched.
        exclude_internal: True to leave out internal topics, such as ``__consumer_offsets``, of an expression.
    """
    if registration.pattern is Pattern.STATIC:
        return registration.subscription
    ((expression, count),) = registration.subscription.items()
    names = topics if isinstance(topics, frozenset) else frozenset(topics)
    names = _find_legal(names)
    text = normalise_pattern(expression)
    # single names come by the thousand, each once: caching them would only fill the cache
    matching = _match(text, names) if len(names) > 1 else _compile(text).match_names(names)
    if isinstance(matching, UnsupportedPattern):
        raise matching.with_traceback(None)
    chosen = matching if registration.pattern is Pattern.WHITE_LIST else names - matching
    return dict.fromkeys(chosen - INTERNAL_TOPICS if exclude_internal else chosen, count)


def find_unsupported(registration: MemberRegistration, topics: frozenset[str]) -> frozenset[str]:
    """Return the topics that a member's expression matches and that cannot be consumed here.

    Kafka 0.6 and 0.7 accept almost any name, such as ``té``; :func:`plan_streams` leaves such topics out. A Java member
    assigns their partitions to all members whose expression matches, ours included.

    Raises UnsupportedPattern for an expression that cannot be evaluated here.

    Args:
        topics: Names of all topics of the cluster.
    """
    # registrations of 0.8 and later have a timestamp, and brokers of 0.8 and later check names
    if registration.pattern is Pattern.STATIC or registration.timestamp_ms is not None:
        return frozenset()
    strange = frozenset(name for name in topics - _find_legal(topics) if len(name) <= _LONGEST_NAME)
    if not strange:
        return strange
    ((expression, _),) = registration.subscription.items()
    matching = _compile(normalise_pattern(expression)).match_names(strange)
    return matching if registration.pattern is Pattern.WHITE_LIST else strange - matching


@functools.lru_cache(maxsize=256)
def _compile(expression: str) -> JavaPattern:
    return compile_java(expression)


@functools.lru_cache(maxsize=32)
def _match(expression: str, names: frozenset[str]) -> frozenset[str] | UnsupportedPattern:
    """Return the names that match, cached: most members share one expression.

    A refusal is returned, not raised, so that it is cached too.
    """
    try:
        return _compile(expression).match_names(names)
    except UnsupportedPattern as error:
        return error


@functools.lru_cache(maxsize=2)
def _find_legal(names: frozenset[str]) -> frozenset[str]:
    """Return the names that a broker accepts as topic names.

    Other nodes are useless, and their names may be of any length.
    """
    return frozenset(filter(_LEGAL_NAME.fullmatch, names))


def _validate_streams(key: str, count: int) -> None:
    if count < 1:
        raise ConfigError(f"{key}: {count} streams; at least 1 is needed")


def _join(patterns: Sequence[str], key: str) -> str:
    """Join expressions with ``|``, each rewritten as in Java and checked on its own."""
    if not patterns:
        raise ConfigError(f"{key}: no expression; give at least one")
    rewritten = []
    for pattern in patterns:
        text = normalise_pattern(pattern)
        if not text:
            raise ConfigError(f"{key}: {pattern!r} is empty once quotes and spaces are left out")
        try:
            compile_java(text)
        except UnsupportedPattern as error:
            raise ConfigError(f"{key}: {error}") from error
        rewritten.append(text)
    if len(rewritten) == 1:
        return rewritten[0]
    # flags at the start of one expression must not apply to the next
    joined = "|".join(f"(?:{text})" if text.startswith("(?") else text for text in rewritten)
    try:
        compile_java(joined)
    except UnsupportedPattern as error:  # a name or a back reference that was right in one of them alone
        raise ConfigError(f"{key}: the expressions cannot be joined: {error}") from error
    return joined
