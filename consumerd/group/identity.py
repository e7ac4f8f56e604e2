# SPDX-License-Identifier: Apache-2.0
"""The names of members and of their threads, as the Java consumer forms them.

Pure. ``ZookeeperConsumerConnector.scala``: the id is ``<group>_<consumer.id>`` if one is configured, otherwise
``<group>_<host>-<ms>-<8 hex>``. ``TopicCount.scala``: threads are ``<id>-<i>`` from 0. ``Config.scala`` (0.8 and later)
defines the characters of a group id.

A generated id is new in each session: a node that lingers under the old id belongs to a previous session, and is
treated as another member's. A configured id is kept, and gets a random suffix only while its old node still exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from consumerd.errors import ConfigError
from consumerd.model import LONGEST_TOPIC, ConsumerId, ThreadId, find_topic_fault

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def validate_name(key: str, value: str) -> str:
    """Return ``value`` if it is a legal group or client id.

    Java also accepts an empty one and ``.``, but ZooKeeper then refuses the path, so both are refused here. Raises
    ConfigError that names ``key``.
    """
    if not _LEGAL.fullmatch(value) or value in {".", ".."}:
        raise ConfigError(f"{key}: {value!r} is not a legal id; use ASCII letters, digits, '.', '_' and '-' only")
    return value


def validate_topic(key: str, value: str) -> str:
    """Return ``value`` if it is a legal topic name. Raises ConfigError that names ``key``."""
    if find_topic_fault(value):
        raise ConfigError(
            f"{key}: {value!r} is not a legal topic; use up to {LONGEST_TOPIC} ASCII letters, digits, '.', '_' "
            "and '-'. For an expression use a pattern"
        )
    return value


def thread_ids(consumer: ConsumerId, streams: int) -> tuple[ThreadId, ...]:
    """Return the ids of a member's threads by number, which differs from the assignors' order."""
    return tuple(ThreadId(f"{consumer}-{number}") for number in range(streams))


def consumer_of(thread: ThreadId) -> ConsumerId:
    """Return the member of a thread: the id without the last hyphen and number."""
    return ConsumerId(thread.rpartition("-")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """The group and name of a process; ``consumer_id`` is the configured one, if any."""

    group: str
    host: str
    consumer_id: str | None = None

    def __post_init__(self) -> None:
        validate_name("group.id", self.group)
        if self.consumer_id is not None:
            validate_name("group.consumer_id", self.consumer_id)

    def make_id(self, *, now_ms: int, random_bits: Callable[[int], int], lingering: bool = False) -> ConsumerId:
        """Return the id to register under in a new session.

        Args:
            now_ms: Milliseconds since the epoch, part of a generated id.
            lingering: True if a node of another session still exists under the configured id.
        """
        suffix = f"{random_bits(32):08x}"
        if self.consumer_id is None:
            # host names have no slash, but a container may be named freely, and a slash would make a path
            return ConsumerId(f"{self.group}_{self.host.replace('/', '_')}-{now_ms}-{suffix}")
        return ConsumerId(f"{self.group}_{self.consumer_id}" + (f"-{suffix}" if lingering else ""))
