# SPDX-License-Identifier: Apache-2.0
"""All settings of the daemon with their defaults; ``config.example.yaml`` documents each one.

Models only; ``config.load`` reads the sources. Unknown keys are refused, and so are values whose feature this release
does not have.
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
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from consumerd.access.address import ClusterAddress, TlsFiles, ZooKeeperCredential
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
from consumerd.net.versions import parse_broker_version
from consumerd.sinks.option_types import INT32_MAX, read_bytes, read_milliseconds
from consumerd.zk.connect_string import parse_connect_string

UnitPolicy = Literal["stop", "skip", "quarantine"]

_SUPPORTED: Final = {
    "generation": (("auto", "modern"), "brokers of 0.8 and later can be consumed, those of 0.6 and 0.7 cannot"),
    "membership": (("zookeeper",), "groups with members in ZooKeeper can be joined, those that brokers keep cannot"),
    "storage": (("zookeeper",), "positions are kept in ZooKeeper; those in Kafka cannot be read or written"),
}
"""Keys with values that name missing features: the supported values, and the reason why others are refused."""


def _refuse_missing_feature(value: object, info: ValidationInfo) -> object:
    known, reason = _SUPPORTED[str(info.field_name)]
    if value not in known:
        raise ValueError(f"{str(value)[:40]!r} is not supported yet: {reason}; write {' or '.join(known)}")
    return value


LARGEST_SHARE = 4
"""A message may take at most one part in this many of the memory budget."""


class TlsSection(Section):
    """TLS to the brokers. Files are PEM."""

    enabled: bool = False
    ca_file: FilePath | None = None
    certificate_file: FilePath | None = None
    key_file: FilePath | None = None
    check_hostname: bool = True

    @model_validator(mode="after")
    def _files_are_used(self) -> Self:
        named = [name for name in ("ca_file", "certificate_file", "key_file") if getattr(self, name) is not None]
        # one message only: these files are not read, so their own faults do not matter
        if not self.enabled and (named or not self.check_hostname):
            unused = (*named, *(() if self.check_hostname else ("check_hostname",)))
            message = (
                "without cluster.tls.enabled the connection is plain text: write enabled: true, "
                f"or remove {' and '.join(unused)}"
            )
            refuse([SettingFault(unused, message)])
        if (self.certificate_file is None) != (self.key_file is None):
            given, other = (
                ("key_file", "certificate_file") if self.certificate_file is None else ("certificate_file", "key_file")
            )
            refuse([SettingFault((given,), f"certificate_file and key_file go together: give {other}, too")])
        return self

    def locate(self) -> TlsFiles | None:
        """Return the files as a part of the cluster's address, None where TLS is off."""
        if not self.enabled:
            return None
        return TlsFiles(
            setting="cluster.tls",
            trusted=self.ca_file,
            certificate=self.certificate_file,
            key=self.key_file,
            check_hostname=self.check_hostname,
        )


class ZookeeperAuthSection(Section):
    """Digest authentication with ZooKeeper: ``user:password``, from a file or the environment only."""

    scheme: Literal["digest"] = "digest"
    credential: SecretStr | None = None
    credential_file: FilePath | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        variable = "the environment variable CONSUMERD_CLUSTER__ZOOKEEPER_AUTH__CREDENTIAL"
        if self.credential is None and self.credential_file is None:
            raise ValueError(f"give credential_file, or {variable}")
        if self.credential is not None and self.credential_file is not None:
            refuse([SettingFault(("credential_file", "credential"), f"give either this or {variable}, not both")])
        if self.credential is not None and not is_credential(self.credential.get_secret_value()):
            refuse([SettingFault(("credential",), f"{variable} does not hold user:password")])
        return self

    def locate(self) -> ZooKeeperCredential:
        """Return where the credential is, as a part of the cluster's address."""
        return ZooKeeperCredential(
            setting="cluster.zookeeper_auth.credential_file",
            scheme=self.scheme,
            file=self.credential_file,
            text="" if self.credential is None else self.credential.get_secret_value(),
        )


def is_credential(text: str) -> bool:
    """Return True if a text has the form ``user:password`` of ZooKeeper's scheme ``digest``."""
    user, colon, password = text.strip().partition(":")
    return bool(user and colon and password)


class ClusterSection(Section):
    """The address of the cluster, and the connections to its brokers."""

    zookeeper: Annotated[str, in_our_words(parse_connect_string)]
    generation: Annotated[Literal["auto", "modern"], BeforeValidator(_refuse_missing_feature)] = "auto"
    broker_version: Annotated[str, in_our_words(parse_broker_version, "cluster.broker_version")] = "auto"
    client_id: Name | None = None
    connect_timeout_ms: WireMilliseconds = 6000
    request_timeout_ms: WireMilliseconds = 30000
    metadata_backoff_ms: Annotated[int, BeforeValidator(read_milliseconds), Field(gt=0, le=10_000)] = 200
    tls: TlsSection = TlsSection()
    zookeeper_auth: ZookeeperAuthSection | None = None

    def locate(self, *, client_id: str, session_timeout_ms: int) -> ClusterAddress:
        """Return the cluster's address; ``client_id`` counts where the settings name none."""
        return ClusterAddress(
            zookeeper=self.zookeeper,
            zookeeper_auth=None if self.zookeeper_auth is None else self.zookeeper_auth.locate(),
            trusts_modern=self.generation == "modern",
            tls=self.tls.locate(),
            broker_version=self.broker_version,
            client_id=self.client_id or client_id,
            session_timeout_s=session_timeout_ms / 1000,
            connect_timeout_s=self.connect_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_ms / 1000,
            metadata_backoff_s=self.metadata_backoff_ms / 1000,
        )


