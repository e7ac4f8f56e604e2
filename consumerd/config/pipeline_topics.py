# SPDX-License-Identifier: Apache-2.0
"""Settings of decoding topics into silver tables: the values of ``pipeline.silver.topics``.

Files of schemas are read and checked when a job starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from consumerd.config.field_types import FieldType, find_name_clash, parse_type
from consumerd.config.section import FilePath, Milliseconds, Section, SettingFault, refuse
from consumerd.model import find_topic_fault

Format = Literal["raw", "utf8", "json", "avro"]
Framing = Literal["bare", "confluent", "single_object"]


def _check_type(text: str) -> str:
    parse_type(text)  # MalformedType is the ValueError that pydantic wants
    return text


TypeText = Annotated[str, AfterValidator(_check_type)]


class Decoding(Section):
    """Settings of decoding a record's key or value.

    One model for all formats, so that errors name the key by its path.
    """

    format: Format = Field("raw", description="raw: the bytes; utf8: text; json: an object of fields; avro: a datum.")
    fields: dict[str, TypeText] | None = Field(
        None, description="json: the fields and their types, written as in Spark's DDL; others are passed over."
    )
    schema_file: FilePath | None = Field(
        None, description="avro: the schema (.avsc) that the columns are made by; a writer's is resolved to it."
    )
    framing: Framing = Field(
        "bare",
        description="avro: what stands before a datum: nothing; a zero byte and the schema's id in four bytes; "
        "or two marks "
        "and the schema's fingerprint in eight.",
    )
    writer_schemas: dict[int, FilePath] = Field(
        default_factory=dict,
        description="avro with framing confluent: the writers' schemas by id. Other ids are bad records.",
    )

    @field_validator("fields")
    @classmethod
    def _names_differ(cls, fields: dict[str, str] | None) -> dict[str, str] | None:
        if fields is not None and not fields:
            raise ValueError("name at least one field")
        if fields and (clash := find_name_clash(list(fields))):
            raise ValueError(f"{clash!r} is there twice (Spark does not tell upper case from lower)")
        return fields

    @model_validator(mode="after")
    def _options_are_of_the_format(self) -> Self:
        refuse(self._find_faults())
        return self

    def _find_faults(self) -> Iterator[SettingFault]:
        if self.format == "json" and self.fields is None:
            yield SettingFault(("format",), "format json needs fields")
        if self.format != "json" and self.fields is not None:
            yield SettingFault(("fields", "format"), f"fields goes with format json, and format is {self.format}")
        if self.format == "avro" and self.schema_file is None:
            yield SettingFault(("format",), "format avro needs schema_file")
        if self.format != "avro" and self.schema_file is not None:
            yield SettingFault(
                ("schema_file", "format"), f"schema_file goes with format avro, and format is {self.format}"
            )
        if self.format != "avro" and self.framing != "bare":
            yield SettingFault(("framing", "format"), f"framing goes with format avro, and format is {self.format}")
        elif self.framing == "confluent" and not self.writer_schemas:
            yield SettingFault(("framing",), "framing confluent needs writer_schemas, a file for each id that may come")
        elif self.framing != "confluent" and self.writer_schemas:
            yield SettingFault(("writer_schemas",), "writer_schemas goes with framing confluent")

    @property
    def struct(self) -> FieldType:
        """The fields of format ``json`` as one struct type."""
        fields = {} if self.fields is None else self.fields
        return FieldType(kind="struct", fields=tuple((name, parse_type(text)) for name, text in fields.items()))


def _read_short_form(value: object) -> object:
    return {"format": value} if isinstance(value, str) else value


DecodingOrFormat = Annotated[Decoding, BeforeValidator(_read_short_form)]
"""Settings of decoding a key or value; the format's name alone is enough.

Example: ``key: utf8``.
"""


def _check_path(value: str) -> str:
    if not re.fullmatch(r"(key|value)(\.[^.]+)+", value):
        raise ValueError(f"expected a field of the key or the value, such as value.placed, got {value!r}")
    return value


class SilverTopic(Section):
    """Settings of a topic that has a silver table of decoded records."""

    key: DecodingOrFormat = Decoding()
    value: DecodingOrFormat = Decoding()
    event_time: Annotated[str, AfterValidator(_check_path)] | None = Field(
        None,
        description="The field that says when it happened: value.placed_at, key.time... Without one, the "
        "record's timestamp.",
    )
    late_ms: Milliseconds | None = Field(
        None,
        description="A record is late, and goes to the quarantine, whose event time is further before its "
        "timestamp (where it "
        "has none, before the time at which it was landed).",
    )
    early_ms: Milliseconds | None = Field(
        None, description="The same for an event time that is further behind it, as wrong clocks make them."
    )
    latest: bool = Field(
        default=False, description="Keep a table of each key's latest value, too; a null value deletes its key."
    )

    @model_validator(mode="after")
    def _event_time_is_a_field(self) -> Self:
        if self.event_time is None:
            if self.late_ms is not None or self.early_ms is not None:
                given = "late_ms" if self.late_ms is not None else "early_ms"
                refuse([SettingFault((given,), "late_ms and early_ms go with event_time")])
            return self
        side, *path = self.event_time.split(".")
        decoding = self.key if side == "key" else self.value
        if decoding.format not in {"json", "avro"}:
            message = f"event_time is {self.event_time!r}, but the {side}'s format {decoding.format} has no fields"
            refuse([SettingFault(("event_time",), message)])
        if decoding.format == "json" and (fault := _find_time_fault(self.event_time, decoding.struct, path)):
            refuse([SettingFault(("event_time",), fault)])
        return self


def _find_time_fault(event_time: str, struct: FieldType, path: list[str]) -> str | None:
    """Return why the path does not lead to a point in time, or None.

    Fields of an Avro schema are checked by the job.
    """
    at = struct
    for name in path:
        below = dict(at.fields).get(name)
        if below is None:
            there = ", ".join(name for name, _ in at.fields) or "no field below it"
            return f"event_time is {event_time!r}, but there is no field {name!r}; there is {there}"
        at = below
    if at.kind not in {"timestamp", "epoch_s", "epoch_ms", "epoch_us"}:
        return f"event_time is {event_time!r}, a {at.kind}; expected timestamp, epoch_s, epoch_ms or epoch_us"
    return None


def check_topic_names(topics: dict[str, SilverTopic]) -> dict[str, SilverTopic]:
    """Return ``topics`` unchanged if all names are legal in Kafka. Raises SettingFaults for others."""
    refuse(SettingFault(((name,),), f"topic {name!r}: {fault}") for name in topics if (fault := find_topic_fault(name)))
    return topics


SilverTopics = Annotated[dict[str, SilverTopic], AfterValidator(check_topic_names)]
"""Settings of the topics that have a silver table, by topic.

Other topics have none.
"""
