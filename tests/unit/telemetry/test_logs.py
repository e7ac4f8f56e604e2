# SPDX-License-Identifier: Apache-2.0
"""Lines of the log, as a program reads them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from consumerd.telemetry.logs import configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes in a test; the loggers are as before afterwards."""
    root = logging.getLogger()
    handlers, level, settings = root.handlers[:], root.level, structlog.get_config()
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**settings)


def test_every_line_has_the_fields_that_are_always_there(stream: io.StringIO) -> None:
    """Those of libraries, too; an event that says it by itself is believed."""
    configure_logging("info", "json", stream, always={"group": "lake"})
    structlog.get_logger("ours").info("delivery_started", topic="orders")
    structlog.get_logger("ours").info("group_met", group="other")
    logging.getLogger("library").warning("odd")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["group"]) for line in lines] == [
        ("delivery_started", "lake"),
        ("group_met", "other"),
        ("odd", "lake"),
    ]
