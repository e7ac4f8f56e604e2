# SPDX-License-Identifier: Apache-2.0
"""How topics are declared to be decoded."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from consumerd.config.pipeline_topics import SilverTopic, SilverTopics

JSON = {"format": "json", "fields": {"id": "bigint not null", "at": "epoch_ms", "more": "struct<at:timestamp>"}}


def test_a_format_alone_is_enough() -> None:
    """What has no options needs no section."""
    topic = SilverTopic.model_validate({"key": "utf8", "value": {"format": "raw"}})

    assert ("utf8", "raw") == (topic.key.format, topic.value.format)


@pytest.mark.parametrize("path", ["value.at", "value.more.at"])
def test_an_event_time_is_a_point_in_time_among_the_fields(path: str) -> None:
    """Nested ones, too."""
    topic = SilverTopic.model_validate({"value": JSON, "event_time": path, "late_ms": 5})

    assert (path, 5) == (topic.event_time, topic.late_ms)


@pytest.mark.parametrize(
    ("topic", "place", "message"),
    [
        ({"value": {"format": "json"}}, ("value",), "format json needs fields"),
        ({"value": {"format": "json", "fields": {}}}, ("value", "fields"), "name at least one field"),
        ({"value": {"format": "json", "fields": {"a": "int", "A": "int"}}}, ("value", "fields"), "'A' is there twice"),
        ({"value": {"format": "json", "fields": {"a": "foo"}}}, ("value", "fields", "a"), "'foo' is no type"),
        ({"value": {"format": "utf8", "fields": {"a": "int"}}}, ("value",), "fields goes with format json"),
        ({"key": "avro"}, ("key",), "format avro needs schema_file"),
        ({"key": {"format": "raw", "schema_file": "x"}}, ("key",), "schema_file goes with format avro"),
        ({"key": {"format": "raw", "framing": "confluent"}}, ("key",), "framing goes with format avro"),
        (
            {"key": {"format": "avro", "schema_file": "x", "framing": "confluent"}},
            ("key",),
            "framing confluent needs writer_schemas",
        ),
        (
            {"key": {"format": "avro", "schema_file": "x", "writer_schemas": {1: "y"}}},
            ("key",),
            "writer_schemas goes with framing confluent",
        ),
        ({"late_ms": 1}, (), "go with event_time"),
        ({"event_time": "value.at"}, (), "the value's format raw has no fields"),
        ({"value": JSON, "event_time": "value.when"}, (), "there is no field 'when'; there is id, at, more"),
        ({"value": JSON, "event_time": "value.id.x"}, (), "there is no field 'x'; there is no field below it"),
        ({"value": JSON, "event_time": "value.id"}, (), "a bigint; expected timestamp"),
        ({"value": JSON, "event_time": "at"}, ("event_time",), "such as value.placed"),
        ({"valeu": JSON}, ("valeu",), "not permitted"),
    ],
)
def test_what_cannot_work_is_refused_at_its_key(topic: object, place: tuple[str, ...], message: str) -> None:
    """The message names what to change, its place is that of the key."""
    with pytest.raises(ValidationError) as raised:
        SilverTopic.model_validate(topic)

    [error] = raised.value.errors()
    assert place == error["loc"]
    assert message in error["msg"]


def test_a_name_that_no_topic_has_is_refused() -> None:
    """Names become folders."""
    with pytest.raises(ValidationError, match="has other characters"):
        TypeAdapter(SilverTopics).validate_python({"a/b": {}})


def test_avro_names_its_schemas() -> None:
    """Ids are numbers in YAML."""
    topic = SilverTopic.model_validate(
        {
            "value": {
                "format": "avro",
                "schema_file": "r.avsc",
                "framing": "confluent",
                "writer_schemas": {12: "a.avsc", "13": "b.avsc"},
            }
        }
    )

    assert {12: Path("a.avsc"), 13: Path("b.avsc")} == topic.value.writer_schemas
