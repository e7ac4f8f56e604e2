# SPDX-License-Identifier: Apache-2.0
"""Check of the targets of sinks ``kafka``, for ``consumerd doctor``.

The target is asked as the daemon asks it when it starts: its brokers, the positions topic and its settings, and all of
its records, with the mirror's own reader. Nothing is changed: a topic that is missing is tried with a request that only
checks. So rights to write (``Write``, and those on transactional ids) show only when the mirror writes.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final

from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.aio.timeouts import timeout
from consumerd.client.remedies import advise_right
from consumerd.client.topic_admin import TopicAdmin
from consumerd.client.topics import MetadataDirectory
from consumerd.client.transaction_requests import check_transactions
from consumerd.config.settings import Settings
from consumerd.errors import ConfigError, ConsumerdError, CorruptMessageError, UnsupportedVersion
from consumerd.landing.findings import Finding, Severity
from consumerd.mirror.positions import MirrorPositions, make_target_directory
from consumerd.mirror.positions_topic import check_positions_topic, create_positions_topic
from consumerd.sinks.kafka.failures import NO_TRANSACTIONS, TARGET_ERRORS, explain_failure
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.registry import load_sink
from consumerd.wire.errorcodes import ErrorCode

_MEND: Final = "mend what the text names, by the table in docs/kafka-sink.md; partitions go on by themselves"
_RESTART: Final = "mend what the text names, by the table in docs/kafka-sink.md; the daemon does not start before"


async def examine_targets(settings: Settings, *, timeout_s: float) -> list[Finding]:
    """Return the problems with the target of each sink ``kafka``.

    Args:
        timeout_s: Time limit for each target, in seconds.
    """
    found: list[Finding] = []
    for name, sink in sorted(settings.sinks.items()):
        options = load_sink(sink.type).Options.model_validate(sink.options)
        if not isinstance(options, KafkaOptions):
            continue
        topics = {
            options.name_topic(topic) for one in settings.subscriptions if one.sink == name for topic in one.topics
        }
        try:
            async with timeout(timeout_s):
                found += await _TargetCheck(name, options, settings.group.id, timeout_s).examine(topics)
        except TimeoutError:
            detail = f"the target {options.bootstrap} does not answer all that a mirror asks within {timeout_s:g} s"
            found.append(_find("target-not-reached", f"sinks.{name}", detail, _MEND))
    return found


class _TargetCheck:
    """Check of one target."""

    def __init__(self, sink: str, options: KafkaOptions, group: str, timeout_s: float) -> None:
        self._where = f"sinks.{sink}"
        self._options = options
        self._address = options.locate(sink, group)
        self._any_id = f"{options.transactional_id_prefix}.{group}.*"
        self._timeout_s = timeout_s

    async def examine(self, topics: Collection[str]) -> list[Finding]:
        """Return the problems.

        Args:
            topics: Topics of the target that are known by name.
        """
        positions_topic = self._options.positions_topic
        async with open_cluster(self._address, wait_s=None) as cluster:
            directory = make_target_directory(cluster)
            directory.follow_also((positions_topic, *topics))
            view = await directory.refresh("doctor")
            if directory.failure is not None:
                detail = f"the target {self._options.bootstrap} does not answer: {directory.failure}"
                return [_find("target-not-reached", self._where, detail, _MEND)]
            denied = {name for name, one in view.topics.items() if one.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            found = [
                _find(
                    "target-topic-denied",
                    f"{self._where}: {topic}",
                    "the target's brokers answer error 29 to Metadata",
                    advise_right("Write", topic),
                )
                for topic in sorted(denied.intersection((*topics, positions_topic)))
            ]
            if self._options.delivery == "exactly-once" and positions_topic not in denied:
                found += await self._examine_positions(cluster, directory)
        return found

    async def _examine_positions(self, cluster: ClusterConnections, directory: MetadataDirectory) -> list[Finding]:
        topic, view = self._options.positions_topic, directory.view
        where = f"{self._where}: {topic}"
        admin = TopicAdmin(
            cluster.pool,
            directory,
            random=random.random,
            request_timeout_s=self._timeout_s,
            patience_s=self._timeout_s,
            principal=self._address.principal,
        )
        try:
            for broker in [*view.brokers.values()][:1]:
                await check_transactions(cluster.pool, broker)
        except UnsupportedVersion as error:
            return [_find("target-without-transactions", self._where, str(error), NO_TRANSACTIONS)]
        try:
            if topic not in view.topics:
                factor = self._options.positions_replication_factor
                await create_positions_topic(
                    admin, topic, brokers=len(view.brokers), replication_factor=factor, validate_only=True
                )
                return [_missing(where)]
            await check_positions_topic(admin, topic)
            reader = MirrorPositions(
                cluster.pool,
                directory,
                topic,
                random=random.random,
                request_timeout_s=self._timeout_s,
                patience_s=self._timeout_s,
            )
            await reader.refresh()
            for log in reader.list():
                reader.find(log)
        except UnsupportedVersion as error:
            detail = f"the topic for the mirror's positions cannot be checked: {error}"
            return [_find("positions-topic-not-checked", where, detail, _MEND, Severity.NOTICE)]
        except ConfigError as error:
            return [_find("positions-topic-refused", where, str(error), _RESTART)]
        except (CorruptMessageError, *TARGET_ERRORS) as error:
            return [_find("positions-not-read", where, self._explain(error), _MEND)]
        return []

    def _explain(self, error: ConsumerdError) -> str:
        topic = self._options.positions_topic
        return explain_failure(error, topic, topic, self._any_id, self._address.principal)


def _missing(where: str) -> Finding:
    return Finding(
        severity=Severity.NOTICE,
        kind="positions-topic-missing",
        where=where,
        detail="no mirror has stored anything in this target yet: the topic does not exist, and may be created",
        advice="nothing: the mirror creates it when it starts",
    )


def _find(kind: str, where: str, detail: str, advice: str, severity: Severity = Severity.CRITICAL) -> Finding:
    return Finding(severity=severity, kind=kind, where=where, detail=detail, advice=advice)
