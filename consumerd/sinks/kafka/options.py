# SPDX-License-Identifier: Apache-2.0
"""Settings of the sink ``kafka``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from consumerd.access.address import ClusterAddress, parse_bootstrap
from consumerd.access.sasl_login import SERVICE, SaslLogin
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import ConfigError
from consumerd.mirror.positions import DEFAULT_TOPIC
from consumerd.mirror.target_topics import PLACE, TopicPolicy, check_template
from consumerd.model import find_topic_fault
from consumerd.sinks.option_types import INT32_MAX, Bytes, FilePath, PositiveMilliseconds, WholeNumber
from consumerd.sinks.options import SinkOptions
from consumerd.sinks.tls_options import TlsOptions
from consumerd.wire.compression import Codec

_INT16_MAX: Final = 2**15 - 1
"""Largest replication factor that a request can carry."""
_TRANSACTION_MARGIN: Final = 2
"""A transaction may take this many times the flush interval at least."""


def _check_bootstrap(value: str) -> str:
    try:
        parse_bootstrap(value)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("bootstrap: ")) from error
    return value


def _check_template(value: str) -> str:
    try:
        check_template(value)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("topic: ")) from error
    return value


def _check_topic(value: str) -> str:
    if fault := find_topic_fault(value):
        raise ValueError(f"expected the name of a topic: {fault}")
    return value


class KafkaSaslOptions(BaseModel):
    """Authentication at the target's brokers by SASL, as in ``cluster.sasl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"] = Field(description="The mechanism.")
    username: str | None = Field(default=None, min_length=1, description="User name for PLAIN and SCRAM.")
    password_file: FilePath | None = Field(default=None, description="File with the password.")
    keytab: FilePath | None = Field(default=None, description="Kerberos keys; null: tickets of the system's cache.")
    principal: str | None = Field(default=None, min_length=1, description="Kerberos principal; null: the cache's.")
    service_name: str = Field(default=SERVICE, min_length=1, description="First part of the brokers' principals.")
    allow_plaintext_password: bool = Field(
        default=False, description="Whether PLAIN's password may be sent over connections that are not encrypted."
    )

    def locate(self, setting: str) -> SaslLogin:
        """Return the identity, for the target's address; ``setting`` begins error messages."""
        return SaslLogin(
            setting=setting,
            mechanism=self.mechanism,
            username=self.username,
            password_file=self.password_file,
            keytab=self.keytab,
            principal=self.principal,
            service_name=self.service_name,
            allow_plaintext_password=self.allow_plaintext_password,
        )


