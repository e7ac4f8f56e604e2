# SPDX-License-Identifier: Apache-2.0
"""Makes the decoders of a topic's settings.

Reads schema files, once on the driver, so Spark's tasks need no files.
"""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from consumerd.config.pipeline_topics import Decoding, SilverTopic
from consumerd.errors import ConfigError
from consumerd.spark.decoding.avro import AvroDecoder
from consumerd.spark.decoding.avro_schema import read_schema
from consumerd.spark.decoding.columns import ColumnDecoder
from consumerd.spark.decoding.objects import JsonDecoder
from consumerd.spark.decoding.plain import RawDecoder, TextDecoder
from consumerd.spark.decoding.records import RecordDecoder


def load_decoder(topic: str, settings: SilverTopic) -> RecordDecoder:
    """Return the decoder of a topic's records, as its settings say.

    Raises ConfigError for a schema file that cannot be read, a schema without columns for all its types, and an event
    time that is not a timestamp with a zone.
    """
    key = f"pipeline.silver.topics.{topic}"
    decoder = RecordDecoder(
        key=_load_column(f"{key}.key", settings.key),
        value=_load_column(f"{key}.value", settings.value),
        event_time=tuple(settings.event_time.split(".")) if settings.event_time else (),
        late_ms=settings.late_ms,
        early_ms=settings.early_ms,
    )
    _check_event_time(f"{key}.event_time", decoder)
    return decoder


def _load_column(key: str, decoding: Decoding) -> ColumnDecoder:
    match decoding.format:
        case "raw":
            return RawDecoder()
        case "utf8":
            return TextDecoder()
        case "json":
            return JsonDecoder(decoding.struct)
        case "avro":
            return _load_avro(key, decoding)
        case never:
            assert_never(never)


def _load_avro(key: str, decoding: Decoding) -> AvroDecoder:
    assert decoding.schema_file is not None  # the settings' model demands it for avro
    try:
        return AvroDecoder(
            read_schema(decoding.schema_file),
            decoding.framing,
            {schema_id: read_schema(path) for schema_id, path in decoding.writer_schemas.items()},
        )
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _check_event_time(key: str, decoder: RecordDecoder) -> None:
    if not decoder.event_time:
        return
    side, *path = decoder.event_time
    at = decoder.key.type if side == "key" else decoder.value.type
    for name in path:
        place = at.get_field_index(name) if pa.types.is_struct(at) else -1
        if place < 0:
            raise ConfigError(f"{key}: {'.'.join(decoder.event_time)}: there is no field {name!r}")
        at = at.field(place).type
    if not pa.types.is_timestamp(at) or at.tz is None:
        raise ConfigError(f"{key}: {'.'.join(decoder.event_time)} is of type {at}, expected a point in time")
