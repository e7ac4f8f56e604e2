# SPDX-License-Identifier: Apache-2.0
"""All settings of the daemon with their defaults; ``config.example.yaml`` documents each one.

Models only; ``config.load`` reads the sources. Unknown keys are refused. Mistakes that show only in several sections
are found here and in ``member_settings``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from consumerd.config.cluster_section import ClusterSection
from consumerd.config.member_settings import find_unfit_generation, find_unfit_membership, find_unfit_times
from consumerd.config.pipeline import Pipeline
from consumerd.config.schema import guess
from consumerd.config.section import (
    Bytes,
    FilePath,
    Folder,
    Milliseconds,
    Name,
    PositiveMilliseconds,
    Section,
    SettingFault,
    TopicName,
    WholeNumber,
    WireBytes,
    WireMilliseconds,
    in_our_words,
    refuse,
)
from consumerd.group.subscription import Subscription as GroupSubscription
from consumerd.net.tls import find_unpaired
from consumerd.offsets.store import ZOOKEEPER_ONLY, Place
from consumerd.sinks.option_types import INT32_MAX, read_bytes, read_milliseconds

UnitPolicy = Literal["stop", "skip", "quarantine"]

LARGEST_SHARE = 4
"""Divisor of the memory budget: a message may use at most budget / LARGEST_SHARE bytes."""


SessionTimeout = Annotated[int, BeforeValidator(read_milliseconds), Field(ge=1000, le=INT32_MAX)]


Assignor = Literal["range", "roundrobin", "roundrobin-0.8", "roundrobin-1.0"]

HEARTBEATS_PER_SESSION = 6
"""Number of heartbeats within the session timeout, if no interval is set.

