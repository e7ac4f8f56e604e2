"""Every setting there is, with its default; ``config.example.yaml`` documents each one.

Models only: where values come from is ``config.load``. Unknown keys are refused, and so is a value whose feature this
release does not have.
"""

from __future__ import annotations

from pathlib import Path
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
from pydantic_settings import BaseSettings, SettingsConfigDict

from consumerd.config.pipeline import Pipeline
from consumerd.config.section import LEGAL_NAME, Bytes, Milliseconds, PositiveMilliseconds, Section

UnitPolicy = Literal["stop", "skip", "quarantine"]

_SUPPORTED: Final = {
    "generation": (("auto", "modern"), "brokers of 0.8 and later can be consumed, those of 0.6 and 0.7 cannot"),
    "membership": (("zookeeper",), "groups with members in ZooKeeper can be joined, those that brokers keep cannot"),
    "storage": (("zookeeper",), "positions are kept in ZooKeeper; those in Kafka cannot be read or written"),
}
"""Keys whose other values name features that this release does not have: values that work, and why others do not."""


def _refuse_missing_feature(value: object, info: ValidationInfo) -> object:
    known, reason = _SUPPORTED[str(info.field_name)]
    if value not in known:
        raise ValueError(f"{str(value)[:40]!r} is not supported yet: {reason}; write {' or '.join(known)}")
    return value


#: No message may be larger than one part in so many of the memory budget
LARGEST_SHARE = 4


class Tls(Section):
    """TLS to the brokers. Files are PEM."""

    enabled: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    check_hostname: bool = True

    @model_validator(mode="after")
    def _certificate_and_key_go_together(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        return self


class ZookeeperAuth(Section):
    """Digest authentication with ZooKeeper: ``user:password``, from a file or from the environment, never in clear."""

    scheme: Literal["digest"] = "digest"
    credential: SecretStr | None = None
    credential_file: Path | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.credential is None) == (self.credential_file is None):
            raise ValueError(
                "give credential_file, or the environment variable CONSUMERD_CLUSTER__ZOOKEEPER_AUTH__CREDENTIAL"
            )
        return self

    def read(self) -> tuple[str, str]:
        """Return scheme and credential. Raises OSError where the file cannot be read."""
        if self.credential is not None:
            return self.scheme, self.credential.get_secret_value()
        assert self.credential_file is not None
        return self.scheme, self.credential_file.read_text().strip()


class Cluster(Section):
    """Where the cluster is, and how its brokers are spoken to."""

    zookeeper: str = Field(min_length=1)
    generation: Annotated[Literal["auto", "modern"], BeforeValidator(_refuse_missing_feature)] = "auto"
    broker_version: str = Field("auto", pattern=r"^(auto|\d+\.\d+(\.\d+){0,2})$")
    client_id: str | None = Field(None, pattern=LEGAL_NAME)
    connect_timeout_ms: PositiveMilliseconds = 6000
    request_timeout_ms: PositiveMilliseconds = 30000
    metadata_backoff_ms: PositiveMilliseconds = 200
    tls: Tls = Tls()
    zookeeper_auth: ZookeeperAuth | None = None


class Group(Section):
    """Which group this process is a member of, and how."""

    id: str = Field(pattern=LEGAL_NAME)
    membership: Annotated[Literal["zookeeper"], BeforeValidator(_refuse_missing_feature)] = "zookeeper"
    consumer_id: str | None = Field(None, pattern=LEGAL_NAME)
    streams: int = Field(1, ge=1, le=1000)
    assignor: Literal["range", "roundrobin-0.8", "roundrobin-1.0"] = "range"
    session_timeout_ms: int = Field(6000, ge=1000)


class Rebalance(Section):
    """How a rebalance goes; the defaults stay inside a Java member's default patience of 6 s."""

    settle_ms: Milliseconds = 200
    max_retries: int = Field(4, ge=1)
    backoff_ms: PositiveMilliseconds = 2000
    drain_timeout_ms: PositiveMilliseconds = 3000
    release_grace_ms: Milliseconds = 250
    reconcile_ms: PositiveMilliseconds = 5000


class Subscription(Section):
    """Topics by name, by a pattern, or all but those of a black list, and the sink they go to."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    exclude: str | None = None
    black_list: str | None = None
    sink: str

    @model_validator(mode="after")
    def _topics_or_pattern(self) -> Self:
        if sum((bool(self.topics), self.pattern is not None, self.black_list is not None)) != 1:
            raise ValueError("give one of topics, pattern and black_list")
        if self.exclude is not None and self.pattern is None:
            raise ValueError("exclude goes with a pattern")
        return self


class SinkSettings(BaseModel):
    """A destination: its ``type``, its part of the memory, and the options of that type.

    ``memory_share`` is relative to those of the other sinks in use.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    memory_share: int = Field(1, ge=1, le=100)

    @field_validator("type", mode="before")
    @classmethod
    def _null_is_a_name(cls, value: object) -> object:
        # unquoted, YAML reads the name of the null sink as no value at all
        return "null" if value is None else value

    @property
    def options(self) -> dict[str, object]:
        """What only the sinks of its ``type`` have."""
        return dict(self.model_extra or {})

    @property
    def on_rejected(self) -> UnitPolicy:
        """The one option that delivery goes by, which every type has; its type's own model checks it."""
        chosen = self.options.get("on_rejected")
        return "skip" if chosen == "skip" else "quarantine" if chosen == "quarantine" else "stop"


class Offsets(Section):
    """Where positions are kept, and what to do where there is none or it is out of range."""

    storage: Annotated[Literal["zookeeper"], BeforeValidator(_refuse_missing_feature)] = "zookeeper"
    commit_interval_ms: PositiveMilliseconds = 5000
    on_missing: Literal["earliest", "latest", "stop"] = "earliest"
    on_below: Literal["earliest", "latest", "nearest", "stop"] = "stop"
    on_above: Literal["earliest", "latest", "nearest", "stop"] = "stop"


