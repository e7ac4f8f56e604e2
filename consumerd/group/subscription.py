# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: topics with stream counts, or one expression over all topics.

Pure. A process registers one payload: static topics, a white list, or a black list. Several expressions are joined with
``|``. Excluded topics become a negative look-ahead in the registered expression, so that Java members, which do not
know of exclusions, compute the same topics.

Another member's topics are computed from its registration as a Java member computes them (``TopicCount.scala``,
``TopicFilter.scala``): the expression is rewritten once more, it must match the whole name, and internal topics are
left out of lists, though never out of static subscriptions. So an expression that a client of 1.0 or 1.1 escaped twice
matches nothing, for us as for every Java member.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.errors import ConfigError
from consumerd.group.identity import validate_topic
from consumerd.group.java_regex import JavaPattern, UnsupportedPattern, compile_java
from consumerd.zk.znodes import MemberRegistration, Pattern, normalise_pattern

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,255}")
"""Names that some release accepts: up to 255 characters before 0.10, 249 from then on."""
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The subscription of this process: stream counts by topic, or by a list's expression."""

    pattern: Pattern
    streams: Mapping[str, int]

    @classmethod
    def to_topics(cls, topics: Mapping[str, int], *, key: str = "subscriptions.topics") -> Subscription:
        """Subscribe to topics by name, each with a number of streams.

        Raises ConfigError that names ``key``.
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
        """Subscribe to the topics that match any of ``patterns`` and none of ``exclude``.

        Raises ConfigError that names ``key``.
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
        """Subscribe to every topic that matches none of ``patterns``. Raises ConfigError that names ``key``."""
        _validate_streams(key, streams)
        return cls(pattern=Pattern.BLACK_LIST, streams={_join(patterns, key): streams})

    def register(self, timestamp_ms: int) -> MemberRegistration:
        """Return the content of the member's node."""
        return MemberRegistration(pattern=self.pattern, subscription=self.streams, timestamp_ms=timestamp_ms)


def needs_topic_names(registration: MemberRegistration) -> bool:
    """Return True if a member's topics depend on the names of all topics."""
    return registration.pattern is not Pattern.STATIC


def plan_streams(
    registration: MemberRegistration, topics: Iterable[str], *, exclude_internal: bool = True
) -> Mapping[str, int]:
    """Return a member's stream counts by topic; ``topics`` are used for lists only.

    Raises UnsupportedPattern for an expression that cannot be evaluated here.
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