Half a timeout without an answer pauses the use of claimed partitions.
"""
_LEAST_HEARTBEATS: Final = 3


class GroupSection(Section):
    """Settings of the consumer group that this process is a member of.

    Attributes:
        id: Name of the group.
        membership: ``zookeeper``, or ``kafka`` for a group that a broker coordinates.
        consumer_id: Fixed id of the member; None for one made of host, time and random digits.
        streams: Number of consumer threads for which this process counts in the assignment.
        assignor: Rule of the assignment, such as ``range``.
        session_timeout_ms: Time after which the partitions of a crashed member are free.
        heartbeat_interval_ms: Time between two heartbeats to the coordinator; None for a sixth of the session timeout.
        rebalance_timeout_ms: Time for which the coordinator waits for members to join again.
    """

    id: Name
    membership: Literal["zookeeper", "kafka"] = "zookeeper"
    consumer_id: Name | None = None
    streams: WholeNumber = Field(1, ge=1, le=1000)
    assignor: Assignor = "range"
    session_timeout_ms: SessionTimeout = 6000
    heartbeat_interval_ms: WireMilliseconds | None = None
    rebalance_timeout_ms: WireMilliseconds = 60000

    @property
    def heartbeat_s(self) -> float:
        """Seconds between two heartbeats of a member that a broker coordinates.

        Without the setting ``heartbeat_interval_ms``, a sixth of ``session_timeout_ms``.
        """
        chosen = self.heartbeat_interval_ms
        return (self.session_timeout_ms / HEARTBEATS_PER_SESSION if chosen is None else chosen) / 1000

    @model_validator(mode="after")
    def _fits_membership(self) -> Self:
        refuse(self._find_of_kafka() if self.membership == "zookeeper" else self._find_of_zookeeper())
        return self

    def _find_of_kafka(self) -> Iterator[SettingFault]:
        if self.assignor == "roundrobin":
            message = (
                "members of 0.8 to 0.11 and members of 1.0 and later compute different plans for it: write "
                "roundrobin-0.8 or roundrobin-1.0, as the group's Java members are; expected range, roundrobin-0.8 or "
                "roundrobin-1.0 with membership: zookeeper"
            )
            yield SettingFault(("assignor", "membership"), message)
        if self.heartbeat_interval_ms is not None:
            message = "only brokers are sent heartbeats: remove it, or write membership: kafka"
            yield SettingFault(("heartbeat_interval_ms", "membership"), message)

    def _find_of_zookeeper(self) -> Iterator[SettingFault]:
        if self.assignor not in {"range", "roundrobin"}:
            message = f"{self.assignor} is of groups in ZooKeeper: with membership: kafka write range or roundrobin"
            yield SettingFault(("assignor", "membership"), message)
        if self.streams > 1:
            message = "with membership: kafka a process counts as one member: remove it, or run more processes"
            yield SettingFault(("streams", "membership"), message)
        longest_ms = self.session_timeout_ms // _LEAST_HEARTBEATS
        if self.heartbeat_interval_ms is not None and self.heartbeat_interval_ms > longest_ms:
            yield SettingFault(
                ("heartbeat_interval_ms", "session_timeout_ms"),
                f"must be at most a third of session_timeout_ms ({longest_ms}), got {self.heartbeat_interval_ms}: "
                "delivery pauses when no heartbeat was answered for half the session timeout",
            )


class RebalanceSection(Section):
    """Settings of the timing of rebalances.

    The defaults fit into the 6 s for which a Java member retries by default.

    Attributes:
        settle_ms: Time to wait for further changes of members or topics before acting on one.
        max_retries: Number of failed attempts to claim a partition after which the process reports that it is not
            ready. It goes on trying.
        backoff_ms: First delay between two attempts while an owner node of another member remains.
        drain_timeout_ms: Longest time in which a partition that is released may flush and commit.
        release_grace_ms: Time from the end of draining to the deletion of the owner node.
        reconcile_ms: Interval at which assigned, claimed and running partitions are compared.
    """

    settle_ms: Milliseconds = 200
    max_retries: WholeNumber = Field(4, ge=1)
    backoff_ms: PositiveMilliseconds = 2000
    drain_timeout_ms: PositiveMilliseconds = 3000
    release_grace_ms: Milliseconds = 250
    reconcile_ms: PositiveMilliseconds = 5000


def _check_expression(text: str) -> None:
    GroupSubscription.to_white_list([text], 1, key="expression")


Expression = Annotated[str, in_our_words(_check_expression, "expression")]


class SubscriptionSection(Section):
    """Settings of a subscription: topics, and the sink that gets their records.

    Exactly one of the first three is given.

    Attributes:
        topics: Names of the topics.
        pattern: Java regular expression: all topics whose whole name matches, also those created later.
        black_list: Java regular expression: all topics but those whose whole name matches.
        exclude: Together with ``pattern`` only: topics that are left out although ``pattern`` matches them.
        sink: Name of the sink.
    """

    topics: tuple[TopicName, ...] = ()
    pattern: Expression | None = None
    exclude: Expression | None = None
    black_list: Expression | None = None
    sink: str

    @field_validator("sink", mode="before")
    @classmethod
    def _null_is_a_name(cls, value: object) -> object:
        return "null" if value is None else value  # as YAML reads it, unquoted

    @field_validator("topics")
    @classmethod
    def _topics_differ(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for topic in topics:
            if topics.count(topic) > 1:
                raise ValueError(f"topic {topic!r} is given twice: name each once")
        return topics

    @model_validator(mode="after")
    def _topics_or_pattern(self) -> Self:
        if sum((bool(self.topics), self.pattern is not None, self.black_list is not None)) != 1:
            raise ValueError("give one of topics, pattern and black_list")
        if self.exclude is not None and self.pattern is None:
            refuse(
                [
                    SettingFault(
                        ("exclude",),
                        "exclude goes with a pattern: leave topics out of topics, or of black_list, themselves",
                    )
                ]
            )
        if self.exclude is not None and self.exclude == self.pattern:
            refuse([SettingFault(("exclude", "pattern"), "it excludes all that the pattern matches")])
        return self


class SinkSettings(BaseModel):
    """Settings of a sink: its ``type``, its share of memory, that type's options.

    Each sink in use gets ``memory_share / sum`` of the memory for records, where ``sum`` is over all sinks in use.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    memory_share: WholeNumber = Field(1, ge=1, le=100)

    @field_validator("type", mode="before")
    @classmethod
    def _null_is_a_name(cls, value: object) -> object:
        # unquoted, YAML reads the name of the null sink as no value at all
        return "null" if value is None else value

    @property
    def options(self) -> dict[str, object]:
        """The options that only sinks of this ``type`` have."""
        return dict(self.model_extra or {})

    @property
    def on_rejected(self) -> UnitPolicy:
        """Policy for records that the sink rejects: ``stop``, ``skip`` or ``quarantine``.

        Every type of sink has this option. The type's own model checks the value.
        """
        chosen = self.options.get("on_rejected")
        return "skip" if chosen == "skip" else "quarantine" if chosen == "quarantine" else "stop"


