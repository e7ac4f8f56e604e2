# SPDX-License-Identifier: Apache-2.0
"""Checks of settings against each other and against the cluster.

They read no network and change nothing; only paths are resolved. Settings that are wrong by themselves, such as an
unknown key, are refused when they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from consumerd.admin.doctor.facts import RegistryFacts
from consumerd.admin.doctor.findings import join_few
from consumerd.config.memory import explain_small_budget, find_cut_message_limit, find_largest_unit, plan_budgets
from consumerd.config.settings import Settings
from consumerd.config.sink_paths import check_paths, landing_options
from consumerd.errors import ConfigError
from consumerd.group.explain import lint_patience
from consumerd.group.settings import RebalanceSettings
from consumerd.landing.findings import Finding, Severity
from consumerd.telemetry.wording import counted
from consumerd.zk.layout import root_path

_JAVA_RETRIES: Final = 4
_JAVA_BACKOFF_MS: Final = 2000
_JAVA_SESSION_MS: Final = 6000
"""Default of the Java high-level consumer for zookeeper.session.timeout.ms.

The two constants above are those for rebalance.max.retries and rebalance.backoff.ms.
"""


def check_settings(settings: Settings, facts: RegistryFacts, negotiated_s: float) -> list[Finding]:
    """Return problems with settings that contradict each other or the cluster.

    Args:
        facts: State of the group in ZooKeeper.
        negotiated_s: Session timeout that ZooKeeper has granted, in seconds.
    """
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
            kind="session-timeout-not-granted",
            where="group.session_timeout_ms",
            detail=f"{asked_ms} ms is outside of what ZooKeeper allows; it gives {given_ms} ms",
            advice=f"set {given_ms}, or change the servers' minSessionTimeout and maxSessionTimeout (2 and 20 times "
            "tickTime)",
        )


def _check_patience(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    foreign = [one.consumer for one in facts.snapshot.members if one.session_id not in facts.our_sessions]
    problems = lint_patience(
        retries=_JAVA_RETRIES,
        backoff_ms=_JAVA_BACKOFF_MS,
        session_timeout_ms=max(_JAVA_SESSION_MS, settings.group.session_timeout_ms),
        settings=settings.rebalance.fill(RebalanceSettings),
    )
    for problem in problems:
        yield Finding(
            severity=Severity.WARNING if foreign else Severity.NOTICE,
            kind="java-patience",
            where="rebalance",
            detail=f"{problem} (by the defaults of Java members"
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
            kind="memory-for-fewer-partitions",
            where="fetch.memory_budget_bytes",
            detail=f"{fetch.memory_budget_bytes} bytes hold {at_once} fetches of max_partition_bytes "
            f"({fetch.max_partition_bytes}), and one member alone would own {counted(partitions, 'partition')}: they "
            "take turns",
            advice=f"nothing unless throughput suffers; {partitions * fetch.max_partition_bytes} bytes would do for "
            "all",
        )
    if cut := find_cut_message_limit(settings):
        yield Finding(
            severity=Severity.WARNING if cut.is_meant else Severity.NOTICE,
            kind="memory-below-message",
            where=f"fetch.{cut.key}",
            detail=cut.detail,
            advice=cut.advice if cut.is_meant else f"nothing, unless larger ones are to come; then {cut.advice}",
        )
    if small := explain_small_budget(settings):
        yield Finding(
            severity=Severity.WARNING,
            kind="memory-below-libraries",
            where="fetch.memory_budget_bytes",
            detail=small,
            advice="raise it, and the container's limit with it",
        )


def _check_sizes(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    largest = find_largest_unit(settings, plan_budgets(settings))
    for topic, limit in sorted(facts.message_limits.items()):
        if limit > largest:
            yield Finding(
                severity=Severity.WARNING,
                kind="messages-larger-than-fetch",
                where="fetch.max_message_bytes",
                detail=f"topic {topic} may hold messages of {limit} bytes (max.message.bytes), and at most "
                f"{largest} are fetched: fetch.on_oversized ({settings.fetch.on_oversized}) "
                "would apply to larger ones",
                advice=f"set it to {limit} at least, and fetch.memory_budget_bytes accordingly",
            )


def _check_paths(settings: Settings) -> Iterator[Finding]:
    try:
        check_paths(settings)
    except ConfigError as error:
        where, _, what = str(error).partition(": ")
        yield Finding(
            severity=Severity.CRITICAL, kind="paths-overlap", where=where, detail=what, advice="move one of them"
        )


def _check_topics(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    missing = sorted(topic for topic in _subscribed(settings) if facts.topics.get(topic) is None)
    if missing:
        yield Finding(
            severity=Severity.WARNING,
            kind="topics-missing",
            where="subscriptions",
            detail=f"there is no topic {join_few(missing)}",
            advice="check the spelling and cluster.zookeeper's chroot; it is consumed as soon as it is made",
        )


def _check_roots(settings: Settings, facts: RegistryFacts) -> Iterator[Finding]:
    """Yield a finding about sinks that have landed files but are not in these settings.

    They may belong to another process, or have been renamed.
    """
    known = [root_path(facts.group, name) for name in landing_options(settings)]
    strange = [path for path in facts.roots if not any(path == one or path.startswith(f"{one}/") for one in known)]
    if strange:
        yield Finding(
            severity=Severity.NOTICE,
            kind="root-of-another-sink",
            where="sinks",
            detail=f"sinks of other names have landed files for this group: {join_few(sorted(strange))}",
            advice="nothing, if other members have them; a sink that was renamed begins as a new one, without its root",
        )


def _subscribed(settings: Settings) -> set[str]:
    return {topic for subscription in settings.subscriptions for topic in subscription.topics}
