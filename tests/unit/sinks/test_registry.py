# SPDX-License-Identifier: Apache-2.0
"""Sinks by name."""

import sys

import pytest
from pydantic import ValidationError

from consumerd.errors import ConfigError
from consumerd.sinks.registry import load_sink, sink_types


@pytest.mark.parametrize("name", ["http", "jsonl", "null", "parquet", "stdout"])
def test_sinks_of_the_package_are_found(name: str):
    """By the same entry points as anybody else's."""
    factory = load_sink(name)
    needed = {"jsonl": {"path": "/data"}, "parquet": {"path": "/data"}, "http": {"url": "https://host/"}}
    options = factory.Options.model_validate(needed.get(name, {}))

    assert name in sink_types()
    assert options.model_dump()["on_rejected"] == "stop"


def test_unknown_sink_is_refused_with_what_there_is():
    """A typing error should be seen at a glance."""
    with pytest.raises(ConfigError, match="no sink 'parket'; there is http, jsonl, kafka, null, parquet, stdout"):
        load_sink("parket")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    """The cure is one command."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "consumerd.sinks.parquet", raising=False)

    with pytest.raises(ConfigError, match=r"needs pyarrow.*pip install .*\[parquet\]"):
        load_sink("parquet")


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("jsonl", {}, "path"),
        ("jsonl", {"path": "/data", "shared": "maybe"}, "shared"),
        ("jsonl", {"path": "/data", "compression": "snappy"}, "compression"),
        ("jsonl", {"path": "/data", "on_rejected": "drop"}, "on_rejected"),
        ("parquet", {"path": "/data", "compression": "lz77"}, "compression"),
        ("parquet", {"path": "/data", "compression_level": 23}, "compression_level"),
        ("parquet", {"path": "/data", "roll_ms": 0}, "roll_ms"),
        ("stdout", {"path": "/data"}, "path"),
    ],
)
def test_settings_that_are_not_there_are_refused(name: str, options: dict[str, object], key: str):
    """A setting that does nothing is a promise broken in silence."""
    with pytest.raises(ValidationError) as caught:
        load_sink(name).Options.model_validate(options)
    assert [error["loc"] for error in caught.value.errors()] == [(key,)]