class OffsetsSection(Section):
    """Settings of the store of positions, and policies for missing or out-of-range positions.

    Attributes:
        storage: Store of committed positions.
        dual_commit: With ``storage: kafka``, True to read and write positions in ZooKeeper, too; None means True.
        ignore_other_place: True to start although the store that is not read holds larger positions.
        commit_interval_ms: Time between two commits of the acknowledged position.
        on_missing: Policy if there is no position: begin at the start or end of the log, or stop the partition.
        on_below: Policy if the position is below the log's start.
        on_above: Policy if the position is above the log's end.
    """

    storage: Literal["zookeeper", "kafka"] = "zookeeper"
    dual_commit: bool | None = None
    ignore_other_place: bool = False
    commit_interval_ms: PositiveMilliseconds = 5000
    on_missing: Literal["earliest", "latest", "stop"] = "earliest"
    on_below: Literal["earliest", "latest", "nearest", "stop"] = "stop"
    on_above: Literal["earliest", "latest", "nearest", "stop"] = "stop"

    @model_validator(mode="after")
    def _dual_needs_kafka(self) -> Self:
        if self.dual_commit and self.storage != "kafka":
            message = "commits to both places need storage: kafka; with storage: zookeeper, remove dual_commit"
            refuse([SettingFault(("dual_commit", "storage"), message)])
        return self

    @property
    def places(self) -> frozenset[Place]:
        """Stores in which committed positions are read and written: ZooKeeper, Kafka, or both.

        ZooKeeper with ``storage: zookeeper``. With ``storage: kafka`` both, or Kafka alone if ``dual_commit`` is false,
        as with Kafka's Java consumer.
        """
        return find_places(self.storage, dual_commit=self.dual_commit)

    @property
    def kept_in(self) -> Literal["zookeeper", "kafka", "both"]:
        """Name of the stores of committed positions: ``zookeeper``, ``kafka`` or ``both``."""
        return "both" if len(self.places) > 1 else self.storage


def find_places(storage: Literal["zookeeper", "kafka"], *, dual_commit: bool | None) -> frozenset[Place]:
    """Return the stores in which committed positions are read and written.

    Args:
        storage: The setting ``offsets.storage``. With ``zookeeper``, ZooKeeper is the only store.
        dual_commit: The setting ``offsets.dual_commit``, which counts only if ``storage`` is ``kafka``. False means
            Kafka only; True and None mean both stores.
    """
    if storage == "zookeeper":
        return ZOOKEEPER_ONLY
    return frozenset({Place.KAFKA} if dual_commit is False else Place)