class Fetch(Section):
    """How records are fetched, and how much memory they may take."""

    memory_budget_bytes: Bytes = 268435456
    max_partition_bytes: Bytes = 8388608
    max_message_bytes: Bytes = 67108864
    max_response_bytes: Bytes = 16777216
    max_wait_ms: Milliseconds = 500
    min_bytes: int = Field(1, ge=0)
    receive_buffer_bytes: int = Field(0, ge=0)
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    on_corrupt: UnitPolicy = "stop"
    on_oversized: UnitPolicy = "stop"

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.max_message_bytes < self.max_partition_bytes:
            raise ValueError("max_message_bytes must be at least max_partition_bytes")
        if self.memory_budget_bytes < self.max_partition_bytes:
            raise ValueError("memory_budget_bytes must be at least max_partition_bytes")
        return self

    @property
    def largest_unit_bytes(self) -> int:
        """The largest message or batch, fetched or decompressed, whose copies the budget can hold."""
        return min(self.max_message_bytes, self.memory_budget_bytes // LARGEST_SHARE)


class Quarantine(Section):
    """Where what a policy of ``quarantine`` passes over is kept."""

    path: Path | None = None


class Http(Section):
    """Where metrics, health and the status page are served; ``off`` serves none."""

    listen: str = Field("127.0.0.1:9309", pattern=r"^(off|(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5})$")

    @field_validator("listen", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        return "off" if value is False else value  # as YAML reads it, unquoted

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, or None."""
        if self.listen == "off":
            return None
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class Log(Section):
    """What is logged, on stderr. ``auto``: for people on a terminal, JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class Shutdown(Section):
    """How long a stop may take before it is cut short."""

    timeout_ms: PositiveMilliseconds = 20000


class Settings(BaseSettings):
    """Everything. Made by :func:`consumerd.config.load.load_settings`."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix="CONSUMERD_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    cluster: Cluster
    group: Group
    rebalance: Rebalance = Rebalance()
    subscriptions: tuple[Subscription, ...] = Field(min_length=1)
    sinks: dict[str, SinkSettings] = Field(min_length=1)
    offsets: Offsets = Offsets()
    fetch: Fetch = Fetch()
    quarantine: Quarantine = Quarantine()
    http: Http = Http()
    log: Log = Log()
    shutdown: Shutdown = Shutdown()
    pipeline: Pipeline = Pipeline()

    @field_validator("subscriptions")
    @classmethod
    def _topics_or_patterns(cls, subscriptions: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
        if len(subscriptions) > 1 and any(one.black_list is not None for one in subscriptions):
            raise ValueError(
                "a black_list is all that a process can register: run a second process for the other topics"
            )
        if len({subscription.pattern is None for subscription in subscriptions}) > 1:
            raise ValueError(
                "a process subscribes either to topics or by pattern, as its one registration can say; "
                "run a second process in the same group for the other"
            )
        sinks: dict[str, str] = {}
        for subscription in subscriptions:
            for topic in subscription.topics:
                if sinks.setdefault(topic, subscription.sink) != subscription.sink:
                    raise ValueError(f"topic {topic!r} goes to two sinks, {sinks[topic]!r} and {subscription.sink!r}")
        return subscriptions

    @field_validator("sinks")
    @classmethod
    def _sinks_are_named(cls, sinks: dict[str, SinkSettings], info: ValidationInfo) -> dict[str, SinkSettings]:
        for subscription in info.data.get("subscriptions", ()):
            if subscription.sink not in sinks:
                raise ValueError(
                    f"a subscription names sink {subscription.sink!r}; there is {', '.join(sorted(sinks))}"
                )
        return sinks

    @model_validator(mode="after")
    def _quarantine_has_a_place(self) -> Self:
        policies = {
            "fetch.on_corrupt": self.fetch.on_corrupt,
            "fetch.on_oversized": self.fetch.on_oversized,
            **{f"sinks.{name}.on_rejected": sink.on_rejected for name, sink in self.sinks.items()},
        }
        asking = [key for key, policy in policies.items() if policy == "quarantine"]
        if asking and self.quarantine.path is None:
            raise ValueError(f"{asking[0]} is quarantine: set quarantine.path, a folder that all replicas share")
        return self

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        if self.fetch.max_wait_ms >= self.cluster.request_timeout_ms:
            raise ValueError("fetch.max_wait_ms must be below cluster.request_timeout_ms")
        if self.rebalance.drain_timeout_ms + self.rebalance.release_grace_ms > 5000:
            raise ValueError(
                "rebalance.drain_timeout_ms and release_grace_ms together exceed 5000: "
                "a Java member of the group gives up after 6 s of waiting for a partition"
            )
        if self.shutdown.timeout_ms <= self.rebalance.drain_timeout_ms + self.rebalance.release_grace_ms:
            raise ValueError("shutdown.timeout_ms must exceed rebalance.drain_timeout_ms and release_grace_ms together")
        return self


class InspectionGroup(BaseModel):
    """What a one-shot command needs of ``group``; the rest may stand in the file and is not looked at."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(pattern=LEGAL_NAME)
    assignor: Literal["range", "roundrobin-0.8", "roundrobin-1.0"] = "range"
    session_timeout_ms: int = Field(6000, ge=1000)


class InspectionSettings(BaseSettings):
    """What a one-shot command needs of the settings: the cluster, and perhaps a group."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, env_prefix="CONSUMERD_", env_nested_delimiter="__")

    cluster: Cluster
    group: InspectionGroup | None = None
    rebalance: Rebalance = Rebalance()
