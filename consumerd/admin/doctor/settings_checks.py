# SPDX-License-Identifier: Apache-2.0
"""Do the settings go together, with each other and with what the cluster allows? Pure but for resolving paths.

What can be refused without asking anybody is refused when settings are loaded; this is about the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from consumerd.admin.doctor.facts import RegistryFacts
from consumerd.admin.doctor.findings import Finding, Severity, join_few
from consumerd.config.memory import explain_small_budget, find_largest_unit, find_used, plan_budgets
from consumerd.config.settings import Settings
from consumerd.config.sink_paths import check_paths, landing_options
from consumerd.errors import ConfigError
from consumerd.group.explain import lint_patience
from consumerd.group.settings import RebalanceSettings
from consumerd.telemetry.wording import counted
from consumerd.zk.layout import root_path

_JAVA_RETRIES: Final = 4
_JAVA_BACKOFF_MS: Final = 2000
_JAVA_SESSION_MS: Final = 6000
"""Defaults of the Java high-level consumer: rebalance.max.retries, rebalance.backoff.ms, zookeeper.session.timeout.ms."""


def check_settings(settings: Settings, facts: RegistryFacts, negotiated_s: float) -> list[Finding]:
    """Return what does not go together; ``negotiated_s`` is the session timeout that ZooKeeper gave for the one asked."""
    return [
        *_check_session(settings, negotiated_s),
        *_check_patience(settings, facts),
        *_check_memory(settings, facts),
        *_check_sizes(settings, facts),
        *_check_paths(settings),
        *_check_topics(settings, facts),
        *_check_roots(settings, facts),
    ]


def _check_session(settings: Settings, negotiated_s: float) -> Iterator[Finding]:
    asked_ms, given_ms = settings.group.session_timeout_ms, round(negotiated_s * 1000)
    if given_ms != asked_ms:
        yield Finding(
            severity=Severity.WARNING,
            check="session-timeout-not-granted",
            where="group.session_timeout_ms",
            what=f"{asked_ms} ms is outside of what ZooKeeper allows; it gives {given_ms} ms",
            advice=f"set {given_ms}, or change the servers' minSessionTimeout and maxSessionTimeout (2 and 20 times tickTime)",
        )


def _check_patience(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    foreign = [one.consumer for one in facts.snapshot.members if one.session_id not in facts.our_sessions]
    problems = lint_patience(
        retries=_JAVA_RETRIES,
        backoff_ms=_JAVA_BACKOFF_MS,
        session_timeout_ms=max(_JAVA_SESSION_MS, settings.group.session_timeout_ms),
        settings=RebalanceSettings(**settings.rebalance.model_dump()),
    )
    for problem in problems:
        yield Finding(
            severity=Severity.WARNING if foreign else Severity.NOTICE,
            check="java-patience",
            where="rebalance",
            what=f"{problem} (by the defaults of Java members"
            + (f"; there are {len(foreign)} that are not ours)" if foreign else "; there are none now)"),
            advice="check the Java members' own settings: consumerd explain-rebalance --java-retries ...",
        )


def _check_memory(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    fetch = settings.fetch
    topics = {
        topic for topic in _subscribed(settings) if topic in facts.snapshot.topics
    } or facts.snapshot.topics.keys()
    partitions = sum(len(facts.snapshot.topics[topic].partitions) for topic in topics)
    at_once = fetch.memory_budget_bytes // fetch.max_partition_bytes
    if partitions > at_once:
        yield Finding(
            severity=Severity.NOTICE,
            check="memory-for-fewer-partitions",
            where="fetch.memory_budget_bytes",
            what=f"{fetch.memory_budget_bytes} bytes hold {at_once} fetches of max_partition_bytes "
            f"({fetch.max_partition_bytes}), and one member alone would own {counted(partitions, 'partition')}: they take turns",
            advice=f"nothing unless throughput suffers; {partitions * fetch.max_partition_bytes} bytes would do for all",
        )
    largest = find_largest_unit(settings, plan_budgets(settings))
    if largest < fetch.max_message_bytes:
        yield Finding(
            severity=Severity.WARNING,
            check="memory-below-message",
            where="fetch.memory_budget_bytes",
            what=f"{fetch.memory_budget_bytes} bytes"
            + (f", shared by {len(find_used(settings))} sinks," if len(find_used(settings)) > 1 else "")
            + f" hold the copies of a message of {largest} bytes at most, and max_message_bytes is {fetch.max_message_bytes}",
            advice="raise the budget, or lower fetch.max_message_bytes",
        )
    if small := explain_small_budget(settings):
        yield Finding(
            severity=Severity.WARNING,
            check="memory-below-libraries",
            where="fetch.memory_budget_bytes",
            what=small,
            advice="raise it, and the container's limit with it",
        )


def _check_sizes(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    largest = find_largest_unit(settings, plan_budgets(settings))
    for topic, limit in sorted(facts.message_limits.items()):
        if limit > largest:
            yield Finding(
                severity=Severity.WARNING,
                check="messages-larger-than-fetch",
                where="fetch.max_message_bytes",
                what=f"topic {topic} may hold messages of {limit} bytes (max.message.bytes), and at most "
                f"{largest} are fetched: fetch.on_oversized ({settings.fetch.on_oversized}) "
                "would apply to larger ones",
                advice=f"set it to {limit} at least, and fetch.memory_budget_bytes accordingly",
            )


def _check_paths(settings: Settings) -> Iterator[Finding]:
    try:
        check_paths(settings)
    except ConfigError as error:
        where, _, what = str(error).partition(": ")
        yield Finding(severity=Severity.ERROR, check="paths-overlap", where=where, what=what, advice="move one of them")


def _check_topics(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    missing = sorted(topic for topic in _subscribed(settings) if facts.topics.get(topic) is None)
    if missing:
        yield Finding(
            severity=Severity.WARNING,
            check="topics-missing",
            where="subscriptions",
            what=f"there is no topic {join_few(missing)}",
            advice="check the spelling and cluster.zookeeper's chroot; it is consumed as soon as it is made",
        )


def _check_roots(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    """Tell of sinks that have landed and that these settings do not name: they may be another process's, or renamed."""
    known = [root_path(facts.group, name) for name in landing_options(settings)]
    strange = [path for path in facts.roots if not any(path == one or path.startswith(f"{one}/") for one in known)]
    if strange:
        yield Finding(
            severity=Severity.NOTICE,
            check="root-of-another-sink",
            where="sinks",
            what=f"sinks of other names have landed files for this group: {join_few(sorted(strange))}",
            advice="nothing, if other members have them; a sink that was renamed begins as a new one, without its root",
        )


def _subscribed(settings: Settings) -> set[str]:
    return {topic for subscription in settings.subscriptions for topic in subscription.topics}
