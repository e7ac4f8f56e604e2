# SPDX-License-Identifier: Apache-2.0
"""Named warnings about settings that are valid but probably not meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.config.memory import find_cut_message_limit
from consumerd.config.origins import Doubt, KeyPath, Layers, render_key
from consumerd.config.settings import Settings
from consumerd.sinks.http.options import HttpOptions
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.options import ChainOptions
from consumerd.zk.connect_string import DEFAULT_PORT, parse_connect_string

_BROKER_PORT: Final = 9092
"""Port of Kafka's brokers by default."""
_SHORT_ROLL_MS: Final = 100
_SMALL_ROLL_BYTES: Final = 1024
"""Limits below which a number was probably meant in seconds, or in MiB."""


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    path: KeyPath
    message: str


def find_doubts(settings: Settings, sinks: Mapping[str, object], layers: Layers) -> list[Doubt]:
    """Return warnings about settings that are valid but probably not meant.

    Each warning names the key, and the file and line, variable or option that sets it.

    Args:
        settings: Valid settings.
        sinks: Options of each sink by its name, in the model of its type.
        layers: Sources of the settings.
    """
    found = [
        *_find_broker_ports(settings),
        *_find_unused(settings),
        *_find_unnamed_owners(settings, sinks),
        *_find_short_rolls(sinks),
        *_find_clear_credentials(sinks),
        *_find_uncommitted_mirrors(settings, sinks),
        *_find_cut_limits(settings, layers),
        *_find_strange_topics(settings),
    ]
    return [
        Doubt(name=one.name, text=f"{render_key(one.path)}: {one.message}{layers.locate(one.path)}") for one in found
    ]


def _find_broker_ports(settings: Settings) -> Iterator[_Found]:
    servers = [
        str(server) for server in parse_connect_string(settings.cluster.place).servers if server.port == _BROKER_PORT
    ]
    if servers:
        yield _Found(
            "port-of-broker",
            ("cluster", "zookeeper"),
            f"{', '.join(servers)}: {_BROKER_PORT} is the port of Kafka's brokers: write ZooKeeper's servers, such as "
            f"{servers[0].rpartition(':')[0]}:{DEFAULT_PORT}; brokers are found there",
        )


def _find_unused(settings: Settings) -> Iterator[_Found]:
    used = {subscription.sink for subscription in settings.subscriptions}
    for name in settings.sinks:
        if name not in used:
            yield _Found(
                "sink-not-used",
                ("sinks", name),
                "no subscription names it, so nothing is written there: name it, or remove it",
            )
    if settings.quarantine.path is not None and not settings.quarantining():
        yield _Found(
            "quarantine-not-used",
            ("quarantine", "path"),
            "no policy is quarantine, so nothing is kept there: set fetch.on_corrupt, fetch.on_oversized or a "
            "sink's on_rejected",
        )


def _find_unnamed_owners(settings: Settings, sinks: Mapping[str, object]) -> Iterator[_Found]:
    for name, options in sinks.items():
        if isinstance(options, ChainOptions) and not options.shared and settings.group.consumer_id is None:
            yield _Found(
                "folder-without-owner",
                ("sinks", name, "shared"),
                "false, but group.consumer_id is not set, so the group cannot remember whose folder it is: give "
                "each replica a "
                "group.consumer_id of its own",
            )


def _find_short_rolls(sinks: Mapping[str, object]) -> Iterator[_Found]:
    for name, options in sinks.items():
        if not isinstance(options, ChainOptions):
            continue
        if options.roll_ms < _SHORT_ROLL_MS:
            message = (
                f"a file is closed after {options.roll_ms} milliseconds: write {options.roll_ms}s if seconds are meant"
            )
            yield _Found("roll-very-short", ("sinks", name, "roll_ms"), message)
        if options.roll_bytes < _SMALL_ROLL_BYTES:
            message = f"a file is closed at {options.roll_bytes} bytes: write {options.roll_bytes}MiB if MiB are meant"
            yield _Found("roll-very-small", ("sinks", name, "roll_bytes"), message)


def _find_clear_credentials(sinks: Mapping[str, object]) -> Iterator[_Found]:
    for name, options in sinks.items():
        if isinstance(options, HttpOptions) and options.auth is not None and options.is_plain_text:
            message = "the url is http, so the credential is sent as plain text: write https"
            yield _Found("credential-in-plain-text", ("sinks", name, "auth"), message)


def _find_uncommitted_mirrors(settings: Settings, sinks: Mapping[str, object]) -> Iterator[_Found]:
    if settings.fetch.isolation == "read_uncommitted" and any(isinstance(one, KafkaOptions) for one in sinks.values()):
        message = (
            "read_uncommitted, so a sink of type kafka commits records of transactions that were aborted in the source: "
            "write read_committed"
        )
        yield _Found("mirror-of-uncommitted", ("fetch", "isolation"), message)


def _find_cut_limits(settings: Settings, layers: Layers) -> Iterator[_Found]:
    """Warn of limits that a smaller limit overrides, if they were set explicitly."""
    fetch, cut = settings.fetch, find_cut_message_limit(settings)
    if cut is not None and cut.is_meant:
        yield _Found("memory-below-message", ("fetch", cut.key), f"{cut.detail}: {cut.advice}")
    if fetch.max_response_bytes < fetch.max_partition_bytes and (
        layers.find(("fetch", "max_response_bytes")) or layers.find(("fetch", "max_partition_bytes"))
    ):
        yield _Found(
            "limit-cut",
            ("fetch", "max_partition_bytes"),
            f"{fetch.max_partition_bytes} is cut to fetch.max_response_bytes ({fetch.max_response_bytes}) by "
            "brokers of 0.10.1 and "
            "later: raise that, or lower this",
        )


def _find_strange_topics(settings: Settings) -> Iterator[_Found]:
    """Warn of pipeline topics whose names resemble a subscribed topic.

    Other unknown topics are not reported, since another daemon may deliver them.
    """
    subscribed = [topic for subscription in settings.subscriptions for topic in subscription.topics]
    pipeline = settings.pipeline
    named: dict[KeyPath, str] = {("pipeline", "silver", "topics", topic): topic for topic in pipeline.silver.topics}
    named |= {("pipeline", "landing", "topics", index): topic for index, topic in enumerate(pipeline.landing.topics)}
    for path, topic in named.items():
        close = difflib.get_close_matches(topic, subscribed, n=1, cutoff=0.8)
        if close and topic not in subscribed:
            yield _Found("topic-resembles", path, f"no subscription has topic {topic!r}; did you mean {close[0]}?")