SessionTimeout = Annotated[int, BeforeValidator(read_milliseconds), Field(ge=1000, le=INT32_MAX)]


class GroupSection(Section):
    """The group that this process is a member of, and its membership."""

    id: Name
    membership: Annotated[Literal["zookeeper"], BeforeValidator(_refuse_missing_feature)] = "zookeeper"
    consumer_id: Name | None = None
    streams: WholeNumber = Field(1, ge=1, le=1000)
    assignor: Literal["range", "roundrobin-0.8", "roundrobin-1.0"] = "range"
    session_timeout_ms: SessionTimeout = 6000


class RebalanceSection(Section):
    """Timing of rebalances; the defaults fit into a Java member's default patience of 6 s."""

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
    """Subscribed topics and their sink.

    Topics are given by name, by a pattern, or as all but those of a black list.
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
    """A sink: its ``type``, its share of the memory, and the options of that type.

    ``memory_share`` is relative to those of the other sinks in use.
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
        """The policy for rejected records, an option of every sink type.

        The type's own model checks the value.
        """
        chosen = self.options.get("on_rejected")
        return "skip" if chosen == "skip" else "quarantine" if chosen == "quarantine" else "stop"


class OffsetsSection(Section):
    """Storage of positions, and policies for missing or out-of-range positions."""

    storage: Annotated[Literal["zookeeper"], BeforeValidator(_refuse_missing_feature)] = "zookeeper"
    commit_interval_ms: PositiveMilliseconds = 5000
    on_missing: Literal["earliest", "latest", "stop"] = "earliest"
    on_below: Literal["earliest", "latest", "nearest", "stop"] = "stop"
    on_above: Literal["earliest", "latest", "nearest", "stop"] = "stop"


class FetchSection(Section):
    """Fetching, and its memory limits."""

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
        """The largest message or batch whose copies fit into the budget, in bytes.

        It applies to its size both as fetched and decompressed.
        """
        return min(self.max_message_bytes, self.memory_budget_bytes // LARGEST_SHARE)


class QuarantineSection(Section):
    """The folder of units that a policy ``quarantine`` passes over."""

    path: Folder | None = None


_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s/]+):(?P<port>[0-9]{1,9})")
_LAST_PORT: Final = 65535


class HttpSection(Section):
    """The address that serves metrics, health and the status page; ``off`` for none."""

    listen: str = "127.0.0.1:9309"

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
        """Host and port, or None."""
        if self.listen == "off":
            return None
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class LogSection(Section):
    """Logging to stderr; ``auto`` is for people on a terminal, JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class Shutdown(Section):
    """Time limit of an orderly shutdown."""

    timeout_ms: PositiveMilliseconds = 20000


_JAVA_PATIENCE_MS: Final = 5000
"""Longest handover that a Java member with default settings waits for: 4 tries, 2 s apart, less the time of a
rebalance.
"""


class Settings(Section):
    """All settings. Created by :func:`consumerd.config.load.load_settings`."""

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
        refuse([*self._find_strange_sinks(), *self._find_homeless_quarantine(), *self._find_unfit_times()])
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
        """Return the keys of all policies that are ``quarantine``."""
        policies = {
            "fetch.on_corrupt": self.fetch.on_corrupt,
            "fetch.on_oversized": self.fetch.on_oversized,
            **{f"sinks.{name}.on_rejected": sink.on_rejected for name, sink in self.sinks.items()},
        }
        return [key for key, policy in policies.items() if policy == "quarantine"]

    def _find_unfit_times(self) -> Iterator[SettingFault]:
        longest_wait = self.cluster.request_timeout_ms
        if self.fetch.max_wait_ms >= longest_wait:
            yield SettingFault(
                ("fetch.max_wait_ms", "cluster.request_timeout_ms"),
                f"must be below cluster.request_timeout_ms ({longest_wait}), got {self.fetch.max_wait_ms}",
            )
        drain_ms = self.rebalance.drain_timeout_ms + self.rebalance.release_grace_ms
        drain = ("rebalance.drain_timeout_ms", "rebalance.release_grace_ms")
        if drain_ms > _JAVA_PATIENCE_MS:
            yield SettingFault(
                drain,
                f"with rebalance.release_grace_ms it is {drain_ms}, above {_JAVA_PATIENCE_MS}: "
                "a Java member of the group gives up after 6 s of waiting for a partition",
            )
        elif self.shutdown.timeout_ms <= drain_ms:
            yield SettingFault(
                ("shutdown.timeout_ms", *drain),
                f"must exceed rebalance.drain_timeout_ms and release_grace_ms together ({drain_ms}), got "
                f"{self.shutdown.timeout_ms}",
            )


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


class InspectionGroup(BaseModel):
    """The part of ``group`` that one-shot commands use; other keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: Name
    assignor: Literal["range", "roundrobin-0.8", "roundrobin-1.0"] = "range"
    session_timeout_ms: SessionTimeout = 6000


class InspectionSettings(BaseModel):
    """The settings that one-shot commands use: the cluster, and perhaps a group."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    cluster: ClusterSection
    group: InspectionGroup | None = None
    rebalance: RebalanceSection = RebalanceSection()