class KafkaOptions(SinkOptions):
    """Settings of the sink ``kafka``."""

    bootstrap: Annotated[str, AfterValidator(_check_bootstrap)] = Field(
        description="Brokers of the target to ask first, host:port,host:port."
    )
    topic: Annotated[str, AfterValidator(_check_template)] = Field(
        default=PLACE, description="Topic in the target; {topic} stands for the source's name."
    )
    delivery: Literal["exactly-once", "at-least-once"] = Field(
        default="exactly-once",
        description="exactly-once: in transactions; at-least-once: for targets before 0.11, or without rights for them.",
    )
    create_topics: bool = Field(
        default=True, description="Whether topics are made like those of the source, and grow with them."
    )
    replication_factor: Literal["source", "target"] | Annotated[WholeNumber, Field(gt=0, le=_INT16_MAX)] = Field(
        default="source", description="Replicas of new topics: of the source topic, the target's default, or a number."
    )
    add_partitions: bool = Field(
        default=False, description="Whether topics that others may write to get partitions, too."
    )
    partitioner: Literal["same", "key"] = Field(
        default="same", description="same: partition N into N; key: by the hash of the key, as Java's producer does."
    )
    timestamps: Literal["keep", "arrival"] = Field(
        default="keep", description="Timestamp of records without one: keep: none; arrival: the time of mirroring."
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="none", description="Compression of the batches."
    )
    flush_ms: PositiveMilliseconds = Field(
        default=1000, description="A transaction is committed this long after its first record."
    )
    batch_bytes: Bytes = Field(default=512 << 10, description="Most bytes of a batch before compression.")
    positions_topic: Annotated[str, AfterValidator(_check_topic)] = Field(
        default=DEFAULT_TOPIC, description="Compacted topic in the target with positions and offset maps."
    )
    positions_replication_factor: Annotated[WholeNumber, Field(gt=0, le=INT32_MAX)] | None = Field(
        default=None, description="Replicas of that topic when it is created; null: the brokers' default."
    )
    transactional_id_prefix: str = Field(
        default="consumerd", min_length=1, description="Transactional ids begin with it, for rights by prefix."
    )
    transaction_timeout_ms: PositiveMilliseconds = Field(
        default=60_000, description="The target aborts a transaction that takes longer."
    )
    request_timeout_ms: PositiveMilliseconds = Field(
        default=30_000, description="Time for the answer to a request, and for all attempts of a flush's step."
    )
    connect_timeout_ms: PositiveMilliseconds = Field(default=6000, description="Time for connecting to a broker.")
    client_id: str | None = Field(
        default=None, min_length=1, description="Name by which the target's brokers know us; null: the group."
    )
    tls: TlsOptions | None = Field(default=None, description="Files for TLS to the target; null: plain text.")
    sasl: KafkaSaslOptions | None = Field(default=None, description="Identity at the target's brokers; null: none.")

    @classmethod
    def parse(cls, values: Mapping[str, object], setting: str) -> Self:
        """Return the settings with these values; ``setting`` begins error messages. Raises ConfigError."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            told = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{setting}: {place}: {told}" if place else f"{setting}: {told}") from error

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if self.sasl is not None and (fault := self.sasl.locate("sasl").find_fault(tls=self.tls is not None)):
            raise ValueError(f"sasl.{fault[0]}: {fault[1]}")
        if self.partitioner == "key" and self.delivery == "at-least-once":
            raise ValueError(
                "partitioner: key needs transactions: set delivery to exactly-once, or partitioner to same"
            )
        if self.transaction_timeout_ms < _TRANSACTION_MARGIN * self.flush_ms:
            raise ValueError(
                f"transaction_timeout_ms: {self.transaction_timeout_ms} is below {_TRANSACTION_MARGIN} * flush_ms "
                f"({self.flush_ms}): the target would abort transactions; raise it"
            )
        return self

    @property
    def codec(self) -> Codec:
        """Compression of the batches."""
        return Codec[self.compression.upper()]

    def name_topic(self, source: str) -> str:
        """Return the name of the target's topic for a topic of the source."""
        return self.topic.replace(PLACE, source)

    @property
    def topic_policy(self) -> TopicPolicy:
        """Settings about topics in the target."""
        return TopicPolicy(
            replication_factor=self.replication_factor,
            creates=self.create_topics,
            add_partitions=self.add_partitions,
            any_count=self.partitioner == "key",
        )

    def locate(self, sink: str, group: str) -> ClusterAddress:
        """Return the target's address.

        Args:
            sink: Name of the sink, for error messages.
            group: Group, by which brokers know us without ``client_id``.
        """
        return ClusterAddress(
            bootstrap=self.bootstrap,
            tls=None if self.tls is None else self.tls.locate(f"sinks.{sink}.tls"),
            sasl=None if self.sasl is None else self.sasl.locate(f"sinks.{sink}.sasl"),
            client_id=self.client_id or group,
            connect_timeout_s=self.connect_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_ms / 1000,
        )

    def make_producer_settings(self, transactional_id: str | None) -> ProducerSettings:
        """Return the settings of the producer with a transactional id; None for one without transactions."""
        timeout_s = self.request_timeout_ms / 1000
        return ProducerSettings(
            codec=self.codec,
            max_block_s=timeout_s,
            request_timeout_s=timeout_s,
            delivery_timeout_s=timeout_s,
            transactional_id=transactional_id,
            transaction_timeout_ms=self.transaction_timeout_ms,
            retry_backoff_s=0.05,
        )