class FetchSection(Section):
    """Settings of fetching, and its memory limits.

    Attributes:
        memory_budget_bytes: Memory for fetched records, open files and requests, of all sinks together.
        max_partition_bytes: First size limit of one partition's part of a response; a larger message doubles it.
        max_message_bytes: Largest message or batch, as fetched and decompressed.
        max_response_bytes: Size limit of one response (brokers of 0.10.1 and later).
        max_wait_ms: Longest time that a broker waits for ``min_bytes`` before it answers.
        receive_buffer_bytes: Size of the socket's receive buffer; 0 leaves it to the system.
        isolation: ``read_committed`` leaves out records of aborted and open transactions.
        on_corrupt: Policy for messages and batches that cannot be read.
        on_oversized: Policy for messages and batches above ``max_message_bytes``.
    """

    memory_budget_bytes: Bytes = 268435456
    max_partition_bytes: WireBytes = 8388608
    max_message_bytes: WireBytes = 67108864
    max_response_bytes: WireBytes = 16777216
    max_wait_ms: Milliseconds = 500
    min_bytes: Annotated[int, BeforeValidator(read_bytes), Field(ge=0, le=INT32_MAX)] = 1
    receive_buffer_bytes: Annotated[int, BeforeValidator(read_bytes), Field(ge=0, le=INT32_MAX)] = 0
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    on_corrupt: UnitPolicy = "stop"
    on_oversized: UnitPolicy = "stop"

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        size = f"max_partition_bytes ({self.max_partition_bytes})"
        found = [
            SettingFault((name, "max_partition_bytes"), f"must be at least {size}, got {value}")
            for name, value in (
                ("max_message_bytes", self.max_message_bytes),
                ("memory_budget_bytes", self.memory_budget_bytes),
            )
            if value < self.max_partition_bytes
        ]
        if self.min_bytes > self.max_partition_bytes:
            found.append(
                SettingFault(
                    ("min_bytes", "max_partition_bytes"),
                    f"must be at most {size}, or no partition alone ever has enough, and each answer comes after "
                    "max_wait_ms",
                )
            )
        refuse(found)
        return self

    @property
    def largest_unit_bytes(self) -> int:
        """Size in bytes of the largest message or batch that is delivered.

        It is the smaller of ``max_message_bytes`` and a quarter of ``memory_budget_bytes``, since memory must hold
        several copies of a message. The limit applies to the size as fetched and to the decompressed size.
        """
        return min(self.max_message_bytes, self.memory_budget_bytes // LARGEST_SHARE)


class QuarantineSection(Section):
    """Settings of the folder for messages and records that a policy ``quarantine`` sets aside."""

    path: Folder | None = None


_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s/]+):(?P<port>[0-9]{1,9})")
_LAST_PORT: Final = 65535


