# SPDX-License-Identifier: Apache-2.0
"""What a writer can be asked for, in the words of Spark's own Kafka sink, so that a job moves over by its format's name.

Pure. ``topic`` and the settings of Java's producer, with the prefix ``kafka.``, count as there; those that have no
meaning here are refused by name, but for a few that promise no more than what is done anyway. ``partitioner`` and
``keepTimestamps`` are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.access.address import ClusterAddress
from consumerd.client.partitioner import PARTITIONERS
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import ConfigError
from consumerd.spark.datasource.options import OptionReader, parse_cluster
from consumerd.wire.compression import Codec
from consumerd.wire.modern.produce import ACKS_ALL, ACKS_LEADER, ACKS_NONE

_DEFAULTS: Final = ProducerSettings()

_ACKS: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": ACKS_LEADER, "0": ACKS_NONE}

_WITHOUT_EFFECT: Final = (
    "checkpointLocation",  # Spark's, which passes a stream's options on
    "queryName",
    "includeHeaders",  # a column headers is written where there is one
    "kafka.retries",  # tried until delivery.timeout.ms is over
    "kafka.enable.idempotence",  # not there; tasks that run again repeat records either way
)

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
"""Options to the fields of ProducerSettings that they set: as they are, and in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Everything that a writer was asked for. ``topic`` is for all rows, None for the column's."""

    cluster: ClusterAddress
    topic: str | None = None
    partitioner: str = "murmur2"
    keep_timestamps: bool = False
    settings: ProducerSettings = _DEFAULTS


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of a batch or a stream that is written. Raises ConfigError that names the option."""
    reader = OptionReader(options)
    found = WriteOptions(
        cluster=parse_cluster(reader),
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
    """Return a producer's message with its settings by the names of their options."""
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
        # a buffer that nobody has asked for has room for a few of the largest requests
        given.setdefault("buffer_bytes", max(_DEFAULTS.buffer_bytes, 2 * given["max_request_bytes"]))
    linger_s, delivery_s = (
        given.get("linger_s", _DEFAULTS.linger_s),
        given.get("delivery_timeout_s", _DEFAULTS.delivery_timeout_s),
    )
    if linger_s >= delivery_s > 0:  # ProducerSettings would say so in seconds
        raise ConfigError(
            f"kafka.linger.ms: {linger_s * 1000:.0f} leaves no time to send; expected less than "
            f"kafka.delivery.timeout.ms, {delivery_s * 1000:.0f}"
        )
    acks = _ACKS[reader.choice("kafka.acks", list(_ACKS))]
    codec = Codec[reader.choice("kafka.compression.type", [codec.name.lower() for codec in Codec]).upper()]
    try:
        return ProducerSettings(acks=acks, codec=codec, **given)  # type: ignore[arg-type]  # sizes are whole, times need not be
    except ConfigError as error:
        raise ConfigError(in_options(str(error))) from None
