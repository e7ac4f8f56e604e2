# SPDX-License-Identifier: Apache-2.0
"""Options of writers of the format ``consumerd``, named as those of Spark's Kafka sink. Pure.

So a job can be moved by changing its format. ``topic`` and the settings of Java's producer, which have the prefix
``kafka.``, mean the same as there. Producer settings that are not supported are refused, except for a few that change
nothing here. ``partitioner`` and ``keepTimestamps`` are our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from consumerd.access.address import ClusterAddress
from consumerd.client.partitioner import PARTITIONERS
from consumerd.client.producer_settings import ACKS_BY_NAME, ProducerSettings
from consumerd.errors import ConfigError
from consumerd.model import Generation
from consumerd.spark.datasource.options import OptionReader, parse_cluster
from consumerd.wire.compression import Codec

_DEFAULTS: Final = ProducerSettings()

_WITHOUT_EFFECT: Final = (
    "checkpointLocation",  # Spark's, which passes a stream's options on
    "queryName",
    "includeHeaders",  # a column headers is always written
    "kafka.retries",  # the producer retries until delivery.timeout.ms is over
    "kafka.enable.idempotence",  # not supported; tasks that Spark repeats write records twice even with it
)
"""Options that are accepted and change nothing."""

_SIZES: Final[Mapping[str, str]] = {
    "kafka.batch.size": "batch_bytes",
    "kafka.max.request.size": "max_request_bytes",
    "kafka.buffer.memory": "buffer_bytes",
    "kafka.max.in.flight.requests.per.connection": "max_in_flight",
}
_TIMES: Final[Mapping[str, str]] = {
    "kafka.linger.ms": "linger_s",
    "kafka.max.block.ms": "max_block_s",
    "kafka.request.timeout.ms": "request_timeout_s",
    "kafka.delivery.timeout.ms": "delivery_timeout_s",
    "kafka.retry.backoff.ms": "retry_backoff_s",
}
"""Options with the fields of ProducerSettings that they set: options in ms, fields in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a writer of the format ``consumerd``, parsed.

    ``topic`` applies to all rows; None takes the column ``topic``.
    """

    cluster: ClusterAddress
    topic: str | None = None
    partitioner: str = "murmur2"
    keep_timestamps: bool = False
    settings: ProducerSettings = _DEFAULTS


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer. Raises ConfigError, which names the option."""
    reader = OptionReader(options)
    address = parse_cluster(reader)
    if address.generation is Generation.LEGACY:
        raise ConfigError("generation: topics of Kafka 0.6 and 0.7 can be read here, and not be written")
    found = WriteOptions(
        # executors open it, and have no such file; a writer has no use for identities
        cluster=replace(address, identities=None),
        topic=reader.text("topic"),
        partitioner=reader.choice("partitioner", list(PARTITIONERS)),
        keep_timestamps=reader.flag("keepTimestamps", default=False),
        settings=_parse_settings(reader),
    )
    for name in _WITHOUT_EFFECT:
        reader.text(name)
    reader.refuse_unknown()
    return found


def in_options(message: str) -> str:
    """Return a producer's error message with the writer's option names.

    The producer's message has the names of the producer's settings instead.
    """
    for option, setting in (*_SIZES.items(), *_TIMES.items()):
        message = message.replace(setting, option)
    return message


def _parse_settings(reader: OptionReader) -> ProducerSettings:
    given: dict[str, float] = {}
    for option, setting in _SIZES.items():
        if (number := reader.number(option, least=1)) is not None:
            given[setting] = number
    for option, setting in _TIMES.items():
        if (number := reader.number(option)) is not None:
            given[setting] = number / 1000
    if "max_request_bytes" in given:
        # unless given, the buffer is large enough for two of the largest requests
        given.setdefault("buffer_bytes", max(_DEFAULTS.buffer_bytes, 2 * given["max_request_bytes"]))
    linger_s, delivery_s = (
        given.get("linger_s", _DEFAULTS.linger_s),
        given.get("delivery_timeout_s", _DEFAULTS.delivery_timeout_s),
    )
    if linger_s >= delivery_s > 0:  # checked here as well as by ProducerSettings, whose message is in seconds
        raise ConfigError(
            f"kafka.linger.ms: {linger_s * 1000:.0f} leaves no time to send; expected less than "
            f"kafka.delivery.timeout.ms, {delivery_s * 1000:.0f}"
        )
    acks = ACKS_BY_NAME[reader.choice("kafka.acks", list(ACKS_BY_NAME))]
    codec = Codec[reader.choice("kafka.compression.type", [codec.name.lower() for codec in Codec]).upper()]
    try:
        return ProducerSettings(acks=acks, codec=codec, **given)  # type: ignore[arg-type]  # sizes are int
    except ConfigError as error:
        raise ConfigError(in_options(str(error))) from None