class HttpSection(Section):
    """Settings of the address that serves metrics, health and the status page; ``off`` for none.

    Attributes:
        certificate_file: Our certificate in PEM format, for https; None for http.
        key_file: Its private key, in PEM format and without a password.
        token_file: File with the token that requests must have, probes excepted; None for none.
    """

    listen: str = "127.0.0.1:9309"
    certificate_file: FilePath | None = None
    key_file: FilePath | None = None
    token_file: FilePath | None = None

    @model_validator(mode="after")
    def _files_are_used(self) -> Self:
        if (unpaired := find_unpaired(self.certificate_file, self.key_file)) is not None:
            given, other = unpaired
            refuse([SettingFault((given,), f"certificate_file and key_file go together: give {other}, too")])
        return self

    @field_validator("listen", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            message = f"expected host:port, or off: write 0.0.0.0:{value}, or 127.0.0.1:{value} for this machine only"
            raise ValueError(message)  # noqa: TRY004 - pydantic takes no TypeError
        return "off" if value is False else value  # as YAML reads it, unquoted

    @field_validator("listen")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value == "off":
            return value
        if "://" in value:
            raise ValueError(f"expected host:port without a scheme such as http://, got {value!r}")
        match = _ADDRESS.fullmatch(value)
        if match is None:
            raise ValueError(f"expected host:port, such as 0.0.0.0:9309, or off, got {value!r}")
        if int(match["port"]) > _LAST_PORT:
            raise ValueError(f"{match['port']} is no port: write 1 to {_LAST_PORT}, or 0 for a free one")
        return value

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port to listen on; None if the setting is ``off``."""
        if self.listen == "off":
            return None
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class LogSection(Section):
    """Settings of logging to stderr.

    Format ``auto`` is ``console`` on a terminal, else ``json``.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class Shutdown(Section):
    """Settings of an orderly shutdown: its time limit."""

    timeout_ms: PositiveMilliseconds = 20000


class Settings(Section):
    """All settings of a daemon. Created by :func:`consumerd.config.load.load_settings`."""

    cluster: ClusterSection
    group: GroupSection
    rebalance: RebalanceSection = RebalanceSection()
    subscriptions: tuple[SubscriptionSection, ...] = Field(min_length=1)
    sinks: dict[str, SinkSettings] = Field(min_length=1)
    offsets: OffsetsSection = OffsetsSection()
    fetch: FetchSection = FetchSection()
    quarantine: QuarantineSection = QuarantineSection()
    http: HttpSection = HttpSection()
    log: LogSection = LogSection()
    shutdown: Shutdown = Shutdown()
    pipeline: Pipeline = Pipeline()

    @field_validator("subscriptions")
    @classmethod
    def _topics_or_patterns(cls, subscriptions: tuple[SubscriptionSection, ...]) -> tuple[SubscriptionSection, ...]:
        if len(subscriptions) > 1 and any(one.black_list is not None for one in subscriptions):
            raise ValueError(
                "a black_list is all that a process can register: run a second process for the other topics"
            )
        if len({subscription.pattern is None for subscription in subscriptions}) > 1:
            raise ValueError(
                "a process subscribes either to topics or by pattern, as its one registration can say; "
                "run a second process in the same group for the other"
            )
        refuse(_find_twins(subscriptions))
        return subscriptions

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        refuse(
            [
                *self._find_strange_sinks(),
                *self._find_homeless_quarantine(),
                *find_unfit_times(self),
                *find_unfit_membership(self),
                *find_unfit_generation(self, self.cluster.expected_generation),
            ]
        )
        return self

    def _find_strange_sinks(self) -> Iterator[SettingFault]:
        for at, subscription in enumerate(self.subscriptions):
            name = subscription.sink
            if name not in self.sinks:
                meant = guess(name, self.sinks)
                hint = f"; did you mean {meant}?" if meant is not None else ""
                yield SettingFault(
                    (f"subscriptions.{at}.sink",),
                    f"a subscription names sink {name!r}{hint}; there is {', '.join(sorted(self.sinks))}",
                )
        for name, sink in self.sinks.items():
            if "compression_level" in sink.options and sink.options.get("compression", "zstd") != "zstd":
                yield SettingFault(
                    (f"sinks.{name}.compression_level",),
                    f"compression {sink.options['compression']} has no levels: remove it, or write compression: zstd",
                )

    def _find_homeless_quarantine(self) -> Iterator[SettingFault]:
        asking = self.quarantining()
        if asking and self.quarantine.path is None:
            yield SettingFault(
                (asking[0],),
                f"it is quarantine: set quarantine.path, a folder that all replicas share (by {', '.join(asking)})",
            )

    def quarantining(self) -> list[str]:
        """Return the keys of all policies that are set to ``quarantine``."""
        policies = {
            "fetch.on_corrupt": self.fetch.on_corrupt,
            "fetch.on_oversized": self.fetch.on_oversized,
            **{f"sinks.{name}.on_rejected": sink.on_rejected for name, sink in self.sinks.items()},
        }
        return [key for key, policy in policies.items() if policy == "quarantine"]


def _find_twins(subscriptions: tuple[SubscriptionSection, ...]) -> Iterator[SettingFault]:
    first: dict[str, int] = {}
    for at, subscription in enumerate(subscriptions):
        for index, topic in enumerate(subscription.topics):
            earlier = first.setdefault(topic, at)
            keys = (f"{at}.topics.{index}",)
            one, other = subscriptions[earlier].sink, subscription.sink
            if one != other:
                yield SettingFault(
                    keys, f"topic {topic!r} goes to two sinks, {one!r} and {other!r}: run a second group for the other"
                )
            elif earlier != at:
                yield SettingFault(keys, f"topic {topic!r} is given twice: name each once")
    patterns = [subscription.pattern for subscription in subscriptions]
    for at, pattern in enumerate(patterns):
        if pattern is not None and pattern in patterns[:at]:
            yield SettingFault((f"{at}.pattern",), f"the pattern {pattern!r} is given twice: give each once")
