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
_GENERATED: Final = re.compile(r"(?P<host>.+)-[0-9]{13}-[0-9a-f]{1,8}")
"""``<host>-<ms>-<8 hex>``; Java writes the last part without leading zeros."""


def validate_name(key: str, value: str) -> str:
    """Return ``value`` if it is a legal group or client id.

    Java also accepts an empty id and ``.``, but ZooKeeper then refuses the path, so both are refused here. Raises
    ConfigError that names the setting ``key``.
    """
    if not _LEGAL.fullmatch(value) or value in {".", ".."}:
        raise ConfigError(f"{key}: {value!r} is not a legal id; use ASCII letters, digits, '.', '_' and '-' only")
    return value


def validate_topic(key: str, value: str) -> str:
    """Return ``value`` if it is a legal topic name.

    Raises ConfigError that names the setting ``key``.
    """
    if find_topic_fault(value):
        raise ConfigError(
            f"{key}: {value!r} is not a legal topic; use up to {LONGEST_TOPIC} ASCII letters, digits, '.', '_' "
            "and '-'. For an expression use a pattern"
        )
    return value


def thread_ids(consumer: ConsumerId, streams: int) -> tuple[ThreadId, ...]:
    """Return the ids of a member's threads: ``<consumer>-0``, ``<consumer>-1`` and so on.

    The order is numeric; assignors sort the ids as text instead.
    """
    return tuple(ThreadId(f"{consumer}-{number}") for number in range(streams))


def consumer_of(thread: ThreadId) -> ConsumerId:
    """Return the id of the member that has a thread: ``G_host-1`` for ``G_host-1-0``."""
    return ConsumerId(thread.rpartition("-")[0])


def find_host(group: str, consumer: ConsumerId) -> str | None:
    """Return the host in a member id that was generated from one.

    None for an id made from a configured ``consumer.id``.
    """
    found = _GENERATED.fullmatch(consumer.removeprefix(f"{group}_"))
    return None if found is None else found["host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """The group of a process and the source of its member ids.

    ``consumer_id`` is the configured id; None to generate one for each session.
    """

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
